"""What a streamed run tells of itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, fx

__all__ = ["Observer"]


class Observer:
    """Override what is wanted. Calls come in a fixed order: segment by segment, in it batch by batch, in it node by node.

    Tensors are the run's own: they may be read during the call, and neither changed nor kept.
    """

    def on_input(self, layer: str, x: Tensor) -> None:
        """The input f32 [n, K] of a product with weights, before it runs. `layer` names the weights as overrides do (layers_of);
        of merged weights the names are joined by " + ". Layers on one input are told of one by one."""

    def on_expert_input(self, layer: str, expert: int, x: Tensor) -> None:
        """The rows [n, K] of an experts' layer that go to one expert; none for experts without rows. `on_input` has got them all before."""

    def on_node(self, node: fx.Node, args: tuple[Any, ...], kwargs: dict[str, Any], value: Any) -> None:
        """A node that is no constant, after it ran, with the values of its arguments (an embedding's table is None)."""

    def on_logits(self, windows: Sequence[int], logits: Tensor) -> None:
        """Logits f32 [n, V] of every position of the given windows, one after the other."""
