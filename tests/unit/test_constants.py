"""Constant expressions: rows are what the whole gives, and no more of the checkpoint is read than they need."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import nn

from mixplan.compiler.constants import Call, Constants, Expr, Literal, Parameter, parameters
from mixplan.compiler.evaluate import lower_module
from mixplan.compiler.lowering.operands import PackedWeight
from mixplan.compiler.packed import chunks, packed_arrays
from mixplan.runtime.formats import WeightFormat
from mixplan.runtime.packing import concat_experts, interleave_gated, pack, slice_blocks, unpack

A = torch.ops.aten


class _Source:
    """A checkpoint of two matrices and a stack of experts, that counts the rows read."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(0)
        self.tensors = {
            "a": torch.randn(48, 8, generator=generator),
            "b": torch.randn(16, 8, generator=generator),
            "e": torch.randn(3, 20, 8, generator=generator),
            "v": torch.randn(8, generator=generator),
        }
        self.rows: list[tuple[str, int, int]] = []

    def names(self) -> list[str]:
        return list(self.tensors)

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self.tensors[name].shape)

    def dtype(self, name: str) -> str:
        return "F32"

    def read(self, name: str) -> np.ndarray:
        return self.read_rows(name, 0, self.tensors[name].shape[0])

    def read_rows(self, name: str, start: int, stop: int) -> np.ndarray:
        self.rows.append((name, start, stop))
        return self.tensors[name][start:stop].numpy()

    def close(self) -> None:
        pass


def _param(name: str) -> Parameter:
    return Parameter(name, tuple(_Source().tensors[name].shape))


def _call(target: Callable[..., torch.Tensor], *args: object) -> Call:
    """A call with its shape, found by evaluating it."""
    source = _Source()
    shape = Constants(source).evaluate(Call(target, args, {}, (), torch.float32)).shape
    return Call(target, args, {}, tuple(shape), torch.float32)


a, b, e, v = (_param(name) for name in "abev")
EXPRESSIONS: dict[str, Expr] = {
    "parameter": a,
    "cat": _call(A.cat.default, [a, b], 0),
    "cat columns": _call(A.cat.default, [a, a], 1),
    "slice": _call(A.slice.Tensor, a, 0, 8, 40, 1),
    "slice from the end": _call(A.slice.Tensor, a, 0, -10, 1 << 62),
    "slice columns": _call(A.slice.Tensor, a, 1, 2, 6),
    "strided slice": _call(A.slice.Tensor, a, 0, 0, 48, 2),
    "transpose": _call(A.transpose.int, a, 0, 1),
    "transposed experts": _call(A.transpose.int, e, 1, 2),
    "select": _call(A.select.int, e, 0, 1),
    "select column": _call(A.select.int, e, 1, 3),
    "reshape": _call(A.reshape.default, e, [60, 8]),
    "reshape finer": _call(A.reshape.default, a, [96, 4]),
    "reshape coarser": _call(A.reshape.default, a, [12, 32]),
    "unsqueeze": _call(A.unsqueeze.default, a, 1),
    "plus one": _call(A.add.Tensor, v, 1.0),
    "times a vector": _call(A.mul.Tensor, a, v),
    "sum of two": _call(A.add.Tensor, a, a),
    "flip": _call(A.flip.default, a, [1]),
    "literal": Literal(torch.arange(48.0).reshape(24, 2)),
    "nested": _call(A.mul.Tensor, _call(A.cat.default, [_call(A.slice.Tensor, a, 0, 16, 48), b], 0), 0.5),
}


@pytest.mark.parametrize("name", EXPRESSIONS)
def test_rows_are_rows_of_the_whole(name: str) -> None:
    expr = EXPRESSIONS[name]
    whole = Constants(_Source()).evaluate(expr)
    count = expr.shape[0]
    for start, stop in ((0, count), (0, 1), (count // 3, count // 3 + 2), (count - 1, count)):
        rows = Constants(_Source()).rows(expr, start, stop)
        assert rows.is_contiguous()
        torch.testing.assert_close(rows, whole[start:stop], rtol=0, atol=0)


def test_rows_read_no_more_than_they_need() -> None:
    source = _Source()
    constants = Constants(source)
    constants.rows(EXPRESSIONS["nested"], 20, 36)
    assert source.rows == [("a", 36, 48), ("b", 0, 4)]
    source.rows.clear()
    constants.rows(EXPRESSIONS["reshape"], 25, 35)
    assert source.rows == [("e", 1, 2)]
    source.rows.clear()
    for start in range(0, 20, 4):
        constants.matrix_rows(e, 2, start, start + 4)
    assert source.rows == [("e", 2, 3)], "an expert is read once, in however many pieces it is packed"


def test_equal_expressions_have_equal_keys() -> None:
    assert _call(A.cat.default, [a, b], 0).key == EXPRESSIONS["cat"].key
    assert _call(A.cat.default, [b, a], 0).key != EXPRESSIONS["cat"].key
    assert Literal(torch.ones(3)).key == Literal(torch.ones(3)).key
    assert Literal(torch.ones(3)).key != Literal(torch.ones(3, dtype=torch.int64)).key
    assert parameters(EXPRESSIONS["nested"]) == ["a", "b"]


@pytest.mark.parametrize("fmt", [WeightFormat.of("f32"), WeightFormat.of("bf16")], ids=str)
def test_packed_layouts(fmt: WeightFormat) -> None:
    constants = Constants(_Source())
    tensors = _Source().tensors
    linear = packed_arrays(constants, PackedWeight("linear", (EXPRESSIONS["cat"],), fmt, 64, 8))
    exact = torch.cat([tensors["a"], tensors["b"]]).numpy()
    np.testing.assert_allclose(unpack(fmt, linear, 64, 8), exact, rtol=0 if fmt.bits == 32 else 2**-8)
    gated = packed_arrays(constants, PackedWeight("gated", (a, a), fmt, 48, 8))
    one = pack(fmt, tensors["a"].numpy())
    np.testing.assert_array_equal(gated["weight"], interleave_gated(one, one)["weight"])
    grouped = packed_arrays(constants, PackedWeight("grouped", (e,), fmt, 20, 8, experts=3))
    np.testing.assert_array_equal(grouped["weight"], concat_experts(pack(fmt, m.numpy()) for m in tensors["e"])["weight"])
    np.testing.assert_array_equal(slice_blocks(grouped, 2, 4)["weight"], pack(fmt, tensors["e"][1].numpy())["weight"])


def test_chunks_are_whole_blocks() -> None:
    weight = PackedWeight("linear", (Parameter("w", (100_001, 512)),), WeightFormat.of("i4", 32), 100_001, 512)
    pieces = list(chunks(weight))
    assert len(pieces) > 10
    assert pieces[0].start == 0 and pieces[-1].stop == 100_001
    assert all(x.stop == y.start and x.stop % 16 == 0 for x, y in pairwise(pieces))


class _Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(32, 8))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear(nn.functional.embedding(ids, self.table), self.table)


def test_tied_weights_are_stored_once() -> None:
    lowered, _, _ = lower_module(_Tied(), (torch.tensor([1, 2, 3, 4]),), (0,))
    assert [node.op for node in lowered.nodes] == ["embedding", "linear"]
    assert lowered.nodes[0].inputs[1] == lowered.nodes[1].inputs[1]
    assert len(lowered.sources) == 1
