"""Every ATen op that decoders use: a one-op module exported with a dynamic T, lowered, run by the references, against torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from mixplan.compiler.evaluate import evaluate, lower_module
from mixplan.runtime.errors import UnsupportedError

T = 5
A = torch.ops.aten


class _Op(nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function
        generator = torch.Generator().manual_seed(1)
        self.weight = nn.Parameter(torch.randn(6, 8, generator=generator))
        self.square = nn.Parameter(torch.randn(8, 8, generator=generator))
        self.bias = nn.Parameter(torch.randn(6, generator=generator))
        self.scale = nn.Parameter(torch.randn(8, generator=generator))

    def forward(self, *args: torch.Tensor) -> Any:
        return self.function(self, *args)


class _Two(_Op):
    def forward(self, a: torch.Tensor, b: torch.Tensor) -> Any:  # type: ignore[override]
        return self.function(self, a, b)


class _One(_Op):
    def forward(self, a: torch.Tensor) -> Any:  # type: ignore[override]
        return self.function(self, a)


def _floats(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def _ints(*shape: int, low: int = 0, high: int = 4, seed: int = 0) -> torch.Tensor:
    return torch.randint(low, high, shape, generator=torch.Generator().manual_seed(seed))


def check(
    function: Callable[..., Any], *args: torch.Tensor, axes: tuple[int | None, ...] | None = None, tolerance: float = 1e-6
) -> list[str]:
    """Compare at the example's size and at another T; gives the plan's ops."""
    module = (_One, _Two)[len(args) - 1](function).eval()
    dynamic = axes or tuple(0 for _ in args)
    lowered, constants, names = lower_module(module, args, dynamic)
    for tokens in (T, 9):
        given = [a if axis is None else _resized(a, axis, tokens) for a, axis in zip(args, dynamic, strict=True)]
        inputs = {name: a.numpy() for name, a in zip(names, given, strict=True)}
        with torch.no_grad():
            wanted = module(*given)
        wanted = wanted if isinstance(wanted, (tuple, list)) else [wanted]
        got = evaluate(lowered, constants, inputs, tokens=tokens)
        assert len(got) == len(wanted)
        for g, w in zip(got, wanted, strict=True):
            assert g.shape == tuple(w.shape)
            if w.is_floating_point():
                np.testing.assert_allclose(g, w.detach().float().numpy(), rtol=tolerance, atol=tolerance)
            else:
                np.testing.assert_array_equal(g, w.numpy())
    return [node.op for node in lowered.nodes]


def _resized(x: torch.Tensor, axis: int, size: int) -> torch.Tensor:
    repeats = [1] * x.dim()
    repeats[axis] = -(-size // x.shape[axis])
    return x.repeat(*repeats).narrow(axis, 0, size).clone()


X = _floats(T, 8)
POSITIVE = X.abs() + 0.1
INTS = _ints(T, 8, low=-3)
BOOLS = X > 0

UNARY: dict[str, Callable[..., Any]] = {
    "neg": torch.neg,
    "abs": torch.abs,
    "exp": torch.exp,
    "expm1": torch.expm1,
    "sin": torch.sin,
    "cos": torch.cos,
    "tan": torch.tan,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "silu": functional.silu,
    "gelu": functional.gelu,
    "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "relu": functional.relu,
    "relu6": functional.relu6,
    "leaky_relu": lambda x: functional.leaky_relu(x, 0.1),
    "elu": lambda x: functional.elu(x, 1.5),
    "softplus": functional.softplus,
    "log_sigmoid": functional.logsigmoid,
    "square": torch.square,
    "floor": torch.floor,
    "ceil": torch.ceil,
    "round": torch.round,
    "trunc": torch.trunc,
    "sign": torch.sign,
    "erf": torch.erf,
    "hardtanh": functional.hardtanh,
    "hardswish by decomposition": functional.hardswish,
    "mish by decomposition": functional.mish,
    "reciprocal": torch.reciprocal,
    "pow 2": lambda x: x**2,
    "pow 3": lambda x: x**3,
    "pow -1": lambda x: x**-1,
    "clamp": lambda x: x.clamp(-0.5, 0.5),
    "clamp one side": lambda x: x.clamp(max=0.3),
    "clamp_min": lambda x: x.clamp_min(0.2),
    "add number": lambda x: x + 2,
    "add alpha": lambda x: torch.add(x, x, alpha=3),
    "rsub": lambda x: 1 - x,
    "div number": lambda x: x / 3,
    "half cast": lambda x: x.to(torch.int32),
    "isnan": torch.isnan,
    "isinf": torch.isinf,
    "alias": lambda x: x.detach() * 1,
    "dropout": lambda x: functional.dropout(x, 0.5, training=False) + 1,
    "masked_fill": lambda x: x.masked_fill(x > 0, float("-inf")),
    "where number": lambda x: torch.where(x > 0, x, 0.0),
    "where two numbers": lambda x: torch.where(x > 0, 1.0, 0.0),
    "type_as": lambda x: x.long().type_as(x),
    "logical_not": lambda x: torch.logical_not(x > 0),
    "bitwise_not": lambda x: ~(x > 0),
    "bool and": lambda x: (x > 0) & (x < 1),
    "bool or": lambda x: (x > 1) | (x < 0),
    "bool xor": lambda x: (x > 1) ^ (x < 0),
    "logical_and": lambda x: torch.logical_and(x > 0, x),
}


@pytest.mark.parametrize("name", UNARY)
def test_unary(name: str) -> None:
    check(lambda m, x: UNARY[name](x), X, tolerance=2e-6)


@pytest.mark.parametrize(
    "function", [torch.log, torch.log1p, torch.log2, torch.log10, torch.sqrt, torch.rsqrt, lambda x: x**0.5, lambda x: x**-0.5]
)
def test_unary_of_positive_numbers(function: Callable[..., Any]) -> None:
    check(lambda m, x: function(x), POSITIVE, tolerance=2e-6)


INTEGER: dict[str, Callable[..., Any]] = {
    "sum in int64": lambda x: x.to(torch.int32).sum(-1),
    "bool sum": lambda x: (x > 0).sum(-1),
    "floor_divide": lambda x: x // 2,
    "trunc divide": lambda x: torch.div(x, 2, rounding_mode="trunc"),
    "true divide": lambda x: x / 2,
    "remainder": lambda x: x % 3,
    "fmod": lambda x: torch.fmod(x, 3),
    "sqrt gives float": lambda x: torch.sqrt(x.abs()),
    "compare with float": lambda x: x > 0.5,
    "add float": lambda x: x + 0.5,
    "mul bool": lambda x: x * (x > 0),
    "bool mul bool": lambda x: (x > 0) * (x < 2),
    "bool plus bool": lambda x: (x > 0) + (x < 2),
    "shift": lambda x: (x + 4) << 1,
    "shift right": lambda x: (x + 4) >> 1,
    "bit and": lambda x: x & 3,
    "floor of integers": torch.floor,
    "one_hot": lambda x: functional.one_hot(x + 3, 8),
    "int pow": lambda x: x**2,
    "cumsum": lambda x: x.cumsum(-1),
    "cumsum of bools": lambda x: (x > 0).cumsum(-1),
    "diff": lambda x: x.diff(dim=-1),
    "diff over tokens": lambda x: x.diff(dim=0, prepend=x[:1] - 1),
    "maximum": lambda x: torch.maximum(x, x.new_full((8,), 1)),
}


@pytest.mark.parametrize("name", INTEGER)
def test_integer(name: str) -> None:
    check(lambda m, x: INTEGER[name](x), INTS)


REDUCE: dict[str, Callable[..., Any]] = {
    "sum": lambda x: x.sum(-1),
    "sum keepdim": lambda x: x.sum((1, 2), keepdim=True),
    "mean": lambda x: x.mean(-1, keepdim=True),
    "amax": lambda x: x.amax(-1),
    "amin": lambda x: x.amin((1, 2)),
    "max dim": lambda x: tuple(x.max(-1)),
    "min dim": lambda x: tuple(x.min(-1, keepdim=True)),
    "prod": lambda x: x.prod(-1),
    "any": lambda x: (x > 1).any(-1),
    "all": lambda x: (x > -1).all(-1),
    "argmax": lambda x: x.argmax(-1),
    "argmin": lambda x: x.argmin(1, keepdim=True),
    "softmax": lambda x: x.softmax(-1),
    "softmax in float": lambda x: functional.softmax(x, dim=1, dtype=torch.float32),
    "log_softmax": lambda x: x.log_softmax(-1),
    "logsumexp": lambda x: x.logsumexp(-1, keepdim=True),
    "cumsum": lambda x: x.cumsum(-1),
    "topk": lambda x: tuple(x.topk(2, dim=-1)),
    "topk smallest": lambda x: tuple(x.topk(2, dim=-1, largest=False)),
    "sort": lambda x: tuple(x.sort(-1)),
    "sort descending": lambda x: tuple(x.sort(1, descending=True)),
    "argsort": lambda x: x.argsort(-1),
    "vector norm": lambda x: torch.linalg.vector_norm(x, dim=-1, keepdim=True),
    "norm": lambda x: x.norm(dim=-1),
    "normalize": lambda x: functional.normalize(x, dim=-1),
    "var": lambda x: x.var(-1),
    "std biased": lambda x: x.std(-1, unbiased=False),
    "max of all": lambda x: x.max(),
}


@pytest.mark.parametrize("name", REDUCE)
def test_reduce(name: str) -> None:
    check(lambda m, x: REDUCE[name](x), _floats(T, 3, 8), tolerance=3e-6)


SHAPE: dict[str, Callable[..., Any]] = {
    "view": lambda x: x.view(x.shape[0], 2, 12),
    "reshape -1": lambda x: x.reshape(-1, 8),
    "flatten": lambda x: x.flatten(1),
    "unflatten": lambda x: x.unflatten(-1, (2, 4)),
    "transpose": lambda x: x.transpose(0, 1),
    "permute": lambda x: x.permute(2, 0, 1),
    "movedim": lambda x: x.movedim(0, -1),
    "unsqueeze": lambda x: x.unsqueeze(1),
    "squeeze": lambda x: x[:, :1].squeeze(1),
    "expand": lambda x: x[:, :1].expand(-1, 4, -1),
    "expand new axis": lambda x: x.expand(2, -1, -1, -1),
    "expand_as": lambda x: x[:, :1].expand_as(x),
    "slice": lambda x: x[:, 1:],
    "slice strided": lambda x: x[..., 1::2],
    "slice negative": lambda x: x[..., -3:-1],
    "slice tokens": lambda x: x[1:],
    "last token": lambda x: x[-1:],
    "all but the last": lambda x: x[:-1],
    "select": lambda x: x[:, 1],
    "select last": lambda x: x[..., -1],
    "select last token": lambda x: x[-1],
    "cat": lambda x: torch.cat([x, x[:, :1]], 1),
    "cat tokens": lambda x: torch.cat([x, x[:1]], 0),
    "cat mixed dtypes": lambda x: torch.cat([x, (x > 0).long()], -1),
    "stack": lambda x: torch.stack([x, -x], -1),
    "split": lambda x: x.split(3, -1),
    "split sizes": lambda x: x.split([5, 1, 2], -1),
    "chunk": lambda x: x.chunk(3, -1),
    "unbind": lambda x: x.unbind(1),
    "repeat_interleave": lambda x: x.repeat_interleave(2, dim=-1),
    "repeat_interleave tokens": lambda x: x.repeat_interleave(3, dim=0),
    "repeat": lambda x: x.repeat(1, 2, 1),
    "repeat tokens": lambda x: x.repeat(2, 1, 1),
    "flip": lambda x: x.flip(-1),
    "roll": lambda x: x.roll(1, -1),
    "pad": lambda x: functional.pad(x, (1, 2), value=0.5),
    "pad tokens": lambda x: functional.pad(x, (0, 0, 0, 0, 1, 0)),
    "pad negative": lambda x: functional.pad(x, (-1, 0)),
    "tril": lambda x: x.tril(1),
    "triu": lambda x: x.triu(),
    "narrow": lambda x: x.narrow(-1, 2, 3),
    "view_as": lambda x: x.view_as(x) + 1,
    "t": lambda x: x[:, 0].t(),
    "einsum": lambda x: torch.einsum("tij,tkj->tik", x, x),
}


@pytest.mark.parametrize("name", SHAPE)
def test_shape(name: str) -> None:
    check(lambda m, x: SHAPE[name](x), _floats(T, 3, 8), tolerance=3e-6)


CREATE: dict[str, Callable[..., Any]] = {
    "arange": lambda x: torch.arange(x.shape[0]),
    "arange scaled": lambda x: torch.arange(3, 2 * x.shape[0] + 3, 2),
    "arange float": lambda x: torch.arange(x.shape[0], dtype=torch.float32) * 0.5,
    "arange static": lambda x: x + torch.arange(8),
    "arange times": lambda x: torch.arange(2 * x.shape[0]),
    "zeros": lambda x: torch.zeros(x.shape[0], 4) + x[:, :4],
    "ones_like": lambda x: torch.ones_like(x) * x,
    "full": lambda x: torch.full((x.shape[0], 2), 7, dtype=torch.int64),
    "full_like": lambda x: torch.full_like(x, 2.5),
    "new_zeros": lambda x: x.new_zeros((x.shape[0], 3)),
    "new_full": lambda x: x.new_full((2, 2), 3.0) + x[0, 0],
    "scalar_tensor": lambda x: x + torch.tensor(2.5),
    "tensor of a list": lambda x: x[:, :3] * torch.tensor([1.0, 2.0, 3.0]),
    "linspace folded": lambda x: x + torch.linspace(0, 1, 8),
    "positions times frequencies": lambda x: torch.outer(torch.arange(x.shape[0]).float(), 1.0 / 10 ** (torch.arange(4) / 4)),
}


@pytest.mark.parametrize("name", CREATE)
def test_create(name: str) -> None:
    check(lambda m, x: CREATE[name](x), X, tolerance=2e-6)


ROWS = _ints(T, 2, high=6)
INDEX: dict[str, tuple[Callable[..., Any], torch.Tensor, torch.Tensor]] = {
    "take": (lambda m, x, i: x[:, i[0]], _floats(T, 8), ROWS),
    "index table": (lambda m, x, i: m.weight[i], X, ROWS),
    "index negative": (lambda m, x, i: m.weight[i - 3], X, ROWS),
    "index two": (lambda m, x, i: m.weight[i, i + 1], X, ROWS),
    "index apart": (lambda m, x, i: m.weight.reshape(6, 2, 4)[i % 4, :, i % 4], X, ROWS),
    "index middle": (lambda m, x, i: x.reshape(-1, 2, 4)[:, i[0] % 2, i[0] % 4], X, ROWS),
    "index_select": (lambda m, x, i: x.index_select(1, i[0]), X, ROWS),
    "gather": (lambda m, x, i: x.gather(1, i), X, ROWS),
    "scatter value": (lambda m, x, i: torch.zeros_like(x).scatter(1, i, 1.0), X, ROWS),
    "scatter src": (lambda m, x, i: x.scatter(1, i[:, :1], x[:, 3:4]), X, ROWS),
    "scatter_add": (lambda m, x, i: x.scatter_add(1, i, x[:, :2]), X, ROWS),
    "scatter in place": (lambda m, x, i: torch.zeros_like(x).scatter_(1, i, 1), X, ROWS),
    "index_add": (lambda m, x, i: m.weight.t().new_zeros(6, 8).index_add(0, i[:, 0], x), X, ROWS),
    "index_put": (lambda m, x, i: _put(x, i), X, ROWS),
    "index_put two": (lambda m, x, i: m.weight.clone().index_put((i, i), x[:, :2] * 0 + 2.0), X, ROWS),
    "index_put accumulate": (lambda m, x, i: m.weight.clone().index_put((i[:, 0],), x, accumulate=True), X, ROWS),
    "masked assignment": (lambda m, x, i: _masked(x), X, ROWS),
    "slice assignment": (lambda m, x, i: _sliced(x), X, ROWS),
    "strided assignment": (lambda m, x, i: _strided(x), X, ROWS),
    "select assignment": (lambda m, x, i: _selected(x), X, ROWS),
    "in place": (lambda m, x, i: _in_place(x), X, ROWS),
    "embedding": (lambda m, x, i: functional.embedding(i, m.weight), X, ROWS),
    "embedding padding_idx": (lambda m, x, i: functional.embedding(i, m.weight, padding_idx=0), X, ROWS),
    "histc": (lambda m, x, i: torch.histc(i.reshape(-1).float(), 6, 0, 5), X, ROWS),
    "inverse permutation": (lambda m, x, i: _inverse(i), X, ROWS),
    "bucketize": (lambda m, x, i: torch.bucketize(x, torch.tensor([-1.0, 0.0, 1.0])), X, ROWS),
}


def _put(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(i[:, 0])
    order = i[:, 0].argsort()
    out[order] = torch.arange(i.shape[0])
    return out


def _masked(x: torch.Tensor) -> torch.Tensor:
    out = x.clone()
    out[out > 0] = -1.0
    return out


def _sliced(x: torch.Tensor) -> torch.Tensor:
    out = x.new_empty(x.shape)
    out[..., :3] = x[..., 5:]
    out[..., 3:] = x[..., :5]
    return out


def _strided(x: torch.Tensor) -> torch.Tensor:
    out = torch.zeros_like(x)
    out[:, 0::2] = x[:, :4]
    out[:, 1::2] = -x[:, 4:]
    return out


def _selected(x: torch.Tensor) -> torch.Tensor:
    out = x * 1
    out[:, 2] = 5.0
    out[..., -1] = x[:, 0]
    return out


def _in_place(x: torch.Tensor) -> torch.Tensor:
    out = x + 1
    out *= 2
    out /= x.abs().sum(-1, keepdim=True)
    out[:, 1:].add_(1.0)
    return out


def _inverse(i: torch.Tensor) -> torch.Tensor:
    flat = i.reshape(-1)
    _, order = flat.sort(stable=True)
    out = torch.empty_like(order)
    out[order] = torch.arange(order.shape[0])
    return out // 2


@pytest.mark.parametrize("name", INDEX)
def test_index(name: str) -> None:
    function, x, i = INDEX[name]
    check(function, x, i, tolerance=2e-6)


LINEAR: dict[str, Callable[..., Any]] = {
    "linear": lambda m, x: functional.linear(x, m.weight),
    "linear bias": lambda m, x: functional.linear(x, m.weight, m.bias),
    "matmul by a parameter": lambda m, x: x @ m.weight.t(),
    "matmul by a transposed one": lambda m, x: x @ m.square,
    "addmm": lambda m, x: torch.addmm(m.scale, x, m.square),
    "addmm scaled": lambda m, x: torch.addmm(m.scale, x, m.square, beta=0.5, alpha=2.0),
    "bmm": lambda m, x: torch.bmm(x.reshape(-1, 2, 4), x.reshape(-1, 4, 2)),
    "matmul of two activations": lambda m, x: x.reshape(-1, 2, 4) @ x.reshape(-1, 4, 2),
    "matmul by a vector": lambda m, x: x @ m.scale,
    "merged weights": lambda m, x: functional.linear(x, torch.cat([m.weight, m.square]), torch.cat([m.bias, m.scale])),
    "weight plus one": lambda m, x: x * (1 + m.scale),
    "computed weight": lambda m, x: functional.linear(x, x[:1] * m.square),
    "layer_norm": lambda m, x: functional.layer_norm(x, (8,), m.scale, m.scale * 2, 1e-5),
    "layer_norm bare": lambda m, x: functional.layer_norm(x, (8,)),
    "layer_norm of two axes": lambda m, x: functional.layer_norm(x.reshape(-1, 2, 4), (2, 4)),
    "rms_norm": lambda m, x: functional.rms_norm(x, (8,), m.scale, 1e-6),
    "rms_norm without eps": lambda m, x: functional.rms_norm(x, (8,)),
}


@pytest.mark.parametrize("name", LINEAR)
def test_linear(name: str) -> None:
    check(LINEAR[name], X, tolerance=1e-5)


def test_matmul_by_a_parameter_is_a_linear_layer() -> None:
    assert check(lambda m, x: x @ m.square, X, tolerance=1e-5) == ["linear"]


def _rotate(m: _Op, x: torch.Tensor) -> torch.Tensor:
    angle = torch.outer(torch.arange(x.shape[0]).float(), torch.tensor([1.0, 0.1, 0.01, 0.001]))
    turn = torch.polar(torch.ones_like(angle), angle)
    pairs = torch.view_as_complex(x.reshape(-1, 4, 2))
    return torch.view_as_real(pairs * turn).flatten(1)


def _complex_table(m: _Op, x: torch.Tensor) -> torch.Tensor:
    table = torch.polar(torch.ones(16, 4), torch.outer(torch.arange(16).float(), torch.tensor([1.0, 0.1, 0.01, 0.001])))
    turn = table[torch.arange(x.shape[0])]
    return torch.view_as_real(torch.view_as_complex(x.reshape(-1, 4, 2)) * turn.unsqueeze(0)[0]).reshape(-1, 8)


@pytest.mark.parametrize("function", [_rotate, _complex_table])
def test_complex_rotation(function: Callable[..., Any]) -> None:
    check(function, X, tolerance=3e-6)


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda m, x: x[:3], "a slice up to 3 of a dimension that a step of one token makes 1 long"),
        (lambda m, x: functional.conv1d(x.t()[None], m.square[:, :, None].expand(-1, -1, 3), padding=1), "a convolution over tokens"),
        (lambda m, x: x.cummax(-1)[0], "torch has no decomposition"),
        (lambda m, x: functional.dropout(x, 0.5, training=True), "dropout in training mode"),
        (lambda m, x: torch.linalg.vector_norm(x, 3, dim=-1), "a norm of order 3"),
    ],
)
def test_what_cannot_be_lowered_names_node_op_and_line(function: Callable[..., Any], reason: str) -> None:
    with pytest.raises(UnsupportedError, match=reason) as caught:
        check(function, X)
    assert "Node " in str(caught.value) and "(aten." in str(caught.value) and "test_lowering_ops.py:" in str(caught.value)
