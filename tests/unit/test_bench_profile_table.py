"""Which op did which node's work, and what the tables call it."""

from __future__ import annotations

from pathlib import Path

import pytest

from mixplan.runtime import read_plan
from mixplan.runtime.bench.attribution import StepProfile, attribute
from mixplan.runtime.bench.profile_table import profile_to_dict
from mixplan.runtime.cost import Limits, Work, plan_cost
from mixplan.runtime.metrics import OpTime


def test_every_node_is_counted_once(tiny_llama_plan: Path) -> None:
    plan = read_plan(tiny_llama_plan).plan
    work = Work.decode(5)
    # An op for every third node: those between are done by the next.
    times = [OpTime(0, node, 0.0) for node in range(0, len(plan.nodes), 3)]
    ops = attribute(plan, times, [0.5] * len(times), [work])
    assert sorted(node for op in ops for node in op.nodes) == list(range(len(plan.nodes)))
    assert ops[1].nodes == (3, 1, 2)
    assert sum((op.cost for op in ops[1:]), ops[0].cost) == plan_cost(plan, work)


def test_a_region_without_times_of_ops_is_one_row(tiny_llama_plan: Path) -> None:
    plan = read_plan(tiny_llama_plan).plan
    (whole,) = attribute(plan, [OpTime(0, -1, 0.0)], [0.25], [Work.decode(5)])
    assert whole.nodes == () and whole.cost == plan_cost(plan, Work.decode(5))
    data = profile_to_dict(plan, StepProfile("decode", 1, 3, 0.3, (whole,)), None)
    assert data["by_kernel"][0]["name"] == "region on cpu" and data["by_layer"][0]["name"] == "all"
    assert data["overhead_seconds"] == pytest.approx(0.05)
    assert "limit_seconds" not in data


def test_sums_rates_and_shares(tiny_llama_plan: Path) -> None:
    plan = read_plan(tiny_llama_plan).plan
    work = Work.decode(5)
    times = [OpTime(0, node, 0.0) for node in range(len(plan.nodes))]
    profile = StepProfile("decode", 1, 3, 2.0, attribute(plan, times, [1.0 / len(times)] * len(times), [work]))
    data = profile_to_dict(plan, profile, Limits(lambda size: 1e9, f32=1e9))
    for grouping in ("kernel", "layer", "region"):
        rows = data[f"by_{grouping}"]
        assert sum(row["seconds"] for row in rows) == pytest.approx(1.0)
        assert sum(row["bytes"] for row in rows) == plan_cost(plan, work).bytes
        assert all(row["share_of_ceiling"] == pytest.approx(row["limit_seconds"] / row["seconds"]) for row in rows)
    names = {row["name"] for row in data["by_layer"]}
    assert {"head", "attention", "layers.*.mlp.down_proj", "layers.*.self_attn.q_proj+2"} <= names
    assert {"linear f32", "attention"} <= {row["name"] for row in data["by_kernel"]}
    assert data["share_of_ceiling"] == pytest.approx(data["limit_seconds"] / 2.0)
