"""Cutting a plan into regions: who runs what, in what order, and why."""

from __future__ import annotations

from collections.abc import Sequence

from mixplan.compiler.partition import partition
from mixplan.runtime.dtypes import DType
from mixplan.runtime.plan import SCHEMA_VERSION, Model, Node, Plan, Provenance, Sym, Value
from mixplan.runtime.plan_check_graph import check_regions
from mixplan.targets.base import Capabilities, CompiledRegion, CompileOptions, Support

SHAPE = (1, Sym("T"))


class _Target:
    """Supports every op but `sort` and `topk`."""

    name = "cpu"

    def capabilities(self) -> Capabilities:
        return Capabilities(self.name, Support(True))

    def resolve_levels(self, wanted: Sequence[str]) -> tuple[str, ...]:
        return ()

    def supports(self, node: Node, values: Sequence[Value]) -> Support:
        return Support(node.op not in ("sort", "topk"), f"op {node.op!r} has no kernel")

    def compile(self, plan: Plan, region: object, options: CompileOptions) -> CompiledRegion:
        return CompiledRegion()


def _graph(*nodes: tuple[str, list[int]]) -> tuple[list[Value], list[Node]]:
    """Nodes by op and inputs; value 0 is the input, node i makes value i + 1."""
    values = [Value(name="token_ids", kind="input", dtype=DType.i64, shape=SHAPE)]
    made = []
    for i, (op, inputs) in enumerate(nodes, 1):
        values.append(Value(name=f"n{i}", kind="node", dtype=DType.i64, shape=SHAPE))
        made.append(Node(op=op, inputs=tuple(inputs), outputs=(i,), name=f"n{i}"))
    return values, made


def _cut(*nodes: tuple[str, list[int]]) -> tuple[list[str], list[tuple[str, int]]]:
    """The order of ops, and (device, number of nodes) of each region; borders are checked."""
    values, made = _graph(*nodes)
    parts = partition(values, made, [len(nodes)], [_Target()])
    plan = Plan(
        schema_version=SCHEMA_VERSION,
        name="p",
        model=Model(architecture="a", vocab_size=1, context_length=1, parameters=1),
        values=tuple(values),
        nodes=tuple(parts.nodes),
        regions=tuple(parts.regions),
        outputs=(len(nodes),),
        attention=(),
        max_step_tokens=1,
        decisions=(),
        effective_bits=0.0,
        provenance=Provenance(source_format="", source_name="", source_files={}, options={}, versions={}),
    )
    check_regions(plan)
    return [node.op for node in parts.nodes], [(region.device, region.stop - region.start) for region in parts.regions]


def test_one_region_where_everything_is_supported() -> None:
    assert _cut(("neg", [0]), ("abs", [1]), ("add", [1, 2])) == (["neg", "abs", "add"], [("cpu", 3)])


def test_what_is_not_supported_goes_to_the_reference_with_its_reason() -> None:
    values, nodes = _graph(("neg", [0]), ("sort", [1]), ("linear", [2]))
    parts = partition(values, nodes, [3], [_Target()])
    assert [(region.device, region.reason) for region in parts.regions] == [
        ("cpu", ""),
        ("reference", "cpu: op 'sort' has no kernel"),
        ("cpu", ""),
    ]
    assert parts.refused == [("n2", "sort", "cpu: op 'sort' has no kernel")]


def test_independent_nodes_are_gathered() -> None:
    order, regions = _cut(("sort", [0]), ("neg", [0]), ("sort", [1]), ("abs", [2]), ("add", [3, 4]))
    assert order == ["sort", "sort", "neg", "abs", "add"]
    assert regions == [("reference", 2), ("cpu", 3)]


def test_a_tiny_stretch_between_reference_regions_is_absorbed() -> None:
    assert _cut(("sort", [0]), ("neg", [1]), ("sort", [2]))[1] == [("reference", 3)]
    assert _cut(("sort", [0]), ("linear", [1]), ("sort", [2]))[1] == [("reference", 1), ("cpu", 1), ("reference", 1)]
    assert _cut(("sort", [0]), ("neg", [1]), ("abs", [2]), ("exp", [3]), ("log", [4]), ("sort", [5]))[1] == [
        ("reference", 1),
        ("cpu", 4),
        ("reference", 1),
    ]
