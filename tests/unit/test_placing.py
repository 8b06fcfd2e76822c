"""Sharing a plan among compute units: by cost, with the rules of small work, and the borders checked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from mixplan.compiler.placing.boundaries import check_boundaries
from mixplan.compiler.placing.costs import unit_seconds
from mixplan.compiler.placing.partition import partition_mixed
from mixplan.compiler.placing.rules import PlacingRules, parse_placing
from mixplan.runtime.dtypes import DType
from mixplan.runtime.errors import OptionError, PlacementError
from mixplan.runtime.hardware import Hardware
from mixplan.runtime.plan import SCHEMA_VERSION, Model, Node, Plan, Provenance, Region, Sym, Value
from mixplan.runtime.plan_check_graph import check_regions
from mixplan.targets.base import Capabilities, CompiledRegion, CompileOptions, CostModel, Port, Support
from mixplan.targets.cpu.costs import cpu_costs
from mixplan.targets.gpu.costs import gpu_costs, gpu_record

SLOW, FAST = CostModel(bandwidth=1e9, f32=1e9), CostModel(bandwidth=1e12, f32=1e12, call_seconds=1e-5)


class _Unit:
    """Takes every op but those named."""

    def __init__(self, name: str, model: CostModel, without: Sequence[str] = ()) -> None:
        self.name, self._model, self._without = name, model, without

    def capabilities(self) -> Capabilities:
        return Capabilities(self.name, Support(True))

    def resolve_levels(self, wanted: Sequence[str]) -> tuple[str, ...]:
        return ()

    def supports(self, node: Node, values: Sequence[Value]) -> Support:
        return Support(node.op not in self._without, f"no {node.op}")

    def compile(self, plan: Plan, region: Region, options: CompileOptions) -> CompiledRegion:
        return CompiledRegion()

    def cost_model(self) -> CostModel:
        return self._model


def _plan(*ops: str, width: int = 64) -> Plan:
    """A chain: each op on the value before it; a product is [width, width] f32."""
    shape = (1, Sym("T"), width)
    values = [Value(name="x", kind="input", dtype=DType.f32, shape=shape)]
    nodes = []
    for i, op in enumerate(ops):
        source, made = (0 if not nodes else nodes[-1].outputs[0]), len(values)
        inputs: tuple[int, ...] = (source,)
        values.append(Value(name=f"n{i}", kind="node", dtype=DType.f32, shape=shape))
        if op == "matmul":
            values.append(Value(name=f"w{i}", kind="const", dtype=DType.f32, shape=(width, width), fill=0))
            inputs = (source, made + 1)
        nodes.append(Node(op=op, inputs=inputs, outputs=(made,), name=f"n{i}"))
    return Plan(
        schema_version=SCHEMA_VERSION,
        name="p",
        model=Model(architecture="a", vocab_size=1, context_length=1, parameters=1),
        values=tuple(values),
        nodes=tuple(nodes),
        regions=(),
        outputs=(nodes[-1].outputs[0],),
        attention=(),
        max_step_tokens=1,
        decisions=(),
        effective_bits=0.0,
        provenance=Provenance(source_format="", source_name="", source_files={}, options={}, versions={}),
    )


def _cut(plan: Plan, units: Sequence[_Unit], **rules: Any) -> list[tuple[str, int, str]]:
    parts = partition_mixed(plan, units, PlacingRules(**{"tokens": 16, **rules}))
    check_regions(Plan(**{**{name: getattr(plan, name) for name in plan.__struct_fields__}, "regions": tuple(parts.regions)}))
    return [(region.device, region.stop - region.start, region.reason) for region in parts.regions]


def _devices(plan: Plan, units: Sequence[_Unit], **rules: Any) -> list[tuple[str, int]]:
    return [(device, count) for device, count, _ in _cut(plan, units, **rules)]


def test_large_work_moves_and_says_what_it_costs() -> None:
    # 2 * 16 * 256 * 256 operations: 2.1 ms on the slow unit.
    plan = _plan("matmul", "matmul", width=256)
    ((device, count, reason),) = _cut(plan, [_Unit("cpu", SLOW), _Unit("npu", FAST)])
    assert (device, count) == ("npu", 2)
    assert reason.startswith("moved: 4.19 ms on cpu against") and "hand over 16,384 bytes" in reason and "16 tokens" in reason


def test_small_work_stays_and_says_why() -> None:
    plan = _plan("matmul", width=32)  # 33 us
    ((device, _, reason),) = _cut(plan, [_Unit("cpu", SLOW), _Unit("npu", FAST)], transfer_seconds=0.0)
    assert device == "cpu" and reason == "npu would take it, but its 32.8 us of compute is not over 100.0 us"
    assert _devices(plan, [_Unit("cpu", SLOW), _Unit("npu", FAST)], transfer_seconds=0.0, move_above=30e-6) == [("npu", 1)]


def test_a_large_boundary_stays() -> None:
    plan = _plan("matmul", width=256)
    ((device, _, reason),) = _cut(plan, [_Unit("cpu", SLOW), _Unit("npu", FAST)], boundary_below=16384)
    assert device == "cpu" and reason == "npu would take it, but the 16,384 bytes at its borders are not below 16,384"


def test_transfers_are_weighed() -> None:
    """In the middle stands what only the first unit takes: two moves there and back, or none."""
    plan = _plan("matmul", "sort", "matmul", width=256)
    units = [_Unit("cpu", SLOW), _Unit("npu", FAST, without=("sort",))]
    assert _devices(plan, units) == [("npu", 1), ("cpu", 1), ("npu", 1)]
    assert _devices(plan, units, transfer_seconds=0.1) == [("cpu", 3)]
    ((_, _, reason),) = _cut(plan, units, transfer_seconds=0.1)
    assert reason == "npu: no sort"


def test_what_only_the_other_unit_takes_moves_however_small() -> None:
    plan = _plan("square", "relu", "square", width=4)
    cut = _cut(plan, [_Unit("cpu", SLOW, without=("relu",)), _Unit("npu", FAST)])
    assert [(device, count) for device, count, _ in cut] == [("cpu", 1), ("npu", 1), ("cpu", 1)]
    assert cut[1][2] == "moved, since cpu: no relu"


def test_what_none_takes_goes_to_the_reference() -> None:
    plan = _plan("matmul", "relu", "matmul", width=256)
    units = [_Unit("gpu", FAST, without=("relu",)), _Unit("cpu", SLOW, without=("relu",))]
    cut = _cut(plan, units)
    assert [(device, count) for device, count, _ in cut] == [("gpu", 1), ("reference", 1), ("gpu", 1)]
    assert cut[1][2] == "gpu: no relu; cpu: no relu"
    assert partition_mixed(plan, units, PlacingRules()).notes[0] == "place: n1: not on gpu: no relu"


def test_gpu_and_cpu_share_by_what_each_takes() -> None:
    """The first unit is the fast one: only what it does not take is left to the CPU."""
    plan = _plan("matmul", "sort", "matmul", "matmul", width=128)
    assert _devices(plan, [_Unit("gpu", FAST, without=("sort",)), _Unit("cpu", SLOW)]) == [("gpu", 1), ("cpu", 1), ("gpu", 2)]


def test_borders_must_agree() -> None:
    plan = _plan("matmul", "matmul")
    regions = [
        Region(name="r0_a", device="a", start=0, stop=1, inputs=(0,), outputs=(1,)),
        Region(name="r1_b", device="b", start=1, stop=2, inputs=(1,), outputs=(3,)),
    ]
    right = CompiledRegion(ports={1: Port("f32", (1, Sym("T"), -1))})
    check_boundaries(plan, [(regions[0], right), (regions[1], right)])
    for port, words in (
        (Port("f16", (1, Sym("T"), 64)), "takes f16"),
        (Port("f32", (1, 16, 64)), "takes f32"),
        (Port("f32", (64,)), "takes"),
    ):
        with pytest.raises(PlacementError, match=words) as caught:
            check_boundaries(plan, [(regions[0], right), (regions[1], CompiledRegion(ports={1: port}))])
        assert "r1_b" in str(caught.value) and "region 'r0_a' (a)" in str(caught.value)
    with pytest.raises(PlacementError, match="gives f16"):
        check_boundaries(plan, [(regions[0], CompiledRegion(ports={1: Port("f16", (1, Sym("T"), 64))}))])
    with pytest.raises(PlacementError, match="no region before it"):
        check_boundaries(plan, [(regions[1], right)])


def test_settings_are_read_and_checked() -> None:
    rules = parse_placing(
        tokens=32,
        move_above="2ms",
        boundary_below="64kB",
        transfer="16GB/s+5us",
        unit_costs=["npu:int8=40TOPS,bandwidth=60GB/s,call=50us,launch=2us"],
    )
    assert (rules.tokens, rules.move_above, rules.boundary_below) == (32, 2e-3, 64e3)
    assert rules.transfer(16e9) == pytest.approx(1.0 + 5e-6)
    assert rules.costs["npu"] == CostModel(
        bandwidth=60e9, int8=40e12, call_seconds=pytest.approx(50e-6), node_seconds=2e-6, source="stated"
    )


def test_nothing_needs_no_unit() -> None:
    rules = parse_placing(move_above="0", unit_costs=["npu:bandwidth=1GB/s,call=0"])
    assert rules.move_above == 0 and rules.costs["npu"].call_seconds == 0


def test_a_transfer_can_be_measured() -> None:
    rules = parse_placing(transfer="measured")
    assert 1e8 < rules.transfer_bandwidth < 1e12 and 0 < rules.transfer_seconds < 1e-3


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"tokens": 0}, "place_tokens"),
        ({"move_above": "fast"}, "number of seconds"),
        ({"boundary_below": "1 XB"}, "number of bytes"),
        ({"transfer": "0GB/s"}, "above 0"),
        ({"unit_costs": ["npu"]}, "UNIT:FACT"),
        ({"unit_costs": ["npu:speed=3"]}, "the facts are"),
        ({"unit_costs": ["npu:int8=3TOPS"]}, "bandwidth"),
        ({"unit_costs": ["npu:f32=4TFLOPS,f32=5TFLOPS,bandwidth=1GB/s"]}, "says f32 twice; the second time it is '5TFLOPS'"),
        ({"unit_costs": ["npu:bandwidth=1GB/s", "npu:bandwidth=2GB/s"]}, "names the unit 'npu' twice"),
        ({"unit_costs": ["npu:f32=1e400TFLOPS,bandwidth=1GB/s"]}, "f32 is '1e400TFLOPS', which is too large"),
        ({"unit_costs": ["npu:f32=1e300TFLOPS,bandwidth=1GB/s"]}, "too large"),
        ({"unit_costs": ["npu:f32=4e12,bandwidth=1GB/s"]}, "with one of: GOPS, TOPS"),
        ({"move_above": "5"}, "move_above is '5'; it must be a number of seconds, with one of: s, ms, us"),
        ({"move_above": "-5us"}, "with one of: s, ms, us"),
        ({"transfer": "8+20us"}, "with one of: B/s"),
    ],
)
def test_wrong_settings_say_what_is_allowed(given: dict[str, Any], words: str) -> None:
    with pytest.raises(OptionError, match=words):
        parse_placing(**given)


def test_costs_that_are_missing_or_of_another_unit() -> None:
    class _Silent:
        name = "tpu"
        supports = _Unit.supports

    with pytest.raises(OptionError, match="says nothing of what its work costs") as caught:
        partition_mixed(_plan("matmul"), [_Unit("cpu", SLOW), _Silent()], PlacingRules())  # type: ignore[list-item]
    assert "--unit-cost tpu:" in str(caught.value)
    with pytest.raises(OptionError, match="names tpu; the targets are cpu"):
        partition_mixed(_plan("matmul"), [_Unit("cpu", SLOW)], PlacingRules(costs={"tpu": FAST}))


def test_a_gpu_costs_what_its_record_says_or_its_maker() -> None:
    nominal = gpu_costs(gpu_record([Hardware("cpu")], ()))
    assert nominal.bandwidth == 3352e9 and nominal.bf16 == pytest.approx(989e12, rel=0.01) and nominal.f32 == pytest.approx(62e12, rel=0.01)
    assert nominal.int8 == 2 * nominal.bf16 and nominal.link == 63e9 and nominal.narrow
    assert nominal.source == "nominal: NVIDIA H100 SXM, 132 units at 1.83 GHz"
    for arch, bf16 in {"sm_80": 312e12, "sm_100": 2250e12, "gfx942": 1307e12}.items():
        assert gpu_costs(gpu_record([], (arch, "sm_90"))).bf16 == pytest.approx(bf16, rel=0.01)
    # What is here counts where it runs what is wanted; what it does not tell is nominal.
    small = Hardware("gpu:0", "Any L4", "sm_89", cores=58, clock=2.04e9, memory_rate=300e9)
    costs = gpu_costs(gpu_record([Hardware("cpu"), small], ("sm_80",)))
    assert (costs.bandwidth, costs.bf16, costs.link) == (300e9, 1024 * 58 * 2.04e9, 31.5e9)
    assert costs.source == "estimated: Any L4, 58 units at 2.04 GHz"
    assert gpu_costs(gpu_record([small], ("sm_90",))).bandwidth == 3352e9
    known = replace(small, measured_at="today", bandwidth=((1 << 30, 250e9),), peaks={"bf16": 6e13})
    costs = gpu_costs(gpu_record([known], ()))
    assert (costs.bandwidth, costs.bf16, costs.source) == (250e9, 6e13, "measured at today")


def test_narrow_products_run_as_bf16_and_nodes_take_a_launch() -> None:
    plan = _plan("matmul", "reshape", "linear", width=256)
    linear = msgspec.structs.replace(plan.nodes[2], attrs={"format": "i4", "columns": 256, "rows": 256})
    model = CostModel(bandwidth=1e15, f32=1e9, bf16=1e12, node_seconds=3e-6)
    for narrow, fmt, rate in ((True, "i4", 1e12), (False, "i4", 1e9), (True, "f32", 1e9)):
        nodes = (*plan.nodes[:2], msgspec.structs.replace(linear, attrs={**linear.attrs, "format": fmt}))
        seconds = unit_seconds(msgspec.structs.replace(plan, nodes=nodes), replace(model, narrow=narrow), PlacingRules(tokens=16))
        assert seconds[0] == 2 * 16 * 256 * 256 / 1e9 and seconds[1] == 0.0
        assert seconds[2] == max(2 * 16 * 256 * 256 / rate, 3e-6)


def test_a_slow_link_bounds_a_transfer_that_is_not_stated() -> None:
    near, far = CostModel(bandwidth=1e9), CostModel(bandwidth=1e9, link=1e9)
    assert PlacingRules().transfer(8e9, near, far) == pytest.approx(8.0, rel=1e-4)
    assert PlacingRules().transfer(8e9, near, replace(far, link=63e9)) == pytest.approx(1.0, rel=1e-4)
    assert parse_placing(transfer="16GB/s").transfer(16e9, near, far) == pytest.approx(1.0, rel=1e-4)


def test_a_cpu_costs_what_was_measured_or_what_its_flags_promise() -> None:
    plain = cpu_costs(Hardware("cpu", flags=("avx2",), cores=4, clock=2e9))
    assert (plain.f32, plain.int8, plain.bf16, plain.bandwidth) == (4 * 32 * 2e9, 4 * 32 * 2e9, 4 * 32 * 2e9, 40e9)
    assert plain.source == "estimated: 4 cores at 2 GHz"
    assert cpu_costs(Hardware("cpu", flags=("avx512f", "avx512_vnni"), cores=1, clock=1e9)).int8 == 256e9
    known = Hardware("cpu", cores=4, measured_at="today", bandwidth=((1 << 20, 1e11), (1 << 30, 2e10)), peaks={"f32": 3e11, "int8": 9e11})
    assert cpu_costs(known).bandwidth == 2e10 and (cpu_costs(known).f32, cpu_costs(known).int8) == (3e11, 9e11)
    assert cpu_costs(known).source == "measured at today"
