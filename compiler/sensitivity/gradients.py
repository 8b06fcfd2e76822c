"""Mean squares of the loss's gradient at every layer's output: the diagonal of the Fisher information, factored by layer.

Labels are drawn from the model's own distribution (Kunstner et al., Limitations of the empirical Fisher approximation, NeurIPS 2019), so
that the mean square of a weight's gradient is its curvature in KL divergence: KL ~ 1/2 sum_ij F_ij d_ij^2. Of F_ij = E[(g_i x_j)^2] the
gradient's part E[g_i^2] is kept for each output, and joined with what is known of the inputs (compiler/calibration).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, fx
from torch.nn import functional

from mixplan.compiler.frontends.base import Captured
from mixplan.compiler.sensitivity.attention_rounding import AttentionLoss, watch_attention
from mixplan.compiler.sensitivity.lazy_weights import LazyWeights
from mixplan.compiler.streaming.attention import windowed_attention
from mixplan.compiler.streaming.constants import call, lookup
from mixplan.compiler.streaming.layers import product_layers
from mixplan.compiler.streaming.segments import table_of
from mixplan.compiler.streaming.windows import Batch, batches
from mixplan.passes.fx_ops import ATTENTION, ATTENTION_TM, EMBEDDING
from mixplan.passes.patterns import is_constant, mark_constants
from mixplan.passes.precision.layers import layer_name

__all__ = ["GradientStatistics", "gradient_statistics"]


@dataclass
class GradientStatistics:
    """outputs: E[g_o^2] at each output of a layer, f32 [N] (of experts: of all together). tables: E[g_j^2] in each column of the rows that
    a layer looks up, f32 [K]. attention: what rounding costs, by attention layer. Means over tokens, of the gradient of a text's whole loss
    in nats."""

    outputs: dict[str, Tensor] = field(default_factory=dict)
    tables: dict[str, Tensor] = field(default_factory=dict)
    tokens: int = 0
    attention: dict[int, AttentionLoss] = field(default_factory=dict)


def gradient_statistics(
    captured: Captured,
    windows: Tensor | Sequence[Sequence[int]],
    *,
    seed: int = 0,
    progress: Callable[[float], None] | None = None,
) -> GradientStatistics:
    """One pass forward and back for each window (token ids [W, L]) of `captured.graph`, in f32. seed: of the labels that are drawn.

    Memory: the activations of one window, and up to 2 GiB of weights. The graph is left as it is.
    """
    run = _Run(captured)
    generator = torch.Generator().manual_seed(seed)
    steps = batches(windows, 1)
    for index, step in enumerate(steps):
        with torch.enable_grad(), run.weights.hooks():
            logits = run.forward(step)
            probabilities = torch.softmax(logits.detach(), -1)
            drawn = torch.multinomial(probabilities, 1, generator=generator)[:, 0]
            functional.cross_entropy(logits, drawn, reduction="sum").backward()
        if progress is not None:
            progress((index + 1) / len(steps))
    return run.finish(sum(step.tokens for step in steps))


class _Run:
    def __init__(self, captured: Captured) -> None:
        self.module = captured.graph
        self.weights = LazyWeights(captured.graph, captured.weights)
        self._source = captured.weights
        self._attention: dict[int, AttentionLoss] = {}
        self._sums: tuple[dict[str, Tensor], dict[str, Tensor]] = ({}, {})
        mark_constants(self.module.graph)
        self._nodes = [node for node in self.module.graph.nodes if node.op not in ("placeholder", "output") and not is_constant(node)]
        self._output = self.module.graph.output_node().all_input_nodes[0]

    def forward(self, step: Batch) -> Tensor:
        """Logits [T, V] of one window, with gradients at every layer's output."""
        given = step.inputs
        known = {node: given[str(node.target)] for node in self.module.graph.nodes if node.op == "placeholder"}
        left: dict[fx.Node, int] = {}
        for node in self._nodes:
            for source in node.all_input_nodes:
                left[source] = left.get(source, 0) + 1
        for node in self._nodes:
            known[node] = self._node(node, known, step)
            for source in node.all_input_nodes:
                left[source] -= 1
                if not left[source] and source is not self._output:
                    known.pop(source, None)
        logits: Tensor = known[self._output]
        return logits.reshape(-1, logits.shape[-1])

    def _node(self, node: fx.Node, known: dict[fx.Node, Any], step: Batch) -> Any:
        table = table_of(node)
        if table is not None:
            ids = known[node.args[0] if node.target is EMBEDDING else node.args[1]]
            # Not a leaf, so that the graph may work on it in place.
            rows = lookup(self._source, str(table.target), ids).requires_grad_().clone()
            rows.register_hook(partial(self._add, 1, layer_name(str(table.target))))
            return rows
        constants = {source: self.weights.get(source) for source in node.all_input_nodes if is_constant(source)}
        if node.target in (ATTENTION, ATTENTION_TM):
            args: list[Any] = [known.get(value, constants.get(value)) if isinstance(value, fx.Node) else value for value in node.args]
            named: dict[str, Any] = {k: known.get(v, constants.get(v)) if isinstance(v, fx.Node) else v for k, v in node.kwargs.items()}
            token_major = node.target is ATTENTION_TM
            layer = named.get("layer", args[4] if len(args) > 4 else None)
            if isinstance(layer, int):
                watch_attention(self._attention.setdefault(layer, AttentionLoss()), *args[:3], token_major=token_major)
            return windowed_attention(step.lengths, *args, **named, token_major=token_major)
        value = call(node, {**constants, **{source: known[source] for source in node.all_input_nodes if source not in constants}})[2]
        found = product_layers(self.module, node)
        if found is not None and isinstance(value, Tensor) and value.requires_grad:
            for layer in found[1]:
                value.register_hook(partial(self._add, 0, layer))
        return value

    def _add(self, kind: int, layer: str, gradient: Tensor) -> None:
        sums = self._sums[kind]
        squares = gradient.reshape(-1, gradient.shape[-1]).square().sum(0)
        sums[layer] = sums[layer] + squares if layer in sums else squares

    def finish(self, tokens: int) -> GradientStatistics:
        """Means over tokens."""
        outputs, tables = ({layer: sums / tokens for layer, sums in found.items()} for found in self._sums)
        attention = {layer: found.mean(tokens) for layer, found in self._attention.items()}
        return GradientStatistics(outputs, tables, tokens, attention)
