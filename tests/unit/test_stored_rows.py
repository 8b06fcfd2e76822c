"""Rows of constant expressions as a file has them: where rows only move, they are the expression's own, to the last bit."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from mixplan.compiler.constants import Call, Constants, Expr, Parameter
from mixplan.compiler.stored import StoredRows
from mixplan.compiler.weights.base import Places
from mixplan.compiler.weights.gguf_blocks import BLOCK_TYPES, Blocks
from mixplan.runtime.errors import CheckpointError
from mixplan.runtime.formats import WeightFormat
from mixplan.runtime.packing import dequantize

A = torch.ops.aten
_K = 64
# Lines of each tensor in the file, and which of them each line of the parameter is.
_SHAPES: dict[str, tuple[int, ...]] = {"a": (48, _K), "b": (16, _K), "e": (3, 20, _K), "t": (_K, 24), "w": (16, _K), "x": (8, _K)}
_FORMAT = WeightFormat(8, 32)


class _File:
    """Tensors of 8-bit blocks, the lines of "b" in reverse order, those of "t" along its first axis; "w" is F32, "x" computed with."""

    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        self._codes = {n: rng.integers(0, 256, (_lines(s), _K), np.uint8) for n, s in _SHAPES.items()}
        self._scales = {n: rng.standard_normal((_lines(s), 2)).astype(np.float16).astype(np.float32) for n, s in _SHAPES.items()}

    def types(self, name: str) -> tuple[str, ...]:
        return ("F32" if name == "w" else "Q8_0",)

    def places(self, name: str) -> Places | None:
        if name == "x":
            return None
        shape = _SHAPES[name]
        ids = np.arange(_lines(shape))
        ids = ids[::-1] if name == "b" else ids
        return Places(ids.reshape(1, -1) if name == "t" else ids.reshape(*shape[:-1], 1), 0 if name == "t" else len(shape) - 1)

    def blocks(self, name: str, ids: np.ndarray) -> list[tuple[np.ndarray, Blocks | None]]:
        found = Blocks(BLOCK_TYPES["Q8_0"], self._codes[name][ids], self._scales[name][ids], None)
        return [(np.arange(len(ids)), None if name == "w" else found)]

    def names(self) -> list[str]:
        return list(_SHAPES)

    def shape(self, name: str) -> tuple[int, ...]:
        return _SHAPES[name]

    def dtype(self, name: str) -> str:
        return "Q8_0"

    def read(self, name: str) -> np.ndarray:
        lines = (self._codes[name].astype(np.float32) - 128) * self._scales[name].repeat(32, 1)
        lines = lines[::-1] if name == "b" else lines
        return np.ascontiguousarray(lines.T if name == "t" else lines.reshape(_SHAPES[name]))

    def read_rows(self, name: str, start: int, stop: int) -> np.ndarray:
        return self.read(name)[start:stop]

    def close(self) -> None:
        pass


def _lines(shape: tuple[int, ...]) -> int:
    return int(np.prod(shape)) // _K


def _call(target: Callable[..., torch.Tensor], *args: object) -> Call:
    shape = Constants(_File()).evaluate(Call(target, args, {}, (), torch.float32)).shape
    return Call(target, args, {}, tuple(shape), torch.float32)


a, b, e, t, w, x = (Parameter(name, shape) for name, shape in _SHAPES.items())
_TURNED = _call(A.permute.default, t, [1, 0])
MOVED: dict[str, Expr] = {
    "parameter": a,
    "reordered": b,
    "cat": _call(A.cat.default, [a, b, _TURNED], 0),
    "slice": _call(A.slice.Tensor, a, 0, 8, 40, 1),
    "strided slice from the end": _call(A.slice.Tensor, b, 0, -10, 1 << 62, 2),
    "turned": _TURNED,
    "transposed": _call(A.transpose.int, t, 0, 1),
    "turned slice": _call(A.permute.default, _call(A.slice.Tensor, t, 1, 4, 20), [1, 0]),
    "select": _call(A.select.int, e, 0, 1),
    "select of transposed": _call(A.select.int, _call(A.permute.default, e, [1, 2, 0]), 2, 1),
    "flat": _call(A.reshape.default, e, [60, _K]),
    "stack": _call(A.stack.default, [a, _call(A.slice.Tensor, a, 0, 0, 48)], 0),
    "flip": _call(A.flip.default, a, [0]),
    "unsqueeze": _call(A.select.int, _call(A.unsqueeze.default, a, 0), 0, 0),
    "nested": _call(A.cat.default, [_call(A.slice.Tensor, _call(A.cat.default, [b, a], 0), 0, 10, 20), b], 0),
}
COMPUTED: dict[str, Expr] = {
    "scaled": _call(A.mul.Tensor, a, 0.5),
    "part of the columns": _call(A.slice.Tensor, a, 1, 0, 32),
    "columns in another order": _call(A.flip.default, a, [1]),
    "side by side": _call(A.cat.default, [a, a], 1),
    "lines upright": t,
    "half a line": _call(A.reshape.default, a, [96, 32]),
    "changed by the loader": x,
    "of another type": w,
    "in part": _call(A.cat.default, [a, w], 0),
}


@pytest.mark.parametrize("name", MOVED)
def test_rows_that_only_move(name: str) -> None:
    expr = MOVED[name]
    whole = Constants(_File()).evaluate(expr).reshape(-1, _K)
    stored = StoredRows(_File())
    for start, stop in ((0, len(whole)), (3, 4), (len(whole) - 2, len(whole))):
        found = stored.read(expr, _FORMAT, start, stop, "w")
        assert found is not None
        np.testing.assert_array_equal(dequantize(_FORMAT, found), whole[start:stop].numpy())
    assert set(stored.exact) and not stored.apart and not stored.rounded


@pytest.mark.parametrize("name", COMPUTED)
def test_rows_that_are_computed(name: str) -> None:
    assert StoredRows(_File()).read(COMPUTED[name], _FORMAT, 0, 4 if name != "in part" else 64, "w") is None


def test_formats_that_do_not_fit() -> None:
    stored = StoredRows(_File())
    assert stored.read(a, WeightFormat(8, 64), 0, 4, "w") is None
    assert stored.read(a, WeightFormat(5, 32), 0, 4, "w") is None


def test_infinite_scales() -> None:
    file = _File()
    file._scales["a"][2, 1] = np.inf
    with pytest.raises(CheckpointError, match=r"my\.weight"):
        StoredRows(file).read(a, _FORMAT, 0, 4, "my.weight")
