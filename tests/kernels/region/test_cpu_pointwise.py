"""Pointwise ops of the CPU device against the references: every op, every dtype it takes, broadcasting, special numbers, chains."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mixplan.runtime.plan import Sym
from mixplan.targets.conformance.cases.elementwise import BOOL_BINARY, FLOAT_BINARY, FLOAT_UNARY, INT_BINARY, INT_UNARY, SPECIAL

T = Sym("T")
# exp of a large or tiny argument, and log1p of it, carry the relative error of their argument's last bits.
LOOSE = (1e-5, 1e-6)


def test_float_ops(kit: Any, level: str) -> None:
    x = kit.input(1, T, 37)
    wide = kit.input(T, 37, make=lambda s, rng: rng.standard_normal(s) * 30)
    special = kit.input(len(SPECIAL), make=lambda s, rng: SPECIAL)
    b = kit.input(T, 1, make=lambda s, rng: rng.integers(-3, 4, s))
    for op in FLOAT_UNARY:
        for value in (x, wide, special):
            kit.op(op, value, tol=LOOSE if op in ("exp2", "expm1", "log_sigmoid", "softplus", "gelu_tanh") else (3e-6, 1e-6))
    kit.op("softplus", wide, beta=0.5, threshold=5.0, tol=LOOSE)
    for op in FLOAT_BINARY:
        kit.op(op, x, b, tol=(3e-6, 1e-6))
        kit.op(op, special, kit.const(SPECIAL[::-1].copy()), tol=(3e-6, 1e-6))
    kit.check(level, sizes=((1, 1), (7, 3), (65, 65)))


@pytest.mark.parametrize("dtype", ["i64", "i32", "i16", "i8", "u8"])
def test_integer_ops(kit: Any, dtype: str) -> None:
    low = 0 if dtype == "u8" else -9
    a = kit.ids(10, T, 21, least=low, dtype=dtype)
    b = kit.ids(7, 1, 21, least=0 if dtype == "u8" else -3, dtype=dtype)
    for op in INT_UNARY:
        kit.op(op, a)
    if dtype != "u8":
        kit.op("neg", a)
        kit.op("sign", a)
    for op in INT_BINARY:
        kit.op(op, a, b)
    kit.check("portable", threads=(1,), sizes=((7, 1),))


def test_bool_ops_where_and_casts(kit: Any, level: str) -> None:
    a, b = kit.bools(T, 33), kit.bools(33)
    for op in BOOL_BINARY:
        kit.op(op, a, b)
    kit.op("logical_not", a)
    kit.op("bitwise_not", a)
    sources = {
        "f32": kit.input(T, 33, make=lambda s, rng: rng.standard_normal(s) * 50),
        "i64": kit.ids(100, T, 33, least=-100),
        "i32": kit.ids(100, T, 33, least=-100, dtype="i32"),
        "bool": a,
        "bf16": kit.input(T, 33, dtype="bf16", make=lambda s, rng: rng.integers(0x3F00, 0x4300, s)),
        "f16": kit.input(T, 33, dtype="f16", make=lambda s, rng: np.where(rng.random(s) < 0.5, 1e-6, 300) * rng.standard_normal(s)),
    }
    for source, value in sources.items():
        for target in ("f32", "i64", "i32", "i16", "i8", "u8", "bool", "bf16", "f16"):
            if target == "u8" and source not in ("bool", "bf16"):
                continue  # negative numbers to unsigned are not defined
            if target == "i8" and source in ("bf16", "f16"):
                continue  # nor are numbers out of range
            kit.op("cast", value, dtype=target)
        kit.op("where", b, value, value)
    kit.op("where", a, sources["f32"], kit.fill("-inf", 1, 1))
    kit.op("where", b, kit.fill(0.0, T, 33) if False else kit.fill(2.0, 33), sources["f32"])
    kit.check(level)


def test_chain_is_one_function_and_strided_inputs(kit: Any, level: str) -> None:
    x = kit.input(1, T, 48)
    y = kit.op("slice", x, axis=2, start=16, out=False)
    heads = kit.op("reshape", y, shape=(1, T, 4, 8), out=False)
    swapped = kit.op("permute", heads, axes=(0, 2, 1, 3), out=False)
    gate = kit.op("silu", swapped, out=False)
    scaled = kit.op("mul", gate, kit.const(np.linspace(-1, 1, 8, dtype=np.float32)), out=False)
    total = kit.op("add", scaled, kit.fill(0.5), out=False)
    kit.op("maximum", total, swapped)
    back = kit.op("permute", total, axes=(0, 2, 1, 3), out=False)
    flat = kit.op("reshape", back, shape=(1, T, 32))
    kit.op("mul", flat, kit.op("flip", flat, axes=(1, 2), out=False))
    kit.check(level)
