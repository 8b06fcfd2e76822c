"""grouped_linear and embedding: packed tables read by expert or by row."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mixplan.passes.precision.schemes import parse_scheme
from mixplan.targets.cpu.codegen.ops.linear import weight_type

CASES = [
    ("FP32", 45),
    ("BF16", 45),
    ("W8A8", 45),
    ("W8A8:g32,asym", 70),
    ("W4A8:g32", 100),
    ("W4A8:g64,asym", 420),
    ("W6A8:g32", 100),
    ("W5A8:g64,min", 200),
    ("W3A8:g32,asym,s8", 576),
    ("W2A8:g128,s32", 300),
    ("W8A8:g32,s8", 100),
    ("W4A8:g32,min,s8", 100),
    ("W5A8:g32,nl,s8", 576),
    ("W4A8:g32,nl,s8", 576),
    ("W3A8:g64,nl", 200),
    ("W8A16:e4m3", 45),
    ("W8A16:g32,e4m3", 70),
]


def _consts(case: tuple[Any, ...]) -> str:
    scheme, columns = case
    return f"{weight_type(parse_scheme(scheme).weight)}, {columns}"


KERNELS = [f"{op}<{_consts(c)}>" for op in ("grouped_linear", "embedding") for c in CASES]
EXTRA = """extern "C" int64_t scratch(int64_t nt, int64_t k, int64_t rows, int64_t experts) {
  return grouped_linear_scratch((int)nt, k, rows, experts);
}"""


@pytest.mark.parametrize("case", CASES, ids=lambda c: "-".join(map(str, c)))
def test_grouped_linear(
    native: Any, case: tuple[Any, ...], make_weight: Any, reference: Any, make_scratch: Any, scratch_intact: Any, tolerance: Any
) -> None:
    scheme, columns = case
    fmt = parse_scheme(scheme).weight
    rng = np.random.default_rng(columns)
    experts, outputs = 6, 37
    weight = make_weight(rng, fmt, outputs, columns, str(experts))
    bias = rng.standard_normal((experts, outputs)).astype(np.float32)
    for tokens, chosen, shared, threads in ((1, 2, True, 2), (7, 3, False, 1), (150, 2, True, 3)):
        x = rng.standard_normal((tokens, 1 if shared else chosen, columns)).astype(np.float32)
        ids = rng.integers(0, experts + 1, (tokens, chosen))
        (want,) = reference("grouped_linear", {**weight.attrs, "experts": experts}, [x, ids, *weight.arrays, bias])
        y = np.full((tokens, chosen, outputs), 5, np.float32)
        block = make_scratch(native.number("scratch", threads, columns, tokens * chosen, experts))
        native.call(
            f"grouped_linear<{_consts(case)}>",
            threads=threads,
            x=x,
            ldx_t=x.shape[1] * columns,
            ldx_j=0 if shared else columns,
            ids=ids,
            **weight.fields,
            bias=bias,
            y=y,
            t=tokens,
            j=chosen,
            n=outputs,
            experts=experts,
            scratch=block,
        )
        scratch_intact(block)
        assert (y[ids == experts] == 0).all()
        rtol, atol = tolerance(native, tokens, scheme == "FP32")
        np.testing.assert_allclose(y, want, rtol=rtol, atol=atol * np.abs(want).max() + 1e-6)


def test_wild_expert_ids_give_zeros(native: Any, make_weight: Any, make_scratch: Any) -> None:
    weight = make_weight(np.random.default_rng(0), parse_scheme("FP32").weight, 37, 45, "2")
    ids = np.array([[-1, 2, 2**40, 1]])
    y = np.full((1, 4, 37), 5, np.float32)
    native.call(
        f"grouped_linear<{_consts(CASES[0])}>",
        x=np.ones((1, 45), np.float32),
        ldx_t=45,
        ldx_j=0,
        ids=ids,
        **weight.fields,
        y=y,
        t=1,
        j=4,
        n=37,
        experts=2,
        scratch=make_scratch(native.number("scratch", 1, 45, 4, 2)),
    )
    assert (y[0, :3] == 0).all() and (y[0, 3] != 0).any()


@pytest.mark.parametrize("case", CASES, ids=lambda c: "-".join(map(str, c)))
def test_embedding(native: Any, case: tuple[Any, ...], make_weight: Any, reference: Any) -> None:
    """Exact: a product of a small integer and a scale has one rounding."""
    scheme, columns = case
    fmt = parse_scheme(scheme).weight
    rng = np.random.default_rng(columns)
    weight = make_weight(rng, fmt, 37, columns)
    ids = rng.integers(0, 37, 21)
    (want,) = reference("embedding", weight.attrs, [ids, *weight.arrays])
    wild = np.concatenate([ids, [-1, 37, 2**40]])
    y = np.full((24, columns), 5, np.float32)
    native.call(f"embedding<{_consts(case)}>", threads=2, ids=wild, **weight.fields, y=y, ldy=columns, m=24, rows=37)
    np.testing.assert_array_equal(y[:21], want)
    assert (y[21:] == 0).all()
