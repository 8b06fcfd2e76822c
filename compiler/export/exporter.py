"""The call of torch.export, with errors that name the model's source line."""

from __future__ import annotations

import re
from typing import Any

import torch
from torch import nn
from torch.export import ExportedProgram

from mixplan.compiler.export.context import ExportContext
from mixplan.compiler.export.guards import BrokenGuard, GuardWatch, watching_guards
from mixplan.compiler.export.model_code import model_line
from mixplan.runtime.errors import MixplanError, UnsupportedError

__all__ = ["export"]


# Bounds of T: the first that is tried, and the least that makes sense (the traced example has 11 tokens).
_LONGEST = 1 << 20
_SHORTEST = 16


def export(module: nn.Module, args: tuple[Any, ...], context: ExportContext) -> ExportedProgram:
    """Export a step without strict tracing, with T and R dynamic and T bounded by what the model's code allows.

    Where the code compares T with the size of a table, the bound is one below that size; uses of the table are rewritten later.

    UnsupportedError gives the deepest line of the model's own code and the reason.
    """
    with watching_guards() as watch:
        return _bounded(module, args, context, watch)


def _bounded(module: nn.Module, args: tuple[Any, ...], context: ExportContext, watch: GuardWatch) -> ExportedProgram:
    refused: Exception | None = None
    bounds = [_LONGEST]
    while bounds:
        bound = bounds.pop()
        watch.limits.clear()
        try:
            return _export(module, args, bound, context, deferred=False)
        except MixplanError:
            raise
        except Exception as error:  # torch.export has no one exception type, and runs the model's own code
            refused = error
            guards = _guards(str(error))
            if not guards:
                raise _refusal(error, watch) from error
        if _hold(guards, bound):
            # Conditions on T that are always true, but that torch cannot prove: make them run-time checks, which are dropped.
            try:
                return _export(module, args, bound, context, deferred=True)
            except MixplanError:
                raise
            except Exception as error:  # as above
                refused = error
        sizes = [int(number) - 1 for guard in guards for number in re.findall(r"\b\d+\b", guard)]
        bounds = [size for size in sizes if _SHORTEST <= size < bound][-1:]
    assert refused is not None, "there is at least one bound"
    raise _refusal(refused, watch) from refused


def _export(module: nn.Module, args: tuple[Any, ...], bound: int, context: ExportContext, *, deferred: bool) -> ExportedProgram:
    tokens, rows = torch.export.Dim("T", min=2, max=bound), torch.export.Dim("R", min=1, max=1 << 20)
    shapes = ({1: tokens}, {1: tokens}, {1: tokens}, {0: rows})
    context.layers = 0
    return torch.export.export(module, args, dynamic_shapes=shapes, strict=False, prefer_deferred_runtime_asserts_over_guards=deferred)


def _guards(message: str) -> list[str]:
    """The conditions on T that torch.export's message says were assumed, as expressions in T; [] for any other message."""
    if "Constraints violated" not in message or "specialized it to be a constant" in message:
        return []
    found = re.findall(r"satisfy the generated guard (.*?)\.?$", message, flags=re.MULTILINE)
    return [re.sub(r"L\['\w+'\]\.size\(\)\[1\]", "T", guard) for guard in found]


def _hold(guards: list[str], bound: int) -> bool:
    """Whether the conditions hold for all T that are tried: every small one, and a spread of large ones up to the bound."""
    numbers = [
        *range(2, min(bound, 4096) + 1),
        *(n for k in range(12, 20) for n in ((1 << k) - 1, 1 << k, (1 << k) + 7) if n <= bound),
        bound,
    ]
    try:
        return all(bool(eval(g, {"__builtins__": {}, "min": min, "max": max, "T": t})) for g in guards for t in numbers)
    except (NameError, SyntaxError, TypeError, ZeroDivisionError):
        return False


def _refusal(error: Exception, watch: GuardWatch) -> UnsupportedError:
    text, guards = str(error).strip(), _guards(str(error))
    where = model_line(error)
    if isinstance(error, BrokenGuard):
        where, guards = error.guard.line, [] if error.guard.fixes else [error.guard.text]
    elif guards and watch.limits:
        where = watch.limits[0].line
    if guards:
        reason = f"its code does not work for every number of tokens T in a step, but needs {'; '.join(guards[:2])}"
    elif isinstance(error, BrokenGuard) or "specialized it to be a constant" in text:
        reason = "its code fixes the number of tokens in a step (a loop over the tokens, or a recurrence)"
    elif "MaskKind" in text:
        reason = "it computes with its attention mask, instead of handing it to the attention interface (sparse attention that picks keys)"
    else:
        reason = f"{type(error).__name__}: {' '.join(line.strip() for line in text.splitlines()[:3])[:600]}"
    return UnsupportedError(
        f"the model cannot be captured as one graph: {reason}{f' (at {where})' if where else ''}",
        hint="Decoders that mix tokens by causal attention alone are supported; other state and data-dependent control flow are not.",
    )
