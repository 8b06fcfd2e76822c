"""Which nodes multiply by weights, with what input, under which layer's name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import fx

from mixplan.passes.fx_ops import GATED_LINEAR, GROUPED_LINEAR, LINEAR
from mixplan.passes.patterns import aten, is_constant
from mixplan.passes.precision.layers import layer_name
from mixplan.passes.rewriting import tensor_of

__all__ = ["last_product", "product_layers"]

# target: place of the input, places of the weights.
_PRODUCTS: dict[Any, tuple[int, tuple[int, ...]]] = {
    aten.linear.default: (0, (1,)),
    aten.addmm.default: (1, (2,)),
    aten.mm.default: (0, (1,)),
    aten.matmul.default: (0, (1,)),
    LINEAR: (0, (1,)),
    GATED_LINEAR: (0, (1, 2)),
    GROUPED_LINEAR: (0, (2,)),
}


def product_layers(module: fx.GraphModule, node: fx.Node) -> tuple[int, tuple[str, ...]] | None:
    """The place of the input among the arguments of a product with weights, and the names of the layers; None for other nodes."""
    found = _PRODUCTS.get(node.target) if node.op == "call_function" else None
    if found is None:
        return None
    source, weights = found
    if not all(is_constant(node.args[at]) for at in weights) or is_constant(node.args[source]):
        return None
    names = [" + ".join(map(layer_name, dict.fromkeys(_parameters(module, node.args[at])))) for at in weights]
    return (source, tuple(names)) if all(names) else None


def last_product(module: fx.GraphModule) -> fx.Node | None:
    """The last node that multiplies by weights: the head, as a rule."""
    return next((node for node in reversed(list(module.graph.nodes)) if product_layers(module, node)), None)


def _parameters(module: fx.GraphModule, weight: fx.Node) -> Iterator[str]:
    """Names of the checkpoint's tensors in an expression, breadth first, as `layers_of` orders them."""
    pending = [weight]
    while pending:
        node = pending.pop(0)
        if node.op == "get_attr" and tensor_of(module, str(node.target)).device.type == "meta":
            yield str(node.target)
        pending.extend(node.all_input_nodes)
