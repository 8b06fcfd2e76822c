"""What decides about placing: the step that costs are worked out for, the rules of small work, and what a transfer takes."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from mixplan.compiler.placing.measure import measure_transfer
from mixplan.runtime.cost import Work
from mixplan.runtime.errors import OptionError
from mixplan.targets.base import CostModel

__all__ = ["PlacingRules", "parse_placing", "parse_quantity"]

_NUMBER = re.compile(r"(\d+(?:\.\d+)?(?:e[+-]?\d+)?)\s*([a-zA-Z/]*)")
_UNITS = {
    "seconds": {"s": 1.0, "ms": 1e-3, "us": 1e-6},
    "bytes": {"B": 1.0, "kB": 1e3, "MB": 1e6, "GB": 1e9},
    "bytes a second": {"B/s": 1.0, "MB/s": 1e6, "GB/s": 1e9, "TB/s": 1e12},
    "operations a second": {"GOPS": 1e9, "TOPS": 1e12, "GFLOPS": 1e9, "TFLOPS": 1e12},
}
_COSTS = {"bandwidth": "bytes a second", "call": "seconds", "int8": "operations a second", "bf16": "operations a second"}
_COSTS |= {"f32": "operations a second", "launch": "seconds"}
_ONCE = "Give each unit once, with each of its facts once: npu:int8=40TOPS,bandwidth=60GB/s."
_FIELDS = {"call": "call_seconds", "launch": "node_seconds"}


@dataclass(frozen=True)
class PlacingRules:
    """tokens: of the step, a prompt's, that costs are worked out for. A region moves from the first unit only where its compute takes more
    than `move_above` seconds there, and where less than `boundary_below` bytes cross its borders. Crossing one takes `transfer_seconds`,
    and each byte 1 / transfer_bandwidth, or what a unit's link to the host takes where that is slower and no rate was stated. costs: what
    the user states of units, by name.
    """

    tokens: int = 256
    move_above: float = 100e-6
    boundary_below: float = 1e6
    transfer_bandwidth: float = 8e9
    transfer_seconds: float = 20e-6
    transfer_stated: bool = False
    costs: Mapping[str, CostModel] = field(default_factory=dict)

    @property
    def work(self) -> Work:
        """The step."""
        return Work.prefill(self.tokens)

    def transfer(self, nbytes: float, *units: CostModel) -> float:
        """Seconds that it takes to hand so many bytes from one of these units to another."""
        links = [] if self.transfer_stated else [unit.link for unit in units if unit.link > 0]
        return self.transfer_seconds + nbytes / min([self.transfer_bandwidth, *links])


def parse_quantity(option: str, text: str, kind: str) -> float:
    """A number with a unit, such as "100us" or "8 GB/s"; 0 needs none. OptionError where it is none, below 0, or too large for a float."""
    found, units = _NUMBER.fullmatch(text.strip()), _UNITS[kind]
    number = math.nan if found is None else float(found[1])
    if found is None or (found[2] not in units and (found[2] or number)):
        raise OptionError(f"{option} is {text!r}; it must be a number of {kind}, with one of: {', '.join(units)}.")
    if not math.isfinite(number * units.get(found[2], 1.0)):
        raise OptionError(f"{option} is {text!r}, which is too large; at most {sys.float_info.max:.2g} {kind} can be counted.")
    return number * units.get(found[2], 1.0)


def parse_placing(
    *,
    tokens: int | None = None,
    move_above: str | None = None,
    boundary_below: str | None = None,
    transfer: str | None = None,
    unit_costs: Sequence[str] = (),
) -> PlacingRules:
    """The rules, with defaults for what is None. unit_costs: "npu:int8=40TOPS,bandwidth=60GB/s,call=50us". Raises OptionError.

    transfer: "8GB/s+20us", a rate and the time of each; or "measured", a copy in this machine's memory, on which the plan then depends.
    """
    rules = PlacingRules()
    if tokens is not None:
        if not 1 <= tokens <= 1 << 20:
            raise OptionError(f"place_tokens is {tokens}; allowed are 1 to {1 << 20}.")
        rules = replace(rules, tokens=tokens)
    if move_above is not None:
        rules = replace(rules, move_above=parse_quantity("move_above", move_above, "seconds"))
    if boundary_below is not None:
        rules = replace(rules, boundary_below=parse_quantity("boundary_below", boundary_below, "bytes"))
    if transfer == "measured":
        rate_here, seconds = measure_transfer()
        rules = replace(rules, transfer_bandwidth=rate_here, transfer_seconds=seconds)
    elif transfer is not None:
        rate, _, latency = transfer.partition("+")
        rules = replace(rules, transfer_bandwidth=parse_quantity("transfer", rate, "bytes a second"), transfer_stated=True)
        if latency:
            rules = replace(rules, transfer_seconds=parse_quantity("transfer", latency, "seconds"))
    if rules.transfer_bandwidth <= 0:
        raise OptionError(f"transfer is {transfer!r}; it must be above 0 bytes a second.")
    costs: dict[str, CostModel] = {}
    for text in unit_costs:
        unit, model = _unit_cost(text)
        if unit in costs:
            raise OptionError(f"unit_costs names the unit {unit!r} twice; the second time it says {text!r}.", hint=_ONCE)
        costs[unit] = model
    return replace(rules, costs=costs)


def _unit_cost(text: str) -> tuple[str, CostModel]:
    unit, colon, facts = text.partition(":")
    if not unit or not colon:
        raise OptionError(f"unit_costs has {text!r}; it must be UNIT:FACT=NUMBER,..., such as npu:int8=40TOPS,bandwidth=60GB/s.")
    given: dict[str, float] = {}
    for fact in facts.split(","):
        name, equals, number = fact.partition("=")
        if not equals or name not in _COSTS:
            raise OptionError(f"unit_costs has {fact!r}; the facts are {', '.join(_COSTS)}.")
        if _FIELDS.get(name, name) in given:
            raise OptionError(f"unit_costs {text!r} says {name} twice; the second time it is {number!r}.", hint=_ONCE)
        given[_FIELDS.get(name, name)] = parse_quantity(f"unit_costs {name}", number, _COSTS[name])
    if given.get("bandwidth", 0.0) <= 0:
        raise OptionError(f"unit_costs {text!r} says nothing of the bandwidth, which every cost needs.", hint="Add bandwidth=60GB/s.")
    stated: dict[str, Any] = {**given, "source": "stated"}
    return unit, CostModel(**stated)
