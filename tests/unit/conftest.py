"""Small captured graphs for the tests of passes."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn
from torch.export.graph_signature import InputKind

from mixplan.passes import fx_ops  # noqa: F401  registers the ops
from mixplan.passes.base import Pass, PassContext
from mixplan.passes.manager import PassManager, PipelineReport

TOKENS = 7


@dataclass
class SmallGraph:
    """A module's graph with meta parameters, the module itself, and the inputs that both are run on."""

    graph: fx.GraphModule
    module: nn.Module
    inputs: tuple[Tensor, ...]

    def run(self, passes: list[Pass], context: PassContext | None = None) -> PipelineReport:
        """Run passes over the graph, every pass checked against the spec."""
        return PassManager(passes).run(self.graph, context or PassContext())

    def ops(self) -> list[str]:
        """Names of the calls in order, constant expressions left out."""
        from mixplan.passes.patterns import is_constant, mark_constants

        mark_constants(self.graph.graph)
        calls = [node for node in self.graph.graph.nodes if node.op == "call_function" and not is_constant(node)]
        return [getattr(getattr(node.target, "overloadpacket", node.target), "__name__", str(node.target)) for node in calls]

    def difference(self) -> float:
        """Largest difference between the graph as it stands and the module, relative to the largest output."""
        for name, value in [*self.module.named_parameters(), *self.module.named_buffers()]:
            assign(self.graph, name, value.detach())
        with torch.no_grad():
            expected, found = self.module(*self.inputs), self.graph(*self.inputs)
        return float((expected - found).abs().max() / expected.abs().max())


def assign(graph: fx.GraphModule, name: str, value: Tensor) -> None:
    """Put a real tensor where the graph holds a meta tensor; names that the graph does not read are skipped."""
    *path, last = name.split(".")
    owner: Any = graph
    for part in path:
        owner = getattr(owner, part, None)
    if owner is not None and hasattr(owner, last):
        delattr(owner, last)
        owner.register_buffer(last, value)


def unlifted(program: torch.export.ExportedProgram) -> fx.GraphModule:
    """The program's graph with get_attr nodes: parameters on meta, buffers and constants real."""
    kinds = {spec.arg.name: spec for spec in program.graph_signature.input_specs}
    graph, root, mapping = fx.Graph(), {}, {}
    for node in program.graph.nodes:
        spec = kinds.get(node.name) if node.op == "placeholder" else None
        if node.op == "output":
            graph.output(mapping[node.args[0][0]]).meta = dict(node.meta)
        elif spec is not None and spec.kind is not InputKind.USER_INPUT:
            value = program.state_dict[spec.target] if spec.target in program.state_dict else program.constants[spec.target]
            root[spec.target] = value.detach().to("meta") if spec.kind is InputKind.PARAMETER else value.detach()
            mapping[node] = graph.get_attr(spec.target)
            mapping[node].meta = dict(node.meta)
        else:
            mapping[node] = graph.node_copy(node, mapping.__getitem__)
    return fx.GraphModule(root, graph)


@pytest.fixture
def small() -> Callable[..., SmallGraph]:
    """small(module, x, ...): captured with a dynamic dimension 1 of every input that has TOKENS there."""
    torch.set_num_threads(1)

    def capture(module: nn.Module, *inputs: Tensor) -> SmallGraph:
        module = module.eval()
        dim = torch.export.Dim("T", min=2, max=1 << 20)
        shapes = tuple({1: dim} if x.dim() > 1 and x.shape[1] == TOKENS else {} for x in inputs)
        program = torch.export.export(module, inputs, dynamic_shapes=(shapes,) if _takes_star(module) else shapes, strict=False)
        return SmallGraph(unlifted(program), module, inputs)

    return capture


def _takes_star(module: nn.Module) -> bool:
    return isinstance(module, Function)


class Function(nn.Module):
    """A function of inputs and named parameters as a module."""

    def __init__(self, function: Callable[..., Tensor], **parameters: Tensor) -> None:
        super().__init__()
        self.function = function
        for name, value in parameters.items():
            if name.startswith("buffer_"):
                self.register_buffer(name, value)
            else:
                self.register_parameter(name, nn.Parameter(value, requires_grad=False))

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.function(self, *inputs)


@pytest.fixture
def from_function(small: Callable[..., SmallGraph]) -> Callable[..., SmallGraph]:
    """from_function(f, x, ..., w=tensor): the graph of f(module, x, ...), with the keywords as parameters of the module."""

    def capture(function: Callable[..., Tensor], *inputs: Tensor, **parameters: Tensor) -> SmallGraph:
        return small(Function(function, **parameters), *inputs)

    return capture


def _lowering_check() -> Any:
    """The helper beside this file: tests are no package, so it is loaded by its path, once."""
    spec = importlib.util.spec_from_file_location("lowering_check", Path(__file__).with_name("lowering_check.py"))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def check() -> Any:
    """check(function, *tensors): compares with torch at two sizes; gives the plan's ops. function(module, *tensors)."""
    return _lowering_check().check
