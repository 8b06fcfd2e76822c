"""The observer of a probe's run: statistics of every tensor, of every layer's input, and of every attention head.

Statistics are many small operations: on one thread they take little longer, and far less where cores are shared with others.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, fx

from mixplan.compiler.streaming import Observer
from mixplan.compiler.tuning import one_torch_thread
from mixplan.passes.fx_ops import ATTENTION_TM
from mixplan.passes.patterns import argument
from mixplan.passes.profiling import HeadRanges, TensorStats, rounding_snr

__all__ = ["Watch"]

# Rows of a layer's input that are rounded to see what int8 leaves of them.
_ROUNDED = 256


class Watch(Observer):
    """All windows have `window` tokens. tensors: by name. squares: of each layer's input, f64 [K], with the rows counted. rounding: SNR of
    the layer's first rows in int8, by granularity. heads: by the number of the attention layer."""

    def __init__(self, names: Mapping[fx.Node, str], window: int) -> None:
        self.tensors: dict[str, TensorStats] = {}
        self.squares: dict[str, tuple[Tensor, int]] = {}
        self.rounding: dict[str, dict[str, float]] = {}
        self.heads: dict[int, HeadRanges] = {}
        self._names, self._window = names, window

    def on_input(self, layer: str, x: Tensor) -> None:
        """Second moments of a layer's input."""
        if len(x):
            with one_torch_thread():
                self._input(layer, x)

    def _input(self, layer: str, x: Tensor) -> None:
        clean = x.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)
        squares, rows = (clean * clean).sum(0).double(), len(x)
        if layer in self.squares:
            before = self.squares[layer]
            squares, rows = squares + before[0], rows + before[1]
        else:
            self.rounding[layer] = rounding_snr(clean[:_ROUNDED])
        self.squares[layer] = (squares, rows)

    def on_node(self, node: fx.Node, args: tuple[Any, ...], kwargs: dict[str, Any], value: Any) -> None:
        """Statistics of what a node gives, and of the heads of an attention."""
        name = self._names.get(node)
        if name is None or not isinstance(value, Tensor):
            return
        with one_torch_thread():
            self._value(name, node, args, value)

    def _value(self, name: str, node: fx.Node, args: tuple[Any, ...], value: Tensor) -> None:
        if value.dim() == 4 and value.shape[0] == 1:
            value = value.flatten(2)  # token-major heads: channels are those of all heads
        found = TensorStats.of(value)
        self.tensors[name] = self.tensors[name].merge(found) if name in self.tensors else found
        if node.target is ATTENTION_TM:
            self._attention(node, args)

    def _attention(self, node: fx.Node, args: tuple[Any, ...]) -> None:
        q, k, v, scale, layer = args[:5]
        slopes = args[8] if len(args) > 8 else None
        found = HeadRanges.of(
            (self._window,) * (q.shape[1] // self._window),
            q[0],
            k[0],
            v[0],
            scale,
            window=int(argument(node, 5, "window", 0) or 0),
            softcap=float(argument(node, 6, "softcap", 0.0) or 0.0),
            slopes=slopes,
            mask=str(argument(node, 9, "mask", "causal") or "causal"),
        )
        self.heads[layer] = self.heads[layer].merge(found) if layer in self.heads else found
