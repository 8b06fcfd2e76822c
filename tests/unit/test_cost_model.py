"""Bytes and operations of nodes against numbers worked out by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from mixplan.runtime.cost import Cost, Limits, Work, limit_seconds, node_cost, plan_cost
from mixplan.runtime.dtypes import DType
from mixplan.runtime.errors import OptionError
from mixplan.runtime.kv_format import KvFormat
from mixplan.runtime.plan import SCHEMA_VERSION, AttentionLayer, Model, Node, Plan, Provenance, Shape, Sym, Value

T, R = Sym("T"), Sym("R")
DECODE = Work.decode(context=9, batch=3)


def _plan(op: str, inputs: Sequence[tuple[str, DType, Shape]], outputs: Sequence[tuple[DType, Shape]], **attrs: Any) -> Plan:
    """One node: inputs are (kind, dtype, shape), "none" for one left out."""
    values = [Value(f"in{i}", kind, dtype, shape) for i, (kind, dtype, shape) in enumerate(inputs) if kind != "none"]  # type: ignore[arg-type]
    places = iter(range(len(values)))
    given = tuple(-1 if kind == "none" else next(places) for kind, _, _ in inputs)
    made = tuple(range(len(values), len(values) + len(outputs)))
    values += [Value(f"out{i}", "node", dtype, shape) for i, (dtype, shape) in enumerate(outputs)]
    return Plan(
        schema_version=SCHEMA_VERSION,
        name="one",
        model=Model("One", 100, 64, 0),
        values=tuple(values),
        nodes=(Node(op, given, made, attrs),),
        regions=(),
        outputs=made,
        attention=(AttentionLayer(2, 8, 8, KvFormat.f16),),
        max_step_tokens=64,
        decisions=(),
        effective_bits=4.5,
        provenance=Provenance("none", "", {}, {}, {}),
    )


def _cost(plan: Plan, work: Work = DECODE) -> Cost:
    assert node_cost(plan, plan.nodes[0], work) == plan_cost(plan, work)
    return plan_cost(plan, work)


def test_an_int4_product() -> None:
    # 48 outputs of 64 inputs: 3 blocks of 16 rows; codes 48 * 64 / 2, scales 48 * 2 groups in f16.
    plan = _plan(
        "linear_q",
        [
            ("node", DType.i8, (1, T, 64)),
            ("node", DType.f32, (1, T, 2)),
            ("node", DType.f32, (1, T, 2)),
            ("const", DType.u8, (3, 8, 16, 4)),
            ("const", DType.f16, (3, 2, 16)),
        ],
        [(DType.f32, (1, T, 48))],
        format="i4",
        rows=48,
        columns=64,
        group_size=32,
    )
    assert _cost(plan) == Cost(weight_bytes=1536 + 192, activation_bytes=3 * 64 + 2 * 3 * 2 * 4 + 3 * 48 * 4, int8_ops=2 * 3 * 48 * 64)


@pytest.mark.parametrize(("dtype", "kind"), [("f32", "f32_ops"), ("bf16", "bf16_ops")])
def test_a_float_product_counts_by_its_activations(dtype: str, kind: str) -> None:
    plan = _plan(
        "linear",
        [
            ("node", DType.f32, (1, R, 32)),
            ("const", DType.bf16, (1, 16, 16, 2)),
            *[("none", DType.f32, ())] * 3,
            ("node", DType.f32, (1, R, 16)),
        ],
        [(DType.f32, (1, R, 16))],
        format="bf16",
        rows=16,
        columns=32,
        activation_dtype=dtype,
    )
    # One row is asked for, whatever the number of tokens; the residual is read too.
    wanted = Cost(weight_bytes=1024, activation_bytes=32 * 4 + 16 * 4 + 16 * 4, **{kind: 2 * 16 * 32})  # type: ignore[arg-type]
    assert _cost(plan, Work.prefill(20)) == wanted


def test_a_gated_product_has_two_weights() -> None:
    plan = _plan(
        "gated_linear",
        [("node", DType.f32, (1, T, 32)), ("const", DType.f32, (2, 32, 16))],
        [(DType.f32, (1, T, 16))],
        format="f32",
        rows=16,
        columns=32,
        activation="silu",
    )
    assert _cost(plan).f32_ops == 2 * (3 * 16) * 2 * 32
    assert _cost(plan).weight_bytes == 2 * 16 * 32 * 4


def test_no_more_experts_are_read_than_rows_are_routed() -> None:
    plan = _plan(
        "grouped_linear",
        [("node", DType.f32, (1, T, 1, 32)), ("node", DType.i64, (1, T, 2)), ("const", DType.f32, (8, 32, 16))],
        [(DType.f32, (1, T, 2, 16))],
        format="f32",
        rows=16,
        columns=32,
        experts=8,
    )
    assert _cost(plan).weight_bytes == 6 * 16 * 32 * 4  # 3 tokens of 2 experts each
    assert _cost(plan, Work.prefill(9)).weight_bytes == 8 * 16 * 32 * 4
    assert _cost(plan).f32_ops == 2 * 6 * 16 * 32


def test_an_embedding_reads_its_rows_only() -> None:
    plan = _plan(
        "embedding",
        [("input", DType.i64, (1, T)), ("const", DType.f32, (4, 32, 16))],
        [(DType.f32, (1, T, 32))],
        format="f32",
        rows=64,
        columns=32,
    )
    assert _cost(plan).weight_bytes == 3 * 32 * 4


def _attention(**attrs: Any) -> Plan:
    heads = [("node", DType.f32, (1, T, count, 8)) for count in (4, 2, 2)]
    return _plan("attention", heads, [(DType.f32, (1, T, 4, 8))], layer=0, scale=1.0, **attrs)


def test_attention_decodes() -> None:
    cost = _cost(_attention())
    # 3 sequences of 10 positions (the new one too) are read, 3 written: 2 heads of 8 + 8 f16 each.
    assert cost.kv_bytes == (30 + 3) * 2 * 16 * 2
    assert cost.f32_ops == 30 * 4 * (2 * 16 + 5)


def test_attention_prefills_a_triangle() -> None:
    cost = _cost(_attention(), Work.prefill(4, start=3))
    assert cost.f32_ops == (4 + 5 + 6 + 7) * 4 * (2 * 16 + 5)
    assert cost.kv_bytes == (7 + 4) * 2 * 16 * 2


@pytest.mark.parametrize(("mask", "pairs", "read"), [("causal", 3 + 4 + 4 + 4, 6), ("chunked", 3 + 4 + 1 + 2, 6)])
def test_windows(mask: str, pairs: int, read: int) -> None:
    work = Work.prefill(4, start=2)
    assert work.attended(4, mask) == pairs
    assert work.positions_read(4, mask) == read
    assert Work.decode(context=9).positions_read(4, mask) == {"causal": 4, "chunked": 2}[mask]


def test_views_are_free() -> None:
    plan = _plan("reshape", [("node", DType.f32, (1, T, 32))], [(DType.f32, (1, T, 4, 8))])
    assert _cost(plan) == Cost()


def test_nothing_is_counted_where_no_rows_are_wanted() -> None:
    plan = _plan("silu", [("node", DType.f32, (1, R, 32))], [(DType.f32, (1, R, 32))])
    assert _cost(plan, Work(((0, 4),), 0)) == Cost()
    assert _cost(plan, Work(((0, 4),), 2)) == Cost(activation_bytes=2 * 2 * 32 * 4, f32_ops=4 * 64)


@pytest.mark.parametrize("spans", [(), ((3, 3),), ((-1, 2),)])
def test_a_step_that_cannot_be(spans: tuple[tuple[int, int], ...]) -> None:
    with pytest.raises(OptionError, match="cannot be"):
        Work(spans, 0)


def test_the_roofline_is_the_slower_of_moving_and_computing() -> None:
    limits = Limits(bandwidth=lambda size: 100.0 if size > 1000 else 1000.0, int8=50.0, f32=10.0)
    assert limit_seconds(Cost(weight_bytes=500, kv_bytes=500), limits) == 1.0
    assert limit_seconds(Cost(weight_bytes=500, kv_bytes=500), limits, working_set=2000) == 10.0
    assert limit_seconds(Cost(activation_bytes=800), limits) == 0.8
    assert limit_seconds(Cost(weight_bytes=100, int8_ops=100, f32_ops=10), limits) == 3.0
    assert limit_seconds(Cost(bf16_ops=100), limits) == 0.0  # no peak is known
