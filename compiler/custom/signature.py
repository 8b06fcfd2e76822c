"""What a kernel's function takes: tensors first, then numbers with defaults."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mixplan.runtime.errors import OptionError

__all__ = ["Signature", "read_signature", "where"]

_FORM = "Parameters without a default are tensors; those with one are numbers: def snake(x, alpha=0.5)."


@dataclass(frozen=True)
class Signature:
    """tensors: names, in order. numbers: the others' defaults."""

    tensors: tuple[str, ...]
    numbers: Mapping[str, float]

    def bind(self, name: str, given: Sequence[Any], numbers: Mapping[str, Any]) -> dict[str, float]:
        """All numbers of a call. OptionError for a wrong count of tensors or a number that is not one of the kernel's."""
        if len(given) != len(self.tensors):
            raise OptionError(f"Kernel {name} takes {len(self.tensors)} tensors ({', '.join(self.tensors)}); got {len(given)}.")
        for key, value in numbers.items():
            if key not in self.numbers:
                raise OptionError(f"Kernel {name} has no number {key!r}; it has {', '.join(self.numbers) or 'none'}.")
            if not isinstance(value, (int, float)):
                raise OptionError(f"Number {key} of kernel {name} is {value!r}; it must be an int, a float or a bool.")
        return {**self.numbers, **numbers}


def read_signature(function: Callable[..., Any]) -> Signature:
    """Raises OptionError for what is no function of Python; with the function's line, for a parameter of another kind."""
    if not inspect.isfunction(function):
        raise OptionError(
            f"A kernel cannot be made of {type(function).__name__} {function!r:.60}; it must be a function written in Python.",
            hint="Write one around it: def k(x): return torch.sin(x).",
        )
    tensors: list[str] = []
    numbers: dict[str, float] = {}
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.POSITIONAL_ONLY, parameter.KEYWORD_ONLY):
            raise OptionError(f"{where(function)}: parameter {parameter} of a kernel is not allowed.", hint=_FORM)
        if parameter.default is parameter.empty:
            if numbers or parameter.kind is parameter.KEYWORD_ONLY:
                raise OptionError(f"{where(function)}: parameter {name} of a kernel stands after its numbers.", hint=_FORM)
            tensors.append(name)
        elif isinstance(parameter.default, (int, float)):
            numbers[name] = parameter.default
        else:
            raise OptionError(f"{where(function)}: the default of parameter {name} is {parameter.default!r}, not a number.", hint=_FORM)
    if not tensors:
        raise OptionError(f"{where(function)}: a kernel takes at least one tensor.", hint=_FORM)
    return Signature(tuple(tensors), numbers)


def where(function: Callable[..., Any], line: int | None = None) -> str:
    """File and line of a function, or of a line in it, and its name."""
    code = function.__code__
    return f"{code.co_filename}:{line or code.co_firstlineno} ({function.__name__})"
