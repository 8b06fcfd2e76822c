"""The manager: order, counts, dumps, the spec, and failures that name pass, node and source line."""

from __future__ import annotations

import sys
import types
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn

from mixplan.passes.base import STAGES, FunctionPass, PassContext, PassOptions, PassResult, Support
from mixplan.passes.catalogue import catalogue
from mixplan.passes.manager import PassManager
from mixplan.passes.patterns import aten
from mixplan.passes.pipeline import LEVELS, default_passes
from mixplan.passes.placement.place import TARGET, placement_summary
from mixplan.passes.rules import SimpleRule, rule_pass
from mixplan.runtime.errors import OptionError, PassError

X = torch.randn(1, 7, 32)


class Wave(nn.Module):
    """cos(sin(x))."""

    def forward(self, x: Tensor) -> Tensor:
        return x.sin().cos()


def sin_to_tanh(node: fx.Node, edit: Any) -> fx.Node:
    return edit.call(aten.tanh.default, node.args[0])


SWAP = rule_pass("swap", "user", "sin to tanh", (SimpleRule("sin_to_tanh", (aten.sin.default,), sin_to_tanh),))


def test_counts_and_records(small: Any) -> None:
    """Matches, nodes before and after, and what changed, per pass."""
    graph = small(Wave(), X)
    report = graph.run([SWAP, FunctionPass("nothing", "user", "", lambda graph, context: PassResult(graph, False))])
    assert [(r.name, r.changed, r.matches, r.nodes_before, r.nodes_after) for r in report.records] == [
        ("swap", True, 1, 2, 2),
        ("nothing", False, 0, 2, 2),
    ]
    assert all(record.seconds >= 0 for record in report.records) and report.matches == {"swap": 1}
    node = next(node for node in report.graph.graph.nodes if node.name == "tanh")
    assert node.meta["rule"] == "sin_to_tanh" and node.meta["origin"] == "sin" and "test_pass_manager" in node.meta["stack_trace"]


def test_dump(small: Any, tmp_path: Path) -> None:
    """The captured graph, and one file for each pass that changed something."""
    graph = small(Wave(), X)
    PassManager([SWAP, *default_passes(PassOptions())]).run(graph.graph, PassContext(), dump=tmp_path / "new")
    files = sorted(path.name for path in (tmp_path / "new").iterdir())
    assert files[:2] == ["00-captured.txt", "01-swap.txt"]
    assert "sin: f32[1,T,32] = aten.sin(x)" in (tmp_path / "new" / files[0]).read_text()
    assert "tanh: f32[1,T,32] = aten.tanh(x)  # sin_to_tanh" in (tmp_path / "new" / files[1]).read_text()


def test_names_are_unique() -> None:
    """A duplicate name is refused; the default pipeline has none, and stands in stage order."""
    with pytest.raises(OptionError, match="named twice: swap"):
        PassManager([SWAP, SWAP])
    rows = catalogue()
    stages = [STAGES.index(row["stage"]) for row in rows]  # type: ignore[arg-type]
    assert stages == sorted(stages) and all(row["doc"] for row in rows)
    assert set(LEVELS) <= {row["name"] for row in rows}


def broken_rule(node: fx.Node, edit: Any) -> fx.Node:
    raise ValueError("no such thing")


def drops_shape(node: fx.Node, edit: Any) -> fx.Node:
    return edit.call(aten.sum.default, node.args[0])


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (broken_rule, r"Pass bad: Rule bad_rule failed at node sin \(File .*x\.sin\(\)\.cos\(\)\): ValueError: no such thing"),
        (drops_shape, r"Pass bad: Rule bad_rule replaces sin torch.float32 \['?1'?, 's\d+', 32\] by sum_1 torch.float32 \[\] \(File "),
    ],
)
def test_failure_names_pass_node_and_source(small: Any, rule: Any, message: str) -> None:
    """Also which passes changed the graph before."""
    graph = small(Wave(), X)
    bad = rule_pass("bad", "user", "", (SimpleRule("bad_rule", (aten.sin.default,), rule),))
    with pytest.raises(PassError, match=message) as caught:
        graph.run([rule_pass("cos", "user", "", (SimpleRule("c", (aten.cos.default,), sin_to_tanh),)), bad])
    assert caught.value.hint == "Passes that changed the graph before it: cos."


def divides(graph: fx.GraphModule, context: PassContext) -> PassResult:
    """A user's pass with a mistake that only shows at a call with one argument."""
    for node in graph.graph.nodes:
        if node.op == "call_function" and node.name == "cos":
            1 / (len(node.args) - 1)
    return PassResult(graph, False)


def uses_torch_wrongly(graph: fx.GraphModule, context: PassContext) -> PassResult:
    graph.graph.erase_node(next(one for one in graph.graph.nodes if one.name == "sin"))
    return PassResult(graph, True)


