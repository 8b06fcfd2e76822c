"""All lowerings, by the op's name: `namespace.op`, or `namespace.op.overload` where overloads differ."""

from __future__ import annotations

from collections.abc import Callable

from mixplan.compiler.lowering import blocks, complex_pairs, create, elementwise, indexing, reduce, shape, weights
from mixplan.compiler.lowering.operands import Operand
from mixplan.runtime.errors import InternalError

__all__ = ["LOWERINGS", "find"]

Lowering = Callable[..., Operand]
_FAMILIES = (elementwise.TABLE, reduce.TABLE, shape.TABLE, create.TABLE, indexing.TABLE, weights.TABLE, blocks.TABLE, complex_pairs.TABLE)


def _joined() -> dict[str, Lowering]:
    table: dict[str, Lowering] = {}
    for family in _FAMILIES:
        for name, function in family.items():
            if name in table:
                raise InternalError(f"Two lowerings for {name}.")
            table[name] = function
    return table


LOWERINGS: dict[str, Lowering] = _joined()


def find(name: str, overload: str) -> Lowering | None:
    """The lowering of an op's overload, None where there is none."""
    return LOWERINGS.get(f"{name}.{overload}") or LOWERINGS.get(name)
