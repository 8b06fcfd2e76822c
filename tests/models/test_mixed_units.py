"""One plan on the CPU and an NPU: what moves, why, and that the results are those of the CPU alone."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest

from mixplan.compiler.frontends.tiny import tiny_model
from mixplan.compiler.pipeline import compile as compile_plan
from mixplan.compiler.placing.partition import partition_mixed
from mixplan.compiler.placing.rules import PlacingRules
from mixplan.runtime import load
from mixplan.runtime.errors import OptionError
from mixplan.runtime.explain_placement import explain_placement
from mixplan.runtime.plan_check_graph import check_regions
from mixplan.runtime.plan_io import read_plan
from mixplan.targets.base import CostModel
from mixplan.targets.npu.lower.table import LOWERINGS
from mixplan.targets.registry import get_target

# An NPU as they are: quick with integers, and no match for a CPU in what is float.
COSTS = ("cpu:int8=1GOPS,f32=1GFLOPS,bandwidth=1GB/s", "npu:int8=1TOPS,f32=0.01GFLOPS,bandwidth=1TB/s,call=10us")
TEXT = np.random.default_rng(7).integers(3, 250, 64).tolist()


def _logits(plan: Path) -> np.ndarray:
    ids = np.random.default_rng(2).integers(3, 250, 30)
    with load(plan, kv_tokens=256, max_sequences=2) as model:
        rows = [model.step(ids[:20], np.arange(20), np.zeros(20, int), "all")]
        rows.append(model.step(ids[20:25], [0, 1, 2, 20, 21], [5, 5, 5, 0, 0], "all"))
        rows += [model.step(ids[25 + i : 27 + i], [22 + i, 3 + i], [0, 5], "last") for i in range(2)]
    return np.concatenate(rows)


def test_a_plan_on_the_cpu_and_an_npu(tmp_path: Path) -> None:
    """The products of the first layer's wide MLP are worth the way. Others are small, and the last layer's have one row each."""
    model = tiny_model("llama", num_hidden_layers=2, intermediate_size=512)
    common = {"scheme": "W8A8", "isa": ("native",), "kv_dtype": "f32", "text": TEXT, "quantizer": "round", "scaling": "none"}
    compile_plan(model, output=tmp_path / "cpu.plan", **common)
    mixed = {"targets": ("cpu+npu",), "unit_costs": COSTS, "move_above": "10ms", "boundary_below": "2MB"}
    report = compile_plan(model, output=tmp_path / "mixed.plan", **mixed, **common)
    assert [region.device for region in report.regions] == ["cpu", "npu", "cpu", "npu", "cpu"]
    told = explain_placement(tmp_path / "mixed.plan")
    assert told["regions"][1]["reason"].startswith("moved: ") and "on cpu against" in told["regions"][1]["reason"]
    assert "npu would take it, but its" in told["regions"][0]["reason"] or told["regions"][0]["reason"].startswith("stays: ")
    assert [row["op"] for row in told["nodes"] if row["device"] == "npu"] == ["gated_linear_q", "linear_q"]
    got, wanted = _logits(tmp_path / "mixed.plan"), _logits(tmp_path / "cpu.plan")
    # Codes and scales cross the border as the CPU made them, and their products are exact on both sides. Scales are multiplied in another
    # order, and a number halfway between two codes may then go the other way.
    assert np.sqrt(np.mean((got - wanted) ** 2)) < 2e-3 * wanted.std()
    np.testing.assert_array_equal(got.argmax(-1), wanted.argmax(-1))


def test_what_one_unit_cannot_do_the_other_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Experts without an ONNX lowering stay on the other unit, the reference device here."""
    monkeypatch.delitem(LOWERINGS, "grouped_linear")
    plan = tmp_path / "m.plan"
    costs = ("reference:f32=1GFLOPS,bandwidth=1GB/s", "npu:f32=1TFLOPS,bandwidth=1TB/s,call=10us")
    compile_plan(
        tiny_model("mixtral"),
        output=plan,
        scheme="W4A16",
        targets=("reference+npu",),
        unit_costs=costs,
        move_above="1us",
        transfer="1TB/s+1us",
    )
    told = explain_placement(plan)
    devices = {row["op"]: row["device"] for row in told["nodes"]}
    assert devices["grouped_linear"] == "reference" and devices["attention"] == devices["linear"] == "npu"
    assert next(row["reason"] for row in told["nodes"] if row["op"] == "grouped_linear") == (
        "not on npu: op 'grouped_linear' has no ONNX lowering"
    )
    ids = np.arange(3, 15)
    step = (ids, np.arange(12), np.zeros(12, int), "all")
    with load(plan, kv_tokens=64) as model, load(plan, device="reference", kv_tokens=64) as other:
        assert {placed.device for placed in model.placement} == {"npu", "reference"}
        np.testing.assert_allclose(model.step(*step), other.step(*step), 5e-3, 5e-3)