def fails_at_once(graph: fx.GraphModule, context: PassContext) -> PassResult:
    raise KeyError("nothing")


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (divides, r"^Pass mine failed at node cos \(File .*x\.sin\(\)\.cos\(\)\): ZeroDivisionError: division by zero"),
        (uses_torch_wrongly, r"^Pass mine failed at node sin \(File .*\): RuntimeError: Tried to erase Node sin"),
        (fails_at_once, r"^Pass mine failed: KeyError: 'nothing'"),
    ],
)
def test_failure_of_a_users_pass_names_the_node_at_hand(small: Any, function: Any, message: str) -> None:
    """Where a pass walks the graph by itself, the node is the one that it held when it failed."""
    graph = small(Wave(), X)
    with pytest.raises(PassError, match=message):
        graph.run([FunctionPass("mine", "user", "", function)])


def spoil_value(graph: fx.GraphModule, context: PassContext) -> PassResult:
    next(node for node in graph.graph.nodes if node.name == "sin").meta.pop("val")
    return PassResult(graph, True)


def spoil_target(graph: fx.GraphModule, context: PassContext) -> PassResult:
    next(node for node in graph.graph.nodes if node.name == "sin").target = torch.sin
    return PassResult(graph, True)


def spoil_form(graph: fx.GraphModule, context: PassContext) -> PassResult:
    next(node for node in graph.graph.nodes if node.name == "sin").target = aten.alias.default
    return PassResult(graph, True)


def no_result(graph: fx.GraphModule, context: PassContext) -> None:
    return None


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (spoil_value, r"after pass bad breaks the spec at node sin: meta\['val'\] is missing\. Source: File"),
        (spoil_target, "neither an ATen nor a mixplan op"),
        (spoil_form, "aten.alias.default is not part of the canonical form"),
        (no_result, "Pass bad returned NoneType; a pass returns a PassResult"),
    ],
)
def test_spec(small: Any, function: Any, message: str) -> None:
    """What a pass leaves is checked, up to the level that the pipeline has reached."""
    graph = small(Wave(), X)
    passes = [*default_passes(PassOptions())[:15], FunctionPass("bad", "user", "", function)]
    with pytest.raises(PassError, match=message):
        PassManager(passes, LEVELS).run(graph.graph, PassContext())


def test_placement(small: Any) -> None:
    """Nodes that the target does not support go to the fallback, with the reason."""
    graph = small(Wave(), X)
    context = PassContext(supports=lambda node: Support("sin" not in str(node.target), "there is no sine here"))
    graph.run(default_passes(context.options), context)
    placed = {node.name: node.meta[TARGET] for node in graph.graph.graph.nodes if node.op == "call_function"}
    assert placed == {"sin": "reference", "cos": "cpu"}
    assert placement_summary(context) == ["1 x aten.sin.default on reference: there is no sine here"]
    assert str(context.rejections.of("place")[0]) == "place: sin: not on cpu: there is no sine here"


@pytest.fixture
def user_module(monkeypatch: pytest.MonkeyPatch) -> None:
    """An importable module `user_passes` with the passes `mine` and `other`."""

    def mine(graph: fx.GraphModule, context: PassContext) -> PassResult:
        """Does nothing."""
        return PassResult(graph, False)

    module = types.ModuleType("user_passes")
    module.mine, module.other, module.number = mine, mine, 3  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "user_passes", module)


@pytest.mark.parametrize(
    ("place", "before"),
    [
        ("@after=fuse_rope", "fuse_rope"),
        ("@before=fuse_linear", "fuse_rope"),
        ("@after=canonicalize", "canonical_form"),
        ("", "name_nodes"),
    ],
)
def test_user_pass(user_module: None, place: str, before: str) -> None:
    """A user's pass stands behind this one."""
    names = [one.name for one in default_passes(PassOptions(user_passes=(f"user_passes:mine{place}",)))]
    assert names[names.index("user_passes:mine") - 1] == before


def test_user_passes_at_one_place_keep_their_order(user_module: None) -> None:
    """The first given runs first."""
    given = ("user_passes:mine@after=fuse_rope", "user_passes:other@after=fuse_rope")
    names = [one.name for one in default_passes(PassOptions(user_passes=given))]
    at = names.index("fuse_rope")
    assert names[at + 1 : at + 3] == ["user_passes:mine", "user_passes:other"]


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("user_passes", "does not name a function"),
        ("user_passes:mine@near=x", "is not of the form after=NAME or before=NAME"),
        ("user_passes:mine@after=fuse_ropes", r"there is no pass 'fuse_ropes'; stages: canonicalize, .*\nDid you mean 'fuse_rope'\?"),
        ("user_passes:mind", r"has no function 'mind'.\nNear names: mine"),
        ("user_passes:number", "has no function 'number'"),
        ("no_such_module:mine", "module 'no_such_module' cannot be imported"),
    ],
)
def test_user_pass_errors(user_module: None, spec: str, message: str) -> None:
    """Each mistake says what is allowed."""
    with pytest.raises(OptionError, match=message):
        default_passes(PassOptions(user_passes=(spec,)))
