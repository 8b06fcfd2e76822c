"""Reductions, ops along an axis, sorting."""

from __future__ import annotations

from collections.abc import Iterator

from mixplan.runtime.dtypes import DType
from mixplan.targets.conformance.case import EXACT, Array, Case, Given, T, Tolerance

__all__ = ["axis_cases"]

# Some hundred terms of size 1, in another order.
_SUM = (Tolerance(1e-5, 2e-5),)
_SOFTMAX = (Tolerance(1e-5, 2e-6),)


def axis_cases() -> Iterator[Case]:
    """Of all ops that work along axes."""
    x = Given((2, T, 37))
    small = Given((3, T, 5), make=lambda s, rng: rng.uniform(0.5, 1.5, s))
    whole = Given((4, T), DType.i64, lambda s, rng: rng.integers(-50, 50, s))
    flags = Given((T, 9), DType.bool, lambda s, rng: rng.random(s) < 0.5)
    ties = Given((2, T, 19), DType.i64, lambda s, rng: rng.integers(0, 4, s))
    masked = Given((2, T, 37), make=lambda s, rng: _masked(rng.standard_normal(s)))
    for op in ("sum", "mean", "amax", "amin"):
        tolerances = _SUM if op in ("sum", "mean") else (EXACT,)
        for axes in ((2,), (1,), (0, 2), (0, 1, 2)):
            yield Case(op, f"f32 over {list(axes)}", (x,), {"axes": axes}, tolerances=tolerances)
        yield Case(op, "f32 over [1], kept", (x,), {"axes": (1,), "keepdims": True}, tolerances=tolerances)
    yield Case("prod", "f32 over [2]", (small,), {"axes": (2,)}, tolerances=_SUM)
    for op in ("sum", "prod", "amax", "amin"):
        yield Case(op, "i64 over [0]", (whole,), {"axes": (0,)})
    for op in ("any", "all"):
        yield from (Case(op, f"bool over {list(axes)}", (flags,), {"axes": axes}) for axes in ((0,), (1,), (0, 1)))
    for op in ("softmax", "log_softmax"):
        yield from (Case(op, f"f32 along {axis}", (x,), {"axis": axis}, tolerances=_SOFTMAX) for axis in (0, 1, 2))
        yield Case(op, "f32, masked with -inf", (masked,), {"axis": 2}, tolerances=_SOFTMAX)
    for axis in (0, 1, 2):
        yield Case("logsumexp", f"f32 along {axis}", (x,), {"axis": axis}, tolerances=_SUM)
        yield Case("cumsum", f"f32 along {axis}", (x,), {"axis": axis}, tolerances=_SUM)
        yield Case("cumsum", f"i64 along {axis}", (ties,), {"axis": axis})
        for op in ("argmax", "argmin"):
            yield Case(op, f"f32 along {axis}", (x,), {"axis": axis})
            yield Case(op, f"i64 with ties along {axis}", (ties,), {"axis": axis, "keepdims": True})
        yield Case("sort", f"f32 along {axis}", (x,), {"axis": axis})
        yield Case("sort", f"i64 with ties along {axis}, descending", (ties,), {"axis": axis, "descending": True})
    yield Case("logsumexp", "f32, masked with -inf", (masked,), {"axis": 2, "keepdims": True}, tolerances=_SUM)
    for k in (1, 6, 19):
        yield Case("topk", f"{k} of i64 with ties", (ties,), {"k": k, "axis": 2})
    yield Case("topk", "6 smallest of i64 with ties", (ties,), {"k": 6, "axis": 2, "largest": False})
    yield Case("topk", "2 of f32 along 0", (x,), {"k": 2, "axis": 0})


def _masked(x: Array) -> Array:
    """Every third element of a row, and all but the first of the last row, at -inf."""
    x[..., 1::3] = float("-inf")
    x[..., -1, 1:] = float("-inf")
    return x
