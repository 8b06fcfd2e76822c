"""Conditions on the number of tokens T that the model's code takes for granted, seen at the line that takes them, while it is traced.

torch.export tells of them only at the end, without a line, and for code that works on a fixed number of tokens at a time (recurrences in
chunks) the end comes minutes later.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import sympy
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from mixplan.compiler.export.model_code import frame_line

__all__ = ["BrokenGuard", "Guard", "GuardWatch", "watching_guards"]

# Numbers of tokens that every plan must take (a smaller bound on T does not help there), and some around usual sizes of chunks.
_SMALL = (2, 3, 5, 7, 12, 13, 15)
_MORE = (*_SMALL, 16, 17, 31, 32, 33, 63, 64, 65, 100, 127, 128, 129, 255, 256, 257, 300, 511, 513, 1000)


@dataclass(frozen=True)
class Guard:
    """A condition in T, as Python would write it, and the line of the model's code that needs it ("" where it is not known)."""

    text: str
    line: str
    fixes: bool  # T is the traced example's own number of tokens


class BrokenGuard(Exception):  # noqa: N818 - not an error: it ends a trace whose outcome is known
    """A condition that no bound on T makes true."""

    def __init__(self, guard: Guard) -> None:
        super().__init__(guard.text)
        self.guard = guard


@dataclass
class GuardWatch:
    """`limits` are the conditions met so far that some numbers of tokens break, in the order of the model's code."""

    limits: list[Guard] = field(default_factory=list)

    def see(self, environment: ShapeEnv, condition: Any) -> None:
        """Note a condition; BrokenGuard where it does not hold for small numbers of tokens, or repeats in T with a period."""
        symbols = list(getattr(condition, "free_symbols", ()))
        if len(symbols) != 1 or not _is_tokens(environment, symbols[0]):
            return
        broken = [number for number in _MORE if condition.xreplace({symbols[0]: sympy.Integer(number)}) == sympy.false]
        if not broken:
            return
        text = str(condition.xreplace({symbols[0]: sympy.Symbol("T")}))
        guard = Guard(text, frame_line(), len(broken) == len(_MORE))
        self.limits.append(guard)
        if broken[0] <= _SMALL[-1] or "Mod" in text or "//" in text:
            raise BrokenGuard(guard)


@contextmanager
def watching_guards() -> Iterator[GuardWatch]:
    """Watch every condition that torch assumes to hold. Where torch has no such place to watch, nothing is seen."""
    watch = GuardWatch()
    original = getattr(ShapeEnv, "_log_guard", None)
    if original is None:
        yield watch
        return

    def log(environment: ShapeEnv, prefix: str, condition: Any, *args: Any, **kwargs: Any) -> None:
        original(environment, prefix, condition, *args, **kwargs)
        if prefix == "eval":
            watch.see(environment, condition)

    logger = logging.getLogger(ShapeEnv.__module__)
    logger.addFilter(_is_news)
    try:
        with mock.patch.object(ShapeEnv, "_log_guard", log):
            yield watch
    finally:
        logger.removeFilter(_is_news)


def _is_news(record: logging.LogRecord) -> bool:
    """torch warns of the exception that ends a trace, which the caller hears of in better words."""
    return "failed during" not in str(record.msg)


def _is_tokens(environment: ShapeEnv, symbol: Any) -> bool:
    """Whether a symbol is T: the second dimension of an input (R is a first one)."""
    sources = getattr(environment, "var_to_sources", {}).get(symbol, ())
    names = [source.name if isinstance(source.name, str) else source.name() for source in sources]
    return any(name.endswith(".size()[1]") for name in names)
