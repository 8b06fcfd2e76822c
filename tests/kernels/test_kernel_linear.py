"""linear and gated_linear against the numpy references: every format, tails in every dimension, one to three threads."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mixplan.passes.precision.schemes import parse_scheme
from mixplan.targets.cpu.codegen.ops.linear import weight_type

CASES = [
    ("FP32", 45, "F32"),
    ("FP32", 800, "F32"),
    ("BF16", 45, "F32"),
    ("BF16", 45, "BF16"),
    ("BF16", 1100, "BF16"),
    ("W8A8", 45, "F32"),
    ("W8A8:g64,asym", 130, "F32"),
    ("W4A8:g32", 100, "F32"),
    ("W4A8:g64,asym", 420, "F32"),
    ("W4A8:g128", 128, "F32"),
    ("W6A8:g32", 100, "F32"),
    ("W5A8:g64,min", 200, "F32"),
    ("W3A8:g32,asym,s8", 576, "F32"),
    ("W2A8:g128,s32", 300, "F32"),
    ("W8A8:g32,s8", 100, "F32"),
    ("W4A8:g32,min,s8", 100, "F32"),
    ("W5A8:g32,nl,s8", 576, "F32"),
    ("W4A8:g32,nl,s8", 576, "F32"),
    ("W3A8:g64,nl", 200, "F32"),
    ("W2A8:g32,nl,s8", 1000, "F32"),
    ("W8A16:e4m3", 45, "F32"),
    ("FP8", 420, "E4M3"),
    ("FP8:g64", 200, "E4M3"),
    ("BF16", 45, "E4M3"),
]
ROWS = [1, 2, 3, 4, 5, 9, 20, 70]


def _consts(case: tuple[Any, ...]) -> str:
    scheme, columns, act = case
    return f"{weight_type(parse_scheme(scheme).weight)}, {columns}, Act::{act}"


GATED = [(CASES[0], "silu", "Silu"), (CASES[3], "gelu_tanh", "GeluTanh"), (CASES[8], "gelu", "Gelu"), (CASES[18], "silu", "Silu")]
GATED += [(CASES[-3], "silu", "Silu")]
KERNELS = [f"linear<{_consts(c)}>" for c in CASES] + [f"gated_linear<{_consts(c)},Fn::{fn}>" for c, _, fn in GATED]
EXTRA = 'extern "C" int64_t scratch(int64_t nt, int64_t k) { return linear_scratch((int)nt, k); }'


@pytest.mark.parametrize("case", CASES, ids=lambda c: "-".join(map(str, c)))
def test_linear(
    native: Any, case: tuple[Any, ...], make_weight: Any, reference: Any, make_scratch: Any, scratch_intact: Any, tolerance: Any
) -> None:
    scheme, columns, act = case
    fmt = parse_scheme(scheme).weight
    rng = np.random.default_rng(columns)
    outputs = 101
    weight = make_weight(rng, fmt, outputs, columns)
    bias = rng.standard_normal(outputs).astype(np.float32)
    for rows in ROWS:
        threads = 1 + rows % 3
        wide = rng.standard_normal((rows, columns + 3)).astype(np.float32)
        residual = rng.standard_normal((rows, outputs)).astype(np.float32) if rows % 2 else None
        x = np.ascontiguousarray(wide[:, :columns])
        attrs = {**weight.attrs, "activation_dtype": act.lower()}
        (want,) = reference("linear", attrs, [x[None], *weight.arrays, bias, None if residual is None else residual[None]])
        y = np.full((rows, outputs + 2), 7.0, np.float32)
        block = make_scratch(native.number("scratch", threads, columns))
        native.call(
            f"linear<{_consts(case)}>",
            threads=threads,
            x=wide,
            ldx=columns + 3,
            **weight.fields,
            bias=bias,
            residual=residual,
            ldr=outputs,
            y=y,
            ldy=outputs + 2,
            m=rows,
            n=outputs,
            scratch=block,
        )
        scratch_intact(block)
        np.testing.assert_array_equal(y[:, outputs:], 7.0)
        scale = np.abs(want).max()
        # Numbers of e4m3 are bf16 too, and scales per row meet the sums.
        exact = scheme == "FP32" or act == "BF16" or (act == "E4M3" and not fmt.group_size)
        rtol, atol = tolerance(native, rows, exact)
        np.testing.assert_allclose(y[:, :outputs], want[0], rtol=rtol, atol=atol * scale + 1e-6)


@pytest.mark.parametrize(("case", "activation", "fn"), GATED, ids=lambda c: c[0] if isinstance(c, tuple) else c)
def test_gated(
    native: Any, case: tuple[Any, ...], activation: str, fn: str, make_weight: Any, reference: Any, make_scratch: Any, tolerance: Any
) -> None:
    scheme, columns, act = case
    fmt = parse_scheme(scheme).weight
    rng = np.random.default_rng(5)
    outputs = 70
    weight = make_weight(rng, fmt, outputs, columns, "gated")
    bias = rng.standard_normal((2, outputs)).astype(np.float32)
    for rows in ROWS:
        x = (rng.standard_normal((rows, columns)) / np.sqrt(columns)).astype(np.float32)
        attrs = {**weight.attrs, "activation_dtype": act.lower(), "activation": activation}
        (want,) = reference("gated_linear", attrs, [x[None], *weight.arrays, bias])
        y = np.zeros((rows, outputs), np.float32)
        threads = 1 + rows % 3
        native.call(
            f"gated_linear<{_consts(case)},Fn::{fn}>",
            threads=threads,
            x=x,
            ldx=columns,
            **weight.fields,
            bias=bias,
            y=y,
            ldy=outputs,
            m=rows,
            n=outputs,
            scratch=make_scratch(native.number("scratch", threads, columns)),
        )
        rtol, atol = tolerance(native, rows, scheme == "FP32")
        np.testing.assert_allclose(y, want[0], rtol=rtol, atol=1e-5 + atol * np.abs(want).max())


def test_residual_in_place_and_many_rows(native: Any, make_weight: Any, reference: Any, make_scratch: Any) -> None:
    """More rows than one block of rows, split over threads by rows; the residual is the output's own buffer."""
    rng = np.random.default_rng(1)
    columns, outputs, rows = 45, 20, 601
    weight = make_weight(rng, parse_scheme("FP32").weight, outputs, columns)
    x = rng.standard_normal((rows, columns)).astype(np.float32)
    y = rng.standard_normal((rows, outputs)).astype(np.float32)
    (want,) = reference("linear", weight.attrs, [x, *weight.arrays, None, y.copy()])
    block = make_scratch(native.number("scratch", 4, columns))
    kernel = f"linear<{_consts(CASES[0])}>"
    fields = weight.fields
    native.call(kernel, threads=4, x=x, ldx=columns, **fields, residual=y, ldr=outputs, y=y, ldy=outputs, m=rows, n=outputs, scratch=block)
    np.testing.assert_allclose(y, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("case", [CASES[5], CASES[8], CASES[18], CASES[-3]], ids=lambda c: "-".join(map(str, c)))
def test_hard_activations(native: Any, case: tuple[Any, ...], make_weight: Any, reference: Any, make_scratch: Any) -> None:
    """Zeros, tiny and huge numbers, one that is far larger than its neighbours; NaN and infinity spoil their own row alone."""
    scheme, columns, act = case
    rng = np.random.default_rng(2)
    weight = make_weight(rng, parse_scheme(scheme).weight, 40, columns)
    x = rng.standard_normal((8, columns)).astype(np.float32)
    x[0] = 0
    x[1] *= np.float32(1e-25)
    x[2] *= np.float32(1e25)
    x[3, 7] = 3e4
    x[4] = np.where(np.arange(columns) % 2, 127.0, -127.0)
    x[5, 3], x[6, 9] = np.nan, np.inf
    (want,) = reference("linear", {**weight.attrs, "activation_dtype": act.lower()}, [x, *weight.arrays, None, None])
    for first, last in ((0, 4), (4, 5), (5, 8), (0, 8)):
        y = np.zeros((last - first, 40), np.float32)
        native.call(
            f"linear<{_consts(case)}>",
            x=x[first:last],
            ldx=columns,
            **weight.fields,
            y=y,
            ldy=40,
            m=last - first,
            n=40,
            scratch=make_scratch(native.number("scratch", 1, columns)),
        )
        for row, expected in zip(y, want[first:last], strict=True):
            if not np.isfinite(expected).all():
                assert not np.isfinite(row).any()
                continue
            # bf16 where the level has tiles; they take numbers below 2^-126 for 0.
            tolerance = 2**-7 if native.level == "amx" else 2e-6
            np.testing.assert_allclose(row, expected, rtol=0, atol=tolerance * np.abs(expected).max() + 1e-37)