def test_greedy_tokens_are_those_of_the_cpu_where_formats_are_exact(tmp_path: Path) -> None:
    """Experts and all that goes with them move to the NPU; the CPU plan is the measure."""
    plans = [tmp_path / name for name in ("cpu.plan", "mixed.plan")]
    common = {"scheme": "FP32", "isa": ("native",), "kv_dtype": "f32"}
    costs = ("cpu:f32=1GFLOPS,bandwidth=1GB/s", "npu:f32=1TFLOPS,bandwidth=1TB/s,call=1us")
    mixed = {"targets": ("cpu+npu",), "unit_costs": costs, "move_above": "30us", "boundary_below": "4MB", "transfer": "1TB/s+1us"}
    compile_plan(tiny_model("mixtral"), output=plans[0], **common)
    compile_plan(tiny_model("mixtral"), output=plans[1], **mixed, **common)
    told = explain_placement(plans[1])
    assert "npu" in {row["device"] for row in told["nodes"] if row["op"] == "grouped_linear"}
    chosen = []
    for plan in plans:
        with load(plan, kv_tokens=128) as model:
            ids, rows = list(range(3, 15)), model.step(list(range(3, 15)), list(range(12)), [0] * 12, "last")
            for at in range(12, 28):
                ids.append(int(rows[-1].argmax()))
                rows = model.step(ids[-1:], [at], [0], "last")
        chosen.append((ids, rows))
    assert chosen[0][0] == chosen[1][0]
    np.testing.assert_allclose(chosen[0][1], chosen[1][1], 1e-4, 1e-4)


def test_options_of_placing_need_units_to_choose_from(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="nothing is weighed"):
        compile_plan("no such checkpoint", output=tmp_path / "m.plan", targets=("cpu",), move_above="1ms")
    with pytest.raises(OptionError, match="stands for all"):
        compile_plan("no such checkpoint", output=tmp_path / "m.plan", targets=("cpu+npu", "reference"))
    with pytest.raises(OptionError, match="twice"):
        compile_plan("no such checkpoint", output=tmp_path / "m.plan", targets=("cpu+cpu",))


def test_a_gpu_and_the_cpu_simulated(tmp_path: Path) -> None:
    """No GPU is needed to say what it would take: the targets answer, and costs are stated as a data sheet has them."""
    compile_plan(tiny_model("qwen2"), output=tmp_path / "m.plan", scheme="W4A16", targets=("reference",))
    with read_plan(tmp_path / "m.plan") as loaded:
        plan = msgspec.structs.replace(loaded.plan, regions=())
    gpu, cpu = get_target("gpu"), get_target("cpu")
    costs = {"gpu": CostModel(bandwidth=2e12, f32=5e13, bf16=5e14, call_seconds=2e-5), "cpu": CostModel(bandwidth=2e10, f32=1e11)}
    parts = partition_mixed(plan, [gpu, cpu], PlacingRules(costs=costs))
    check_regions(msgspec.structs.replace(plan, nodes=tuple(parts.nodes), regions=tuple(parts.regions)))
    refused = {node.name for node in plan.nodes if not gpu.supports(node, plan.values)}
    placed = {node.name: region.device for region in parts.regions for node in parts.nodes[region.start : region.stop]}
    assert set(placed.values()) <= {"gpu", "cpu"} and "gpu" in placed.values()
    assert refused <= {name for name, device in placed.items() if device == "cpu"}
    # The same units with the CPU as home: a prompt is worth the way, a decode step of so small a model is not.
    for tokens, device in ((256, "gpu"), (1, "cpu")):
        home = partition_mixed(plan, [cpu, gpu], PlacingRules(costs=costs, tokens=tokens))
        assert [region.device for region in home.regions] == [device]
    # A GPU's own costs, of the one that is here or as its maker says, lead to the same.
    own = partition_mixed(plan, [cpu, gpu], PlacingRules(costs={"cpu": costs["cpu"]}))
    assert [region.device for region in own.regions] == ["gpu"]
    told = own.facts["costs"].split("; ")
    assert told[0] == "cpu: 20 GB/s, 0.1 TOPS f32 (stated)" and told[1].startswith("gpu: ") and "us a node" in told[1]
