"""Products with packed weights of every format, embeddings, and matrix products."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from mixplan.runtime.dtypes import DType
from mixplan.runtime.formats import FORMAT_NAMES, WeightFormat
from mixplan.targets.conformance.case import Array, Case, Fixed, Given, Input, T, Tolerance, fixed
from mixplan.targets.conformance.weights import Weight, random_weight

__all__ = ["product_cases"]

# Sums of some hundred products of size 1, in another order.
_SUM = (Tolerance(1e-4, 1e-4),)
_EMBEDDED = (Tolerance(1e-5, 1e-6),)
_ROWS, _COLUMNS = 43, 96


def _formats(names: Sequence[str] = FORMAT_NAMES) -> list[tuple[str, WeightFormat]]:
    """Each format with its usual scales, and the ways of scales and zeros that some have; with a label."""
    found = []
    for name in names:
        plain = name in ("f32", "bf16", "i8", "e4m3")
        found.append((name if plain else f"{name} groups of 32", WeightFormat.of(name, 0 if plain else 32)))
    found += [
        ("e4m3 groups of 32", WeightFormat.of("e4m3", 32)),
        ("i8 groups of 32, zero points", WeightFormat.of("i8", 32, False)),
        ("i4 groups of 64, zero points", WeightFormat.of("i4", 64, False)),
        ("i4 groups of 32, minima", WeightFormat.of("i4", 32, False, zero_dtype=DType.f16)),
        ("i4 groups of 32, two-level", WeightFormat.of("i4", 32, scale_dtype=DType.i8)),
    ]
    return [(label, fmt) for label, fmt in found if fmt.name in names]


def _inputs(weight: Weight) -> tuple[Input, ...]:
    """weight, scales and zeros."""
    dtypes = [DType.bf16 if weight.fmt.name == "bf16" else None, None, None]
    return tuple(None if array is None else fixed(array, dtype) for array, dtype in zip(weight.arrays, dtypes, strict=True))


def product_cases() -> Iterator[Case]:
    """Of all ops that multiply matrices, and of embeddings."""
    rng = np.random.default_rng(1)
    x, residual = Given((1, T, _COLUMNS)), Given((1, T, _ROWS))
    bias, both = (fixed(rng.standard_normal(shape)) for shape in ((_ROWS,), (2, _ROWS)))
    for label, fmt in _formats():
        weight, gated = (random_weight(rng, fmt, _ROWS, _COLUMNS, kind) for kind in ("linear", "gated"))
        inputs, attrs = _inputs(weight), weight.attrs
        yield Case("linear", label, (x, *inputs), attrs, None, _SUM, True)
        yield Case("embedding", label, (_ids(_ROWS), *inputs), attrs, None, _EMBEDDED)
        yield Case("gated_linear", label, (x, *_inputs(gated)), gated.attrs | {"activation": "silu"}, None, _SUM, True)
    for label, fmt in _formats(("f32", "i4")):
        weight, gated = (random_weight(rng, fmt, _ROWS, _COLUMNS, kind) for kind in ("linear", "gated"))
        inputs = _inputs(weight)
        yield Case("linear", f"{label}, bias and residual", (x, *inputs, bias, residual), weight.attrs, None, _SUM, True)
        rounded = weight.attrs | {"activation_dtype": "bf16"}
        yield Case("linear", f"{label}, x rounded to bf16", (x, *inputs), rounded, None, _SUM, True)
        narrow = gated.attrs | {"activation": "gelu_tanh"}
        yield Case("gated_linear", f"{label}, bias, gelu", (x, *_inputs(gated), both), narrow, None, _SUM, True)
    for label, fmt in _formats(("e4m3", "bf16")):
        weight, gated = (random_weight(rng, fmt, _ROWS, _COLUMNS, kind) for kind in ("linear", "gated"))
        floats, more = {"activation_dtype": "e4m3"}, (bias, residual)
        yield Case("linear", f"{label}, x rounded to e4m3", (x, *_inputs(weight), *more), weight.attrs | floats, None, _SUM, True)
        floats |= {"activation": "silu"}
        yield Case("gated_linear", f"{label}, x rounded to e4m3", (x, *_inputs(gated)), gated.attrs | floats, None, _SUM, True)
    yield from _quantized_cases(rng, bias, both, residual)
    yield from _grouped_cases(rng)
    yield from _matmul_cases()


def _ids(below: int) -> Given:
    return Given((1, T), DType.i64, lambda s, rng: rng.integers(0, below, s))


def _quantized_cases(rng: np.random.Generator, bias: Fixed, both: Fixed, residual: Given) -> Iterator[Case]:
    """Products of int8 activations. Rows of 100 columns, so that codes are padded."""
    for label, fmt in _formats(("i8", "i4", "i2", "n4")):
        kinds = [random_weight(rng, fmt, _ROWS, 100, kind) for kind in ("linear", "gated")]
        padded, groups = fmt.padded_columns(100), max(fmt.groups(100), 1)

        def codes(shape: tuple[int, ...], rng: np.random.Generator) -> Array:
            q = rng.integers(-127, 128, shape)
            q[..., 100:] = 0
            return q

        scales = Given((1, T, groups), make=lambda s, rng: rng.uniform(0.5, 1.5, s) / 127)
        q = (Given((1, T, padded), DType.i8, codes), scales, Given((1, T, groups)))
        plain, gated = (kind.attrs for kind in kinds)
        more = (bias, residual)
        yield Case("linear_q", label, (*q, *_inputs(kinds[0])), plain, None, _SUM, True, complete=_sum_codes)
        yield Case("linear_q", f"{label}, bias and residual", (*q, *_inputs(kinds[0]), *more), plain, None, _SUM, True, complete=_sum_codes)
        gated = gated | {"activation": "relu"}
        yield Case("gated_linear_q", label, (*q, *_inputs(kinds[1]), both), gated, None, _SUM, True, complete=_sum_codes)


def _sum_codes(arrays: list[Array]) -> None:
    """The third input of a quantized product is what the first two say: sums = scale * sum(q)."""
    q, scales, sums = arrays[:3]
    totals = q.reshape(*scales.shape, -1).sum(-1, dtype=np.int64)
    sums[...] = scales * totals.astype(np.float32)


def _grouped_cases(rng: np.random.Generator) -> Iterator[Case]:
    """Five experts; the id 5 is none of them."""
    ids = Given((T, 2), DType.i64, lambda s, rng: rng.integers(0, 6, s))
    bias = fixed(rng.standard_normal((5, 24)))
    for label, fmt in _formats(("f32", "bf16", "i8", "i4", "e4m3")):
        weight = random_weight(rng, fmt, 24, 64, "5")
        attrs = weight.attrs | {"experts": 5}
        yield Case("grouped_linear", f"{label}, one row for all", (Given((T, 1, 64)), ids, *_inputs(weight)), attrs, None, _SUM, True)
        yield Case("grouped_linear", f"{label}, bias", (Given((T, 2, 64)), ids, *_inputs(weight), bias), attrs, None, _SUM, True)


def _matmul_cases() -> Iterator[Case]:
    a = Given((3, T, 37))
    shapes: tuple[tuple[str, Given, Given], ...] = (
        ("[3, T, 37] by [3, 37, 33]", a, Given((3, 37, 33))),
        ("[3, T, 37] by [37, 5]", a, Given((37, 5))),
        ("[2, 1, T, 4] by [3, 4, 40]", Given((2, 1, T, 4)), Given((3, 4, 40))),
        ("[1, 4, 1] by [1, 1, T]", Given((1, 4, 1)), Given((1, 1, T))),
        ("[2, 5, T] by [2, T, 9]", Given((2, 5, T)), Given((2, T, 9))),
    )
    yield from (Case("matmul", label, (left, right), {}, None, _SUM, True) for label, left, right in shapes)
