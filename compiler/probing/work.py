"""What the nodes of a graph compute and move in a step, counted from shapes: f32 activations, weights as the checkpoint stores them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import fx

from mixplan.compiler.weights.base import WeightSource
from mixplan.passes.fx_ops import ATTENTION_TM, EMBEDDING, GROUPED_LINEAR, LAYER_NORM, LINEAR, RMS_NORM, ROPE
from mixplan.passes.patterns import argument, aten, is_constant
from mixplan.passes.rewriting import tensor_of
from mixplan.runtime.cost import Cost, Work

__all__ = ["Counter", "stored_bits"]

# Operations for each element of the output, as runtime/cost counts them; 1 where an op is missing.
_PER_ELEMENT: dict[Any, int] = {
    RMS_NORM: 4,
    LAYER_NORM: 7,
    ROPE: 3,
    aten.softmax.int: 5,
    aten.silu.default: 4,
    aten.gelu.default: 8,
    aten.sigmoid.default: 4,
    aten.cat.default: 0,
}
_BITS = {"F64": 64, "F32": 32, "I32": 32, "F16": 16, "BF16": 16, "I16": 16, "F8_E4M3": 8, "F8_E5M2": 8, "I8": 8, "U8": 8}


def stored_bits(dtype: str) -> float:
    """Bits for each element of a stored type: safetensors' spelling, or a GGUF type's name. Of types unknown, 32."""
    if dtype in _BITS:
        return float(_BITS[dtype])
    try:
        from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
    except ModuleNotFoundError:
        return 32.0
    kind = GGMLQuantizationType.__members__.get(dtype)
    if kind is None:
        return 32.0
    elements, size = GGML_QUANT_SIZES[kind]
    return 8.0 * float(size) / float(elements)


class Counter:
    """Counts one graph's nodes. A step's shape is a `Work`: its tokens, its logit rows and the positions that they attend to."""

    def __init__(self, module: fx.GraphModule, weights: WeightSource) -> None:
        self._module, self._weights = module, weights
        self._symbols: dict[str, Any] = {}
        self._sizes: dict[tuple[str, int, int], int] = {}
        for node in module.graph.nodes:
            if node.op == "placeholder" and node.target in ("token_ids", "logit_rows"):
                size = node.meta["val"].shape[-1]
                if not isinstance(size, int):
                    self._symbols[str(node.target)] = size.node.expr

    def cost(self, node: fx.Node, work: Work) -> Cost:
        """What one node computes and moves. A multiplication and an addition are one operation each; views are free."""
        size = self._elements(node, work)
        read = sum(self._elements(source, work) for source in node.all_input_nodes if not is_constant(source))
        passed = 4 * (read + size)
        if node.target in (LINEAR, GROUPED_LINEAR):
            weight = node.args[1 if node.target is LINEAR else 2]
            shape = weight.meta["val"].shape
            held = self.stored_bytes(weight)
            if node.target is GROUPED_LINEAR:
                experts, routed = int(shape[0]), size // max(int(shape[1]), 1)
                held = held * min(experts, routed) // max(experts, 1)
            return Cost(weight_bytes=held, activation_bytes=passed, f32_ops=2 * size * int(shape[-1]))
        if node.target is EMBEDDING:
            table = node.args[1]
            count = int(math.prod(int(n) for n in table.meta["val"].shape))
            return Cost(weight_bytes=self.stored_bytes(table) * min(size, count) // max(count, 1), activation_bytes=passed)
        if node.target is ATTENTION_TM:
            return self._attention(node, work, passed)
        constants = sum(self.stored_bytes(source) for source in node.all_input_nodes if is_constant(source))
        return Cost(weight_bytes=constants, activation_bytes=passed, f32_ops=_PER_ELEMENT.get(node.target, 1) * size)

    def _attention(self, node: fx.Node, work: Work, passed: int) -> Cost:
        q, k, v = (node.args[i].meta["val"].shape for i in range(3))
        window, mask = int(argument(node, 5, "window", 0) or 0), str(argument(node, 9, "mask", "causal") or "causal")
        heads, kv_heads, k_dim, v_dim = int(q[2]), int(k[2]), int(k[3]), int(v[3])
        moved = (work.positions_read(window, mask) + work.tokens) * kv_heads * (k_dim + v_dim) * 4
        return Cost(0, moved, passed, f32_ops=work.attended(window, mask) * heads * (2 * (k_dim + v_dim) + 5))

    def stored_bytes(self, constant: fx.Node) -> int:
        """Bytes, in the checkpoint, of the parameters that a constant is computed from; of buffers, those in memory."""
        total = 0.0
        for leaf in dict.fromkeys(_leaves(constant)):
            tensor = tensor_of(self._module, str(leaf.target))
            bits = stored_bits(self._weights.dtype(str(leaf.target))) if tensor.device.type == "meta" else 8 * tensor.element_size()
            total += tensor.numel() * bits / 8
        return int(total)

    def _elements(self, node: fx.Node, work: Work) -> int:
        value = node.meta.get("val")
        if not isinstance(value, torch.Tensor):
            return 0
        return math.prod(int(n) if isinstance(n, int) else self._size(n, work.tokens, work.rows) for n in value.shape)

    def _size(self, size: Any, tokens: int, rows: int) -> int:
        key = (str(size), tokens, rows)
        if key not in self._sizes:
            sizes = {"token_ids": tokens, "logit_rows": rows}
            self._sizes[key] = int(size.node.expr.subs({expr: sizes[name] for name, expr in self._symbols.items()}))
        return self._sizes[key]


def _leaves(constant: fx.Node) -> Iterator[fx.Node]:
    if constant.op == "get_attr":
        yield constant
    for source in constant.all_input_nodes:
        yield from _leaves(source)
