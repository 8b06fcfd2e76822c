"""linear_q and gated_linear_q: int8 activations. Integer parts are exact, and a row's result does not depend on the rows beside it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mixplan.passes.precision.schemes import parse_scheme
from mixplan.runtime.packing import quantize_act
from mixplan.targets.cpu.codegen.ops.linear import weight_type

CASES = [
    ("W8A8", 45),
    ("W8A8:asym", 576),
    ("W8A8:g64", 200),
    ("W4A8:g32", 100),
    ("W4A8:g32,asym", 576),
    ("W4A8:g64", 200),
    ("W4A8:g128,asym", 300),
    ("W4A8:g32", 2000),
    ("W6A8:g32", 100),
    ("W5A8:g64,min", 200),
    ("W3A8:g32,asym,s8", 576),
    ("W2A8:g128,s32", 300),
    ("W8A8:g32,s8", 100),
    ("W4A8:g32,min,s8", 100),
    ("W5A8:g32,nl,s8", 576),
    ("W4A8:g32,nl,s8", 576),
    ("W3A8:g64,nl", 200),
    ("W2A8:g32,nl,s8", 2000),
]
ROWS = [1, 2, 3, 4, 5, 9, 20, 70]


def _consts(case: tuple[Any, ...]) -> str:
    scheme, columns = case
    return f"{weight_type(parse_scheme(scheme).weight)}, {columns}"


GATED = [CASES[0], CASES[3], CASES[6], ("W4A8:g32,nl,s8", 576), ("W5A8:g64,min", 200)]
KERNELS = [f"linear_q<{_consts(c)}>" for c in CASES] + [f"gated_linear_q<{_consts(c)},Fn::Silu>" for c in GATED]
PROLOGUES = [("W3A8:g64,nl", 200), ("W4A8:g32", 100), ("W4A8:g64", 200), ("W8A8:asym", 576)]
KERNELS += [f"linear_q<{_consts(c)},Pre::{pre}>" for c in PROLOGUES for pre in ("Plain", "Rms", "Layer")]
EXTRA = 'extern "C" int64_t scratch(int64_t nt, int64_t k) { return linear_scratch((int)nt, k); }'


def _run(native: Any, kernel: str, weight: Any, x: np.ndarray, make_scratch: Any, threads: int, **extra: Any) -> np.ndarray:
    q, scales, sums = quantize_act(x, weight.fmt.group_size)
    y = np.zeros((len(x), weight.rows), np.float32)
    native.call(
        kernel,
        threads=threads,
        q=q,
        ldq=q.shape[1],
        q_scales=scales,
        q_sums=sums,
        ldg=scales.shape[1],
        **weight.fields,
        y=y,
        ldy=weight.rows,
        m=len(x),
        n=weight.rows,
        scratch=make_scratch(native.number("scratch", threads, weight.columns)),
        **extra,
    )
    return y


@pytest.mark.parametrize("extreme", [False, True], ids=["random", "extreme"])
@pytest.mark.parametrize("case", CASES, ids=lambda c: "-".join(map(str, c)))
def test_linear_q(
    native: Any, case: tuple[Any, ...], extreme: bool, make_weight: Any, reference: Any, make_scratch: Any, tolerance: Any
) -> None:
    """extreme: every code is the largest and every activation the same, so that a saturating product would show."""
    scheme, columns = case
    fmt = parse_scheme(scheme).weight
    rng = np.random.default_rng(columns)
    outputs = 101
    weight = make_weight(rng, fmt, outputs, columns, extreme=extreme)
    bias = rng.standard_normal(outputs).astype(np.float32)
    for rows in ROWS:
        x = rng.standard_normal((rows, columns)).astype(np.float32)
        if extreme:
            x = np.where(np.arange(rows)[:, None] % 2, -1.0, 1.0) * np.ones((rows, columns), np.float32)
            x = x.astype(np.float32)
        residual = rng.standard_normal((rows, outputs)).astype(np.float32) if rows % 2 else None
        q, scales, sums = quantize_act(x, fmt.group_size)
        (want,) = reference("linear_q", weight.attrs, [q, scales, sums, *weight.arrays, bias, residual])
        y = _run(native, f"linear_q<{_consts(case)}>", weight, x, make_scratch, 1 + rows % 3, bias=bias, residual=residual, ldr=outputs)
        rtol, atol = tolerance(native, rows, fmt.bits == 8)
        np.testing.assert_allclose(y, want, rtol=rtol, atol=atol * np.abs(want).max())


@pytest.mark.parametrize("case", GATED, ids=lambda c: "-".join(map(str, c)))
def test_gated_q(native: Any, case: tuple[Any, ...], make_weight: Any, reference: Any, make_scratch: Any, tolerance: Any) -> None:
    scheme, columns = case
    fmt = parse_scheme(scheme).weight
    rng = np.random.default_rng(5)
    outputs = 70
    weight = make_weight(rng, fmt, outputs, columns, "gated")
    bias = rng.standard_normal((2, outputs)).astype(np.float32)
    for rows in ROWS:
        x = (rng.standard_normal((rows, columns)) / np.sqrt(columns)).astype(np.float32)
        q, scales, sums = quantize_act(x, fmt.group_size)
        (want,) = reference("gated_linear_q", {**weight.attrs, "activation": "silu"}, [q, scales, sums, *weight.arrays, bias])
        y = _run(native, f"gated_linear_q<{_consts(case)},Fn::Silu>", weight, x, make_scratch, 1 + rows % 3, bias=bias)
        rtol, atol = tolerance(native, rows, fmt.bits == 8)
        np.testing.assert_allclose(y, want, rtol=2 * rtol, atol=1e-5 + atol * np.abs(want).max())


@pytest.mark.parametrize("case", CASES, ids=lambda c: "-".join(map(str, c)))
def test_rows_do_not_depend_on_the_batch(native: Any, case: tuple[Any, ...], make_weight: Any, make_scratch: Any, tolerance: Any) -> None:
    """But on AMX, where many rows by 4-bit weights are multiplied in bf16."""
    scheme, columns = case
    fmt = parse_scheme(scheme).weight
    rng = np.random.default_rng(9)
    weight = make_weight(rng, fmt, 40, columns)
    x = rng.standard_normal((300, columns)).astype(np.float32)
    kernel = f"linear_q<{_consts(case)}>"
    all_rows = _run(native, kernel, weight, x, make_scratch, 2)
    for first, last in ((0, 1), (1, 3), (3, 7), (7, 20), (290, 300)):
        some = _run(native, kernel, weight, x[first:last], make_scratch, 1)
        rtol, atol = tolerance(native, len(x), fmt.bits == 8)
        if native.level != "amx" or fmt.bits == 8:
            rtol = atol = 0.0
        np.testing.assert_allclose(some, all_rows[first:last], rtol=rtol, atol=atol * np.abs(all_rows).max())


@pytest.mark.parametrize("pre", ["Plain", "Rms", "Layer"])
@pytest.mark.parametrize("case", PROLOGUES, ids=lambda c: "-".join(map(str, c)))
def test_prologue(native: Any, case: tuple[Any, ...], pre: str, make_weight: Any, reference: Any, make_scratch: Any) -> None:
    """Few rows are normed and quantized by every thread for itself, and give what the separate ops give; more rows use the given q."""
    scheme, columns = case
    fmt = parse_scheme(scheme).weight
    rng = np.random.default_rng(columns)
    weight = make_weight(rng, fmt, 70, columns)
    norm_weight, norm_bias = rng.standard_normal((2, columns)).astype(np.float32)
    for rows, few, threads in ((1, 4, 1), (1, 4, 3), (3, 4, 2), (4, 4, 2), (5, 4, 2)):
        wide = rng.standard_normal((rows, columns + 7)).astype(np.float32)
        x = wide[:, :columns]
        ops = {
            "Plain": ("quantize_act", []),
            "Rms": ("rms_norm_quant", [norm_weight]),
            "Layer": ("layer_norm_quant", [norm_weight, norm_bias]),
        }
        op, parameters = ops[pre]
        attrs = {"group": fmt.group_size} | ({} if pre == "Plain" else {"eps": 1e-5})
        quantized = reference(op, attrs, [x, *parameters])
        (want,) = reference("linear_q", weight.attrs, [*quantized, *weight.arrays, None, None])
        q, scales, sums = quantized if rows > few else quantize_act(np.full_like(x, np.nan), fmt.group_size)
        y = np.zeros((rows, 70), np.float32)
        native.call(
            f"linear_q<{_consts(case)},Pre::{pre}>",
            threads=threads,
            q=q,
            ldq=q.shape[1],
            q_scales=scales,
            q_sums=sums,
            ldg=scales.shape[1],
            **weight.fields,
            y=y,
            ldy=70,
            m=rows,
            n=70,
            scratch=make_scratch(native.number("scratch", threads, columns)),
            x=wide,
            ldx=wide.shape[1],
            norm_weight=norm_weight if parameters else None,
            norm_bias=norm_bias,
            eps=1e-5,
            few=few,
        )
        # A value on the edge between two codes may fall on either side of it when a norm's sum is added in another order.
        np.testing.assert_allclose(y, want, rtol=1e-5, atol=(2e-6 if pre == "Plain" else 5e-3) * np.abs(want).max())
