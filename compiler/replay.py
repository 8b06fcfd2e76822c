"""Run a captured or rewritten graph with torch, step by step, ragged and cached: the meaning that the runtime must reproduce."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, fx

from mixplan.compiler.weights.base import WeightSource
from mixplan.passes.fx_ops.attention import attention_weights

__all__ = ["Replay", "load_parameters"]


def load_parameters(graph: fx.GraphModule, weights: WeightSource) -> None:
    """Replace every meta parameter of `graph` by its values from `weights` (in place)."""
    for node in graph.graph.nodes:
        if node.op == "get_attr":
            path, _, name = str(node.target).rpartition(".")
            owner = graph.get_submodule(path)
            if getattr(owner, name).device.type == "meta":
                delattr(owner, name)
                owner.register_buffer(name, torch.from_numpy(weights.read(str(node.target))), persistent=False)


class Replay(fx.Interpreter):
    """A graph with keys and values of every sequence kept between steps. Parameters must hold real values (see `load_parameters`)."""

    def __init__(self, graph: fx.GraphModule) -> None:
        super().__init__(graph)
        self._cache: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}
        self._positions = self._sequences = torch.zeros(0, dtype=torch.long)

    def step(
        self, token_ids: Sequence[int], positions: Sequence[int], sequences: Sequence[int], rows: Sequence[int] | None = None
    ) -> Tensor:
        """Logits f32 [R, V] of `rows` (indices into the step's tokens; all by default)."""
        self._positions, self._sequences = torch.tensor(positions), torch.tensor(sequences)
        largest = {s: max(p for p, t in zip(positions, sequences, strict=True) if t == s) for s in set(sequences)}
        lengths = torch.tensor([largest[s] + 1 for s in sequences])
        wanted = torch.arange(len(token_ids)) if rows is None else torch.tensor(rows)
        with torch.no_grad():
            logits: Tensor = self.run(torch.tensor(token_ids)[None], self._positions[None], lengths[None], wanted)
        return logits[0]

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Attention reads and grows the cache; everything else is torch's."""
        name = str(target)
        if name.startswith("mixplan.attention"):
            return self._attention(*args, **{**kwargs, "token_major": "attention_tm" in name})
        return super().call_function(target, args, kwargs)

    def _attention(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        scale: float,
        layer: int,
        window: int = 0,
        softcap: float = 0.0,
        sinks: Tensor | None = None,
        slopes: Tensor | None = None,
        mask: str = "causal",
        token_major: bool = False,
    ) -> Tensor:
        if token_major:
            q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        out = q.new_empty(1, q.shape[2], q.shape[1], v.shape[3])
        groups = q.shape[1] // k.shape[1]
        for sequence in self._sequences.unique().tolist():
            picked = torch.nonzero(self._sequences == sequence)[:, 0]
            start, count = int(self._positions[picked[0]]), len(picked)
            keys, values = k[:, :, picked], v[:, :, picked]
            if (layer, sequence) in self._cache:
                before = self._cache[layer, sequence]
                keys = torch.cat([before[0][:, :, :start], keys], 2)
                values = torch.cat([before[1][:, :, :start], values], 2)
            self._cache[layer, sequence] = (keys, values)
            # Queries of earlier positions are zeros: their rows are cut off again.
            queries = torch.cat([q.new_zeros(1, q.shape[1], start, q.shape[3]), q[:, :, picked]], 2)
            expanded = keys.repeat_interleave(groups, 1)
            weights = attention_weights(queries, expanded, scale, window, softcap, sinks, slopes, mask)[:, :, -count:]
            out[:, picked] = torch.matmul(weights, values.repeat_interleave(groups, 1)).transpose(1, 2)
        return out
