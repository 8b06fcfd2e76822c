"""The table of all ops, by name."""

from __future__ import annotations

from collections.abc import Sequence

from mixplan.runtime.errors import InternalError, PlanError
from mixplan.runtime.ops.attention import ATTENTION
from mixplan.runtime.ops.base import OpSpec
from mixplan.runtime.ops.elementwise import ELEMENTWISE
from mixplan.runtime.ops.embedding import EMBEDDING
from mixplan.runtime.ops.gated_linear import GATED_LINEAR
from mixplan.runtime.ops.grouped_linear import GROUPED_LINEAR
from mixplan.runtime.ops.indexing import INDEXING
from mixplan.runtime.ops.linear import LINEAR
from mixplan.runtime.ops.matmul import MATMUL
from mixplan.runtime.ops.norms import NORMS
from mixplan.runtime.ops.quantize import QUANTIZE
from mixplan.runtime.ops.reduce import REDUCE
from mixplan.runtime.ops.rope import ROPE
from mixplan.runtime.ops.shape import SHAPE
from mixplan.runtime.ops.sorting import SORTING

__all__ = ["FAMILIES", "OPS", "by_name", "op_spec"]

FAMILIES: tuple[tuple[str, tuple[OpSpec, ...]], ...] = (
    ("Elementwise", ELEMENTWISE),
    ("Reductions", REDUCE),
    ("Sorting", SORTING),
    ("Shape", SHAPE),
    ("Indexing", INDEXING),
    ("Products", (*MATMUL, *LINEAR, *GATED_LINEAR, *GROUPED_LINEAR)),
    ("Embedding", EMBEDDING),
    ("Normalization and quantization", (*NORMS, *QUANTIZE)),
    ("Attention", (*ROPE, *ATTENTION)),
)


def by_name(specs: Sequence[OpSpec]) -> dict[str, OpSpec]:
    """The ops by name; InternalError where two share one."""
    table: dict[str, OpSpec] = {}
    for spec in specs:
        if spec.name in table:
            raise InternalError(f"Two ops are called {spec.name!r}.")
        table[spec.name] = spec
    return table


OPS: dict[str, OpSpec] = by_name([spec for _, specs in FAMILIES for spec in specs])


def op_spec(name: str) -> OpSpec:
    """The op called `name`; PlanError where there is none."""
    if name not in OPS:
        raise PlanError(f"Op {name!r} is not known to this version of mixplan.", hint="`python -m mixplan.runtime.ops` lists the ops.")
    return OPS[name]
