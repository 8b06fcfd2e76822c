"""Elementwise ops: every dtype they take, broadcasting, special numbers."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from mixplan.runtime.dtypes import DType
from mixplan.targets.conformance.case import Case, Filled, Given, T, Tolerance, fixed

__all__ = ["BOOL_BINARY", "FLOAT_BINARY", "FLOAT_UNARY", "INT_BINARY", "INT_UNARY", "SPECIAL", "elementwise_cases"]

SPECIAL = np.array(
    [0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 0.5, -0.5, 1.5, 2.5, -2.5, 88.9, -103.5, 1e-40, 3e38, 0.3, -7.0], np.float32
)
FLOAT_UNARY = (
    "neg abs exp exp2 expm1 log log1p sqrt rsqrt reciprocal tanh sigmoid silu gelu gelu_tanh relu erf sin cos floor ceil round sign "
    "log_sigmoid softplus logical_not square isnan isinf"
).split()
FLOAT_BINARY = (
    "add sub mul div pow maximum minimum floor_div remainder fmod atan2 eq ne lt le gt ge logical_and logical_or logical_xor".split()
)
INT_UNARY = "abs relu logical_not bitwise_not square".split()
INT_BINARY = (
    "add sub mul pow maximum minimum floor_div remainder fmod eq ne lt le gt ge logical_and logical_or logical_xor bitwise_and bitwise_or "
    "bitwise_xor shift_left shift_right"
).split()
BOOL_BINARY = "maximum minimum eq ne lt le gt ge logical_and logical_or logical_xor bitwise_and bitwise_or bitwise_xor".split()

# A few units in the last place of a function's library.
_FLOAT = (Tolerance(3e-6, 1e-6),)
# exp of a large or tiny argument, and log1p of it, carry the relative error of their argument's last bits.
_LOOSE = (Tolerance(1e-5, 1e-6),)
_LOOSE_OPS = ("exp2", "expm1", "log_sigmoid", "softplus", "gelu_tanh")


def _mixed(shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    """Numbers about 1 and about 30 by turns."""
    return rng.standard_normal(shape) * np.where(np.arange(shape[-1]) % 2, 1.0, 30.0)


def _ints(low: int, high: int, dtype: DType, *shape: int | object) -> Given:
    return Given(tuple(shape), dtype, lambda s, rng: rng.integers(low, high, s))  # type: ignore[arg-type]


def _bools(*shape: int | object) -> Given:
    return Given(tuple(shape), DType.bool, lambda s, rng: rng.random(s) < 0.5)  # type: ignore[arg-type]


def elementwise_cases() -> Iterator[Case]:
    """Of all elementwise ops."""
    special = Given((len(SPECIAL),), make=lambda s, rng: SPECIAL)
    for op in FLOAT_UNARY:
        tolerance = _LOOSE if op in _LOOSE_OPS else _FLOAT
        yield Case(op, "f32 [1, T, 37]", (Given((1, T, 37), make=_mixed),), tolerances=tolerance)
        yield Case(op, "f32, special numbers", (special,), tolerances=tolerance)
    yield Case("softplus", "f32, beta 0.5", (Given((T, 37), make=_mixed),), {"beta": 0.5, "threshold": 5.0}, tolerances=_LOOSE)
    whole = Given((T, 1), make=lambda s, rng: rng.integers(-3, 4, s))
    for op in FLOAT_BINARY:
        yield Case(op, "f32 [1, T, 37] and [T, 1]", (Given((1, T, 37)), whole), tolerances=_FLOAT)
        yield Case(op, "f32, special numbers", (special, fixed(SPECIAL[::-1].copy())), tolerances=_FLOAT)
    for dtype in (DType.i64, DType.i32):
        a, b = _ints(-9, 10, dtype, T, 21), _ints(-3, 7, dtype, 1, 21)
        yield from (Case(op, f"{dtype.value} [T, 21]", (a,)) for op in (*INT_UNARY, "neg", "sign"))
        yield from (Case(op, f"{dtype.value} [T, 21] and [1, 21]", (a, b)) for op in INT_BINARY)
    yield from (Case(op, "bool [T, 33] and [33]", (_bools(T, 33), _bools(33))) for op in BOOL_BINARY)
    yield from (Case(op, "bool [T, 33]", (_bools(T, 33),)) for op in ("logical_not", "bitwise_not"))
    for dtype in (DType.f32, DType.i64, DType.bool):
        pair = [_bools(T, 33) if dtype is DType.bool else Given((T, 33), dtype, lambda s, rng: rng.integers(-9, 9, s)) for _ in range(2)]
        yield Case("where", f"{dtype.value} [T, 33]", (_bools(33), *pair))
    yield Case("where", "f32, -inf where false", (_bools(T, 33), Given((T, 33)), Filled("-inf", (1, 1))))
    yield from _casts()


def _casts() -> Iterator[Case]:
    sources = {
        DType.f32: Given((T, 33), make=lambda s, rng: rng.standard_normal(s) * 50),
        DType.i64: _ints(-100, 100, DType.i64, T, 33),
        DType.i32: _ints(-100, 100, DType.i32, T, 33),
        DType.bool: _bools(T, 33),
        DType.bf16: Given((T, 33), DType.bf16, lambda s, rng: rng.integers(0x3F00, 0x4300, s)),
        DType.f16: Given((T, 33), DType.f16, lambda s, rng: np.where(rng.random(s) < 0.5, 1e-6, 300) * rng.standard_normal(s)),
    }
    for source, given in sources.items():
        for made in (DType.f32, DType.i64, DType.i32, DType.bool, DType.bf16, DType.f16):
            yield Case("cast", f"{source.value} to {made.value}", (given,), declared=(made, (T, 33)))
