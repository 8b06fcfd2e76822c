"""All cases, in the order of the op table."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from mixplan.runtime.errors import OptionError
from mixplan.runtime.ops import OPS
from mixplan.targets.conformance.case import Case
from mixplan.targets.conformance.cases.attention import attention_cases
from mixplan.targets.conformance.cases.axes import axis_cases
from mixplan.targets.conformance.cases.elementwise import elementwise_cases
from mixplan.targets.conformance.cases.moves import move_cases
from mixplan.targets.conformance.cases.norms import norm_cases
from mixplan.targets.conformance.cases.products import product_cases

__all__ = ["cases_of", "choose_ops"]


@cache
def _by_op() -> dict[str, tuple[Case, ...]]:
    found: dict[str, list[Case]] = {op: [] for op in OPS}
    for family in (elementwise_cases, axis_cases, move_cases, product_cases, norm_cases, attention_cases):
        for case in family():
            found[case.op].append(case)
    return {op: tuple(cases) for op, cases in found.items()}


def cases_of(op: str) -> tuple[Case, ...]:
    """The cases of an op of the table."""
    return _by_op()[op]


def choose_ops(wanted: Sequence[str]) -> tuple[str, ...]:
    """Ops by name, all of them where none is named. OptionError for a name that is not in the table."""
    for op in wanted:
        if op not in OPS:
            raise OptionError(f"there is no op {op!r}.", hint=f"Ops: {', '.join(OPS)}.")
    return tuple(dict.fromkeys(wanted)) or tuple(OPS)
