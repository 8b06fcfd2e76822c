"""The original, run on one sequence: what its nodes compute, and what becomes of its logits when some nodes compute something else."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, fx

from mixplan.compiler.replay import Replay

__all__ = ["Original"]

Array: TypeAlias = NDArray[Any]
Floats: TypeAlias = NDArray[np.float32]


class _Stepwise(Replay):
    """A replay whose nodes are run one by one, on one sequence from its beginning."""

    def __init__(self, graph: fx.GraphModule, ids: Sequence[int]) -> None:
        super().__init__(graph)
        self._positions, self._sequences = torch.arange(len(ids)), torch.zeros(len(ids), dtype=torch.long)
        places = self._positions[None]
        self.inputs = (torch.tensor(ids)[None], places, torch.full_like(places, len(ids)), torch.arange(len(ids)))
        self.env: dict[fx.Node, Any] = {}
        self.args_iter = iter(self.inputs)

    def advance(self, node: fx.Node, value: Any = None) -> Any:
        """Compute one node, or take `value` for it, and drop what nobody needs any more."""
        if value is None:
            value = self.run_node(node)
        self.env[node] = value
        for dead in self.user_to_last_uses.get(node, []):
            self.env.pop(dead, None)
        return value


class Original:
    """A captured graph whose parameters hold real values, on `ids`."""

    def __init__(self, graph: fx.GraphModule, ids: Sequence[int]) -> None:
        self._graph = graph
        self._ids = list(ids)
        self._nodes = list(graph.graph.nodes)
        self._copies = any(_writes(node) for node in self._nodes)
        self.tensors: set[str] = set()
        """Names of the nodes that give tensors; known after `record`."""

    def record(self, names: Collection[str]) -> tuple[dict[str, Array], Floats]:
        """The values of the named nodes that are tensors, and the logits, f32 [T, V]."""
        run = _Stepwise(self._graph, self._ids)
        seen: dict[str, Array] = {}
        with torch.no_grad():
            for node in self._nodes:
                value = run.advance(node)
                if node.op == "call_function" and isinstance(value, Tensor):
                    self.tensors.add(node.name)
                    if node.name in names:
                        seen[node.name] = value.detach().numpy().copy()
            return seen, self._logits(value)

    def blame(
        self,
        isolated: Mapping[str, Array],
        cumulative: Mapping[str, Array],
        judge: Callable[[str, Floats, Floats], None],
        wanted: Collection[str],
    ) -> None:
        """For each node of `wanted`, in order: judge(name, a, b), with the logits f32 [T, V] of the original when (a) only that node gives
        isolated[name], and (b) every node up to it that `cumulative` names gives what stands there."""
        plain, shifted = _Stepwise(self._graph, self._ids), _Stepwise(self._graph, self._ids)
        with torch.no_grad():
            for index, node in enumerate(self._nodes):
                value = plain.advance(node)
                shifted.advance(node, _like(cumulative[node.name], value) if node.name in cumulative else None)
                if node.name in wanted:
                    own = self._finish(plain, index, _like(isolated[node.name], value))
                    all_so_far = self._finish(shifted, index, shifted.env.get(node))
                    judge(node.name, own, all_so_far)

    def _finish(self, run: _Stepwise, index: int, value: Any) -> Floats:
        """The logits of a run that goes on behind node `index`, which gave `value`."""
        rest = _Stepwise(self._graph, self._ids)
        rest.env = {node: made.clone() if self._copies and isinstance(made, Tensor) else made for node, made in run.env.items()}
        rest.env[self._nodes[index]] = value
        last = value
        for node in self._nodes[index + 1 :]:
            last = rest.advance(node)
        return self._logits(last)

    def _logits(self, output: Any) -> Floats:
        tensor = output[0] if isinstance(output, list | tuple) else output
        logits: Floats = tensor[0].float().numpy()
        return logits


def _like(array: Array, value: Tensor) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(array)).to(value.dtype)


def _writes(node: fx.Node) -> bool:
    """Whether the operator writes into an input: then a run must not share its values with another."""
    return bool(getattr(getattr(node.target, "_schema", None), "is_mutable", False))
