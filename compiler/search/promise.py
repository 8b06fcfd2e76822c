"""The promise: what the plan must keep, and so what is a limit and what the objective.

| given | minimised | under |
|---|---|---|
| costs only: bits, size, latency | predicted loss | each of them |
| quality only: loss, kld | bits | each of them |
| one of each | the cost that is given | the quality; the cost's own figure must then hold too |
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from mixplan.runtime.errors import OptionError

__all__ = ["COSTS", "MEASURES", "QUALITIES", "Measure", "Promise", "parse_promise"]

Measure: TypeAlias = Literal["bits", "size", "loss", "kld", "latency"]
MEASURES: tuple[Measure, ...] = ("bits", "size", "loss", "kld", "latency")
COSTS: tuple[Measure, ...] = ("bits", "size", "latency")
QUALITIES: tuple[Measure, ...] = ("loss", "kld")

_OPTIONS: dict[Measure, str] = {
    "bits": "--bits",
    "size": "--max-size",
    "loss": "--max-loss",
    "kld": "--max-kld",
    "latency": "--max-latency",
}
_SIZES = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30}
_TIMES = {"s": 1.0, "ms": 1e-3, "us": 1e-6}
_NUMBER = re.compile(r"\s*([0-9]*\.?[0-9]+(?:[eE][-+]?[0-9]+)?)\s*([A-Za-z%]*)\s*")


@dataclass(frozen=True)
class Promise:
    """One or two figures that the plan must not exceed.

    limits: bits (effective, over all tensors), size (bytes of the plan's directory), loss (perplexity relative to the original's, less 1),
    kld (mean, nats), latency (seconds of a decode step of `batch` sequences that hold `context` tokens). texts: as they were written.
    """

    limits: Mapping[Measure, float]
    texts: Mapping[Measure, str]
    batch: int = 1
    context: int = 512

    @property
    def qualities(self) -> tuple[Measure, ...]:
        """Those that bound the loss."""
        return tuple(one for one in QUALITIES if one in self.limits)

    @property
    def costs(self) -> tuple[Measure, ...]:
        """Those that bound what the plan takes."""
        return tuple(one for one in COSTS if one in self.limits)

    @property
    def objective(self) -> Measure:
        """What is minimised; "kld" stands for the predicted loss."""
        if not self.qualities:
            return "kld"
        return self.costs[0] if self.costs else "bits"

    @property
    def bounds(self) -> tuple[Measure, ...]:
        """What is bounded while the objective is minimised."""
        return self.qualities or self.costs

    @property
    def label(self) -> str:
        """For the plan's name: "4.5bits", "kld0.02-latency5ms"."""
        words = [f"{self.texts[one]}bits" if one == "bits" else f"{one}{self.texts[one]}" for one in MEASURES if one in self.limits]
        return "-".join(re.sub(r"[^A-Za-z0-9.+-]", "", word.replace("%", "pct")) for word in words)

    def option(self, measure: Measure) -> str:
        """As it is given on the command line."""
        return f"{_OPTIONS[measure]} {self.texts[measure]}"


def parse_promise(
    *,
    bits: float | str | None = None,
    max_size: int | str | None = None,
    max_loss: float | str | None = None,
    max_kld: float | str | None = None,
    max_latency: float | str | None = None,
    batch: int = 1,
    context: int = 512,
) -> Promise | None:
    """The promise of these options, None where there is none. Numbers are in bits, bytes, fractions, nats, seconds.

    Raises OptionError for what is not understood, not possible, or more than two.
    """
    given: dict[Measure, float | int | str] = {
        name: value for name, value in zip(MEASURES, (bits, max_size, max_loss, max_kld, max_latency), strict=True) if value is not None
    }
    if not given:
        return None
    if len(given) > 2:
        names = ", ".join(_OPTIONS[name] for name in given)
        raise OptionError(f"{names} were given; at most two promises can be.", hint="One is the limit, the other the objective.")
    for name, number in (("batch", batch), ("context", context)):
        if isinstance(number, bool) or not isinstance(number, int) or number < 1:
            raise OptionError(f"{name} is {number!r}; it must be a whole number of at least 1.")
    limits = {name: _PARSERS[name](value, _OPTIONS[name]) for name, value in given.items()}
    return Promise(limits, {name: _text(name, value) for name, value in given.items()}, batch, context)


def _text(name: Measure, value: float | int | str) -> str:
    if isinstance(value, str):
        return "".join(value.split())
    return f"{value:g}{ {'size': 'B', 'latency': 's'}.get(name, '') }".replace(" ", "")


def _number(value: float | int | str, option: str, shown: str) -> tuple[float, str]:
    """The number and its unit."""
    match = _NUMBER.fullmatch(value) if isinstance(value, str) else None
    if isinstance(value, str) and match is None:
        raise OptionError(f"{option} is {value!r}; it is written as {shown}.")
    number, unit = (float(match[1]), match[2]) if match else (float(value), "")
    if not math.isfinite(number) or number <= 0:
        raise OptionError(f"{option} is {value!r}; it must be more than 0.")
    return number, unit


def _bits(value: float | int | str, option: str) -> float:
    number, unit = _number(value, option, "4.5")
    if unit or number > 32:
        raise OptionError(f"{option} is {value!r}; it is a number of bits per weight, such as 4.5, of at most 32.")
    return number


def _size(value: float | int | str, option: str) -> float:
    number, unit = _number(value, option, "90MB")
    if unit.upper() not in _SIZES:
        raise OptionError(f"{option} is {value!r}; units of size are {', '.join(filter(None, _SIZES))}.")
    return float(math.floor(number * _SIZES[unit.upper()]))


def _loss(value: float | int | str, option: str) -> float:
    number, unit = _number(value, option, "1%")
    if unit not in ("", "%") or (not unit and number >= 1):
        raise OptionError(f"{option} is {value!r}; it is a share of the perplexity, such as 1% or 0.01.")
    return number / 100 if unit else number


def _kld(value: float | int | str, option: str) -> float:
    number, unit = _number(value, option, "0.02")
    if unit:
        raise OptionError(f"{option} is {value!r}; it is a number of nats, such as 0.02.")
    return number


def _latency(value: float | int | str, option: str) -> float:
    number, unit = _number(value, option, "5ms")
    if isinstance(value, str) and unit not in _TIMES:
        raise OptionError(f"{option} is {value!r}; it needs a unit: {', '.join(_TIMES)}.", hint="Write 5ms, for example.")
    return number * _TIMES[unit or "s"]


_PARSERS = {"bits": _bits, "size": _size, "loss": _loss, "kld": _kld, "latency": _latency}
