"""Each op's ONNX lowering in onnxruntime, against its numpy reference."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from mixplan.runtime.plan import Node, Sym
from mixplan.targets.npu.lower.elementwise import ELEMENTWISE
from mixplan.targets.npu.lower.table import unsupported_reason
from mixplan.targets.npu.providers.table import provider_rules

Compare = Callable[..., None]
SHAPE = (1, 5, 12)
RNG = np.random.default_rng(3)
X = RNG.standard_normal(SHAPE).astype(np.float32)
Y = RNG.standard_normal(SHAPE).astype(np.float32)
POSITIVE = ("log", "sqrt", "rsqrt", "pow", "reciprocal")
BINARY = (
    *("atan2", "add", "sub", "mul", "div", "pow", "maximum", "minimum"),
    *("floor_div", "remainder", "fmod", "eq", "ne", "lt", "le", "gt", "ge"),
)
SHIFTS = ("shift_left", "shift_right")
LOGICAL = ("logical_and", "logical_or", "logical_xor", "bitwise_and", "bitwise_or", "bitwise_xor")


def test_all_elementwise_ops(nodes: Any, compare: Compare) -> None:
    x, y = nodes.input(X), nodes.input(Y)
    plus, bits, other = nodes.input(np.abs(X) + 0.1), nodes.input(X > 0), nodes.input(Y > 0)
    outputs = []
    for op in ELEMENTWISE:
        if op in SHIFTS:
            continue  # of integers, below
        if op in LOGICAL:
            outputs += nodes.node(op, [bits, other])
        elif op in ("logical_not", "bitwise_not"):
            outputs += nodes.node(op, [bits])
        elif op in BINARY:
            outputs += nodes.node(op, [plus if op in POSITIVE else x, y])
        elif op == "where":
            outputs += nodes.node(op, [bits, x, y])
        elif op == "cast":
            outputs += nodes.node(op, [x], SHAPE, "i64")
            outputs[-1:] = []  # its dims are checked below
            nodes.made.pop()
        elif op == "softplus":
            outputs += nodes.node(op, [x], beta=2.0, threshold=1.5)
        else:
            outputs += nodes.node(op, [plus if op in POSITIVE else x])
    assert {node.op for node in nodes.made} == set(ELEMENTWISE) - {"cast", *SHIFTS}
    compare(nodes, outputs, rtol=1e-5, atol=1e-6)


def test_moving_elements(nodes: Any, compare: Compare) -> None:
    x, tokens = nodes.input(X), Sym("T")
    outputs = [
        *nodes.node("cast", [x], (1, tokens, 12), "i64"),
        *nodes.node("cast", nodes.node("cast", [x], (1, tokens, 12), "f16"), (1, tokens, 12), "f32"),
        *nodes.node("reshape", [x], (1, tokens, 3, 4)),
        *nodes.node("expand", nodes.node("reshape", [x], (1, tokens, 12, 1)), (1, tokens, 12, 7)),
        *nodes.node("permute", nodes.node("reshape", [x], (1, tokens, 3, 4)), axes=(0, 2, 1, 3)),
        *nodes.node("slice", [x], axis=2, start=1, stop=11, step=3),
        *nodes.node("slice", [x], axis=2, start=4, stop=-1),
        *nodes.node("cat", [x, x], axis=2),
        *nodes.node("pad", [x], pads=(0, 0, 0, 0, 2, 1), value=-1.5),
    ]
    compare(nodes, outputs, rtol=0, atol=0)


def test_indexing_and_sorting(nodes: Any, compare: Compare) -> None:
    x = nodes.input(X)
    index = nodes.input(RNG.integers(0, 12, (1, 5, 4)))
    rows = nodes.input(np.array([4, 0]), tokens=None)
    table = nodes.const(RNG.standard_normal((9, 3)).astype(np.float32))
    apart = nodes.input(np.array([[[3, 1, 0]]] * 5).reshape(1, 5, 3))
    outputs = [
        *nodes.node("take", [x, rows], axis=1),
        *nodes.node("take", [table, nodes.input(RNG.integers(0, 9, (1, 5)))], axis=0),
        *nodes.node("gather", [x, index], axis=2),
        *nodes.node("scatter", [x, apart, nodes.input(Y[:, :, :3])], axis=2),
        *nodes.node("scatter", [x, index, nodes.input(Y[:, :, :4])], axis=2, reduce="add"),
        *nodes.node("scatter", [x, apart, nodes.input(Y)], axis=2),
        *nodes.node("iota", [], (2, 6), "i64", axis=1),
        *nodes.node("topk", [x], k=3, axis=2),
        *nodes.node("topk", [nodes.input(np.zeros(SHAPE, np.float32))], k=3, axis=2),
        *nodes.node("sort", [x], axis=2, descending=True),
    ]
    compare(nodes, outputs, rtol=0, atol=0)


def test_reductions_products_and_norms(nodes: Any, compare: Compare) -> None:
    x = nodes.input(X)
    weight, bias = (nodes.const(RNG.standard_normal(12).astype(np.float32)) for _ in range(2))
    outputs = [
        output
        for op in ("sum", "mean", "prod", "amax", "amin")
        for keepdims in (False, True)
        for output in nodes.node(op, [x], axes=(2,), keepdims=keepdims)
    ]
    outputs += [
        *nodes.node("softmax", [x], axis=2),
        *nodes.node("log_softmax", [x], axis=2),
        *nodes.node("argmax", [x], axis=2),
        *nodes.node("argmin", [x], axis=2, keepdims=True),
        *nodes.node("logsumexp", [x], axis=2),
        *nodes.node("cumsum", [x], axis=2),
        *nodes.node("matmul", [x, nodes.const(RNG.standard_normal((12, 4)).astype(np.float32))]),
        *nodes.node("rms_norm", [x, weight], eps=1e-5),
        *nodes.node("rms_norm", [x], eps=1e-5),
        *nodes.node("layer_norm", [x, weight, bias], eps=1e-5),
        *nodes.node("layer_norm", [x], eps=1e-5),
    ]
    compare(nodes, outputs)


@pytest.mark.parametrize("style", ["half", "interleaved"])
@pytest.mark.parametrize("turned", [8, 6])
def test_rope(nodes: Any, compare: Compare, style: str, turned: int) -> None:
    x = nodes.input(RNG.standard_normal((1, 5, 3, 8)).astype(np.float32))
    cos, sin = (nodes.input(RNG.standard_normal((1, 5, turned)).astype(np.float32)) for _ in range(2))
    compare(nodes, nodes.node("rope", [x, cos, sin], style=style))


def test_what_mixes_tokens_is_refused(nodes: Any) -> None:
    x = nodes.input(X)
    nodes.node("sum", [x], axes=(1,))
    nodes.node("cat", [x, x], axis=1)
    nodes.node("reshape", [x], (Sym("T", 12),))
    nodes.node("softmax", [x], axis=1)
    for node in nodes.made:
        reason = unsupported_reason(node, nodes.values, provider_rules("cpu"))
        assert "padded to a bucket" in reason, node.op


def test_ops_without_a_lowering_and_odd_dtypes_say_so(nodes: Any) -> None:
    small = nodes.input(np.zeros(SHAPE, np.int16))
    nodes.node("add", [small, small])
    assert unsupported_reason(nodes.made[0], nodes.values, provider_rules("cpu")) == "add of i16; the NPU takes f32, i64, i32"
    odd = Node(op="step_hash", inputs=(small,), outputs=(small,), attrs={})
    assert unsupported_reason(odd, nodes.values, provider_rules("cpu")) == "op 'step_hash' has no ONNX lowering"
    ids = nodes.input(np.zeros(SHAPE, np.int64))
    nodes.node("bitwise_and", [ids, ids])
    assert unsupported_reason(nodes.made[1], nodes.values, provider_rules("cpu")) == ""
    assert "from opset 18 on; the provider cann takes 17 (https://" in unsupported_reason(
        nodes.made[1], nodes.values, provider_rules("cann")
    )


def test_integers_that_would_end_the_process(nodes: Any, compare: Compare) -> None:
    """onnxruntime divides as the CPU does, and a division that has no result is a signal there."""
    least = np.iinfo(np.int64).min
    a, b = (nodes.input(np.tile(np.array(row), (1, 5, 1))) for row in ([7, -7, least, 5, least], [0, 3, -1, -2, 0]))
    outputs = [y for op in ("floor_div", "remainder", "fmod", "shift_right", "shift_left") for y in nodes.node(op, [a, b])]
    compare(nodes, outputs, rtol=0, atol=0)


def test_tokens_that_nothing_of_the_region_has(nodes: Any, run: Any) -> None:
    """A region that makes the step's tokens of nothing is told how many there are."""
    nodes.const(np.zeros(1, np.float32))
    outputs = nodes.node("iota", [], (1, Sym("T")), "i64", axis=1)
    (got,) = run(nodes, outputs, feeds={"step_tokens": np.zeros(5, np.int64)})
    np.testing.assert_array_equal(got, [[0, 1, 2, 3, 4]])
