"""How much each input column of a layer matters: the second moments of its input over a short run of the model itself.

Rounding a weight to 4 bits is a choice between scales, and the error that counts is the one in the layer's output: a column's squared
error times the mean square of the input it meets (the diagonal of the layer-wise Hessian, LeCun et al., Optimal Brain Damage, 1990).
The run is on one thread, so that a machine's number of cores cannot change a plan. Weights are read as they are needed.
"""

from __future__ import annotations

import contextlib
from importlib import resources
from typing import Any

import torch
from torch import Tensor, fx
from torch.fx.node import map_aggregate

from mixplan.compiler.frontends.base import Captured
from mixplan.compiler.replay import Replay
from mixplan.compiler.tuning import one_torch_thread
from mixplan.compiler.weights.base import WeightSource

__all__ = ["calibration_ids", "input_moments"]

_TOKENS, _FEW_TOKENS = 512, 128
# Models with more parameters are run on fewer tokens.
_LARGE = 2_000_000_000
# A weight that is read whole; larger ones (merged experts) would not fit the memory that a compile may take.
_MOST_ELEMENTS = 1 << 28


class _Lazy:
    """A parameter that is read when an operator takes it."""

    def __init__(self, name: str) -> None:
        self.name = name


class _DoneError(Exception):
    """The last layer's input has been seen."""


class _Moments(Replay):
    def __init__(self, graph: fx.GraphModule, weights: WeightSource) -> None:
        super().__init__(graph)
        self.moments: dict[str, Tensor] = {}
        self._weights = weights
        self._last = [n for n in graph.graph.nodes if n.target is torch.ops.aten.linear.default][-1]
        self._node = self._last

    def run_node(self, n: fx.Node) -> Any:
        self._node = n
        return super().run_node(n)

    def get_attr(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        value = super().get_attr(target, args, kwargs)
        return _Lazy(str(target)) if isinstance(value, Tensor) and value.device.type == "meta" else value

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if target is torch.ops.aten.linear.default and isinstance(args[1], _Lazy):
            self.moments[args[1].name] = args[0].reshape(-1, args[0].shape[-1]).square().mean(0)
            if self._node is self._last:
                raise _DoneError
        if target is torch.ops.aten.embedding.default and isinstance(args[0], _Lazy):
            return self._rows(args[0].name, args[1])
        args, kwargs = (map_aggregate(given, self._real) for given in (args, kwargs))
        return super().call_function(target, args, kwargs)

    def _real(self, value: Any) -> Any:
        return torch.from_numpy(self._weights.read(value.name)) if isinstance(value, _Lazy) else value

    def _rows(self, name: str, ids: Tensor) -> Tensor:
        """A table's rows, without the table."""
        unique, where = torch.unique(ids, return_inverse=True)
        rows = [torch.from_numpy(self._weights.read_rows(name, i, i + 1)) for i in unique.tolist()]
        return torch.cat(rows)[where]


def input_moments(captured: Captured) -> dict[str, Tensor]:
    """Mean squares of the input columns, f32 [K], by the name of the weight [N, K] they meet. Empty for graphs it does not suit."""
    nodes = captured.graph.graph.nodes
    weights = captured.weights
    tables = {str(n.args[0].target) for n in nodes if n.target is torch.ops.aten.embedding.default and n.args[0].op == "get_attr"}
    linears = [n for n in nodes if n.target is torch.ops.aten.linear.default]
    sizes = [torch.Size(weights.shape(name)).numel() for name in set(weights.names()) - tables]
    if not linears or max(sizes, default=0) > _MOST_ELEMENTS:
        return {}
    ids = calibration_ids(captured, _FEW_TOKENS if captured.model.parameters > _LARGE else _TOKENS)
    run = _Moments(captured.graph, weights)
    # One sequence, all of it in one step.
    with one_torch_thread(), contextlib.suppress(_DoneError):
        run.step(ids, list(range(len(ids))), [0] * len(ids))
    return {name: moments for name, moments in run.moments.items() if bool(torch.isfinite(moments).all()) and bool(moments.any())}


def calibration_ids(captured: Captured, count: int) -> list[int]:
    """Token ids of the text that comes with the package, or, for a model without a tokenizer, of no meaning but always the same."""
    model = captured.model
    count = min(count, model.context_length)
    if "tokenizer.json" in captured.files:
        from tokenizers import Tokenizer

        text = resources.files("mixplan.compiler").joinpath("calibration.txt").read_text(encoding="utf-8")
        ids = Tokenizer.from_str(captured.files["tokenizer.json"].decode()).encode(text, add_special_tokens=True).ids[:count]
        if ids and max(ids) < model.vocab_size:
            return list(ids)
    generator = torch.Generator().manual_seed(0)
    return [int(i) for i in torch.randint(model.vocab_size, (count,), generator=generator)]
