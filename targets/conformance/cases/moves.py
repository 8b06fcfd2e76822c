"""Ops that move data: shapes and indices. All of them are exact but those that add."""

from __future__ import annotations

from collections.abc import Iterator

from mixplan.runtime.dtypes import DType
from mixplan.runtime.ops.shapes import shape_text
from mixplan.runtime.plan import Shape, Sym
from mixplan.targets.conformance.case import EXACT, Case, Filled, Given, R, T, Tolerance

__all__ = ["move_cases"]

_SUM = (Tolerance(1e-5, 2e-5),)
_I64, _I32, _F32 = DType.i64, DType.i32, DType.f32


def _ids(below: int, *shape: int | Sym, least: int = 0, dtype: DType = _I64) -> Given:
    return Given(tuple(shape), dtype, lambda s, rng: rng.integers(least, below, s))


def _flags(*shape: int | Sym) -> Given:
    return Given(tuple(shape), DType.bool, lambda s, rng: rng.random(s) < 0.5)


def move_cases() -> Iterator[Case]:
    """Of the shape ops, then of the indexing ops."""
    yield from _shape_cases()
    yield from _index_cases()


def _shape_cases() -> Iterator[Case]:
    x, square = Given((1, T, 12)), Given((3, 7, 7))
    shapes: tuple[tuple[Given, Shape], ...] = ((x, (T, 3, 4)), (x, (Sym("T", 12),)), (Given((T, 4, 3)), (1, T, 12)))
    for given, shape in shapes:
        yield Case("reshape", f"f32 to {shape_text(shape)}", (given,), declared=(_F32, shape))
    for axes in ((0, 2, 1), (2, 1, 0), (1, 0, 2)):
        yield Case("permute", f"f32 by {list(axes)}", (x,), {"axes": axes})
    yield Case("expand", "f32 [T, 1] to [4, T, 7]", (Given((T, 1)),), declared=(_F32, (4, T, 7)))
    yield Case("expand", "i64 [1, 1] to [T, 7]", (_ids(9, 1, 1),), declared=(_I64, (T, 7)))
    yield Case("slice", "f32, from 2 to 11 by 3", (x,), {"axis": 2, "start": 2, "stop": 11, "step": 3})
    yield Case("slice", "f32 [2 T], from 1 to the end by 2", (Given((Sym("T", 2), 5)),), {"axis": 0, "start": 1, "step": 2})
    yield Case("cat", "f32 along 2", (x, Given((1, T, 3)), Given((1, T, 1))), {"axis": 2})
    yield Case("cat", "f32 along 1, with a constant", (x, Filled(3.0, (1, 2, 12))), {"axis": 1})
    yield Case("cat", "bool along 0", (_flags(T, 5), _flags(T, 5)), {"axis": 0})
    yield Case("pad", "f32 with -1.5", (x,), {"pads": (0, 0, 1, 2, 3, 0), "value": -1.5})
    yield Case("pad", "i64 with 7", (_ids(9, T),), {"pads": (0, 3), "value": 7.0})
    yield Case("pad", "bool with true", (_flags(T, 5),), {"pads": (1, 0, 0, 1), "value": 1.0})
    for turned in ((2,), (1, 2)):
        yield Case("flip", f"f32 along {list(turned)}", (x,), {"axes": turned})
    for op in ("tril", "triu"):
        for diagonal in (-2, 0, 3):
            yield Case(op, f"f32 [3, 7, 7] from {diagonal}", (square,), {"diagonal": diagonal})
        yield Case(op, "f32 [1, T, 12]", (x,), {"diagonal": 1})
        yield Case(op, "bool, constant", (Filled(True, (5, 5), DType.bool),), {"diagonal": 0})
    yield Case("iota", "[2, T, 3] along 1", (), {"axis": 1}, (_I64, (2, T, 3)))
    yield Case("iota", "[T] along 0", (), {"axis": 0}, (_I64, (T,)))


def _index_cases() -> Iterator[Case]:
    x, turned = Given((11, T, 6)), Given((T, 11, 6))
    yield Case("take", "f32 along 0, ids from the end", (x, _ids(11, T, 3, least=-11)), {"axis": 0})
    yield Case("take", "f32 along 2, i32 ids", (x, _ids(6, 4, dtype=_I32)), {"axis": 2})
    yield Case("take", "f32 rows of R", (Given((1, 7, 13)), _ids(7, R)), {"axis": 1})
    yield Case("index_nd", "f32 from 0, two indices", (x, _ids(11, T, 1), _ids(1, 2)), {"axis": 0})
    yield Case("index_nd", "f32 from 1, i64 and i32", (turned, _ids(11, 2, 1), _ids(6, 3, dtype=_I32)), {"axis": 1})
    yield Case("gather", "f32 along 0", (x, _ids(11, 4, T, 5)), {"axis": 0})
    yield Case("gather", "f32 along 2", (turned, _ids(6, T, 11, 2)), {"axis": 2})
    yield Case("scatter", "f32 along 0", (x, _ids(11, 4, T, 5), Given((4, T, 6))), {"axis": 0})
    yield Case("scatter", "f32 along 2, added", (turned, _ids(6, T, 11, 9), Given((T, 11, 9))), {"axis": 2, "reduce": "add"}, None, _SUM)
    yield Case("index_add", "f32 along 0", (x, _ids(11, 20), Given((20, T, 6))), {"axis": 0}, None, _SUM)
    yield Case("index_add", "f32 along 2", (turned, _ids(6, 4), Given((T, 11, 4))), {"axis": 2}, None, _SUM)
    yield Case("scatter", "i64 along 1", (_ids(99, T, 8), _ids(8, T, 3), _ids(99, T, 3)), {"axis": 1}, None, (EXACT,))
