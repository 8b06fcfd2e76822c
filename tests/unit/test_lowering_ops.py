"""Elementwise ops and reductions that decoders use: exported with a dynamic T, lowered, run by the references, against torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional

T = 5
GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(T, 8, generator=GENERATOR)

POSITIVE = X.abs() + 0.1
INTS = torch.randint(-3, 4, (T, 8), generator=GENERATOR)
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
def test_unary(check: Callable[..., Any], name: str) -> None:
    check(lambda m, x: UNARY[name](x), X, tolerance=2e-6)


@pytest.mark.parametrize(
    "function", [torch.log, torch.log1p, torch.log2, torch.log10, torch.sqrt, torch.rsqrt, lambda x: x**0.5, lambda x: x**-0.5]
)
def test_unary_of_positive_numbers(check: Callable[..., Any], function: Callable[..., Any]) -> None:
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
def test_integer(check: Callable[..., Any], name: str) -> None:
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
def test_reduce(check: Callable[..., Any], name: str) -> None:
    check(lambda m, x: REDUCE[name](x), torch.randn(T, 3, 8, generator=GENERATOR), tolerance=3e-6)
