"""What each attention layer keeps in the KV cache, read off the lowered nodes."""

from __future__ import annotations

from mixplan.compiler.lowering import Lowered
from mixplan.runtime.dtypes import DType
from mixplan.runtime.errors import InternalError
from mixplan.runtime.plan import AttentionLayer

__all__ = ["attention_layers"]


def attention_layers(lowered: Lowered, dtype: DType) -> tuple[AttentionLayer, ...]:
    """One record for each attention node, by its layer number."""
    found: dict[int, AttentionLayer] = {}
    for node in lowered.nodes:
        if node.op != "attention":
            continue
        keys, values = (lowered.values[node.inputs[i]].shape for i in (1, 2))
        sizes = (keys[2], keys[3], values[3])
        layer, window = node.attrs["layer"], node.attrs["window"]
        assert isinstance(layer, int) and isinstance(window, int)
        if not all(isinstance(size, int) for size in sizes):
            raise InternalError(f"Attention {node.name} has heads whose sizes depend on the step.")
        heads, k_dim, v_dim = (int(size) for size in sizes if isinstance(size, int))
        found[layer] = AttentionLayer(kv_heads=heads, k_dim=k_dim, v_dim=v_dim, dtype=dtype, window=window)
    if sorted(found) != list(range(len(found))):
        raise InternalError(f"Attention layers are numbered {sorted(found)}; they must be 0 to {len(found) - 1}.")
    return tuple(found[layer] for layer in range(len(found)))
