"""The implementations named "mixplan" in transformers' attention, mask and experts registries."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor, nn

import mixplan.passes.fx_ops  # noqa: F401  registers the ops
from mixplan.compiler.export.context import current
from mixplan.compiler.export.masks import MaskKind, mask_kind
from mixplan.runtime.errors import UnsupportedError

__all__ = ["NAME", "register_interfaces", "set_implementations"]

NAME = "mixplan"
# Keyword arguments of the attention interface that change nothing for one causal sequence without padding or cache.
_NEUTRAL = frozenset(
    "dropout position_ids cache cache_position use_cache output_attentions output_hidden_states sliding_window target_dtype deterministic "
    "cu_seq_lens_q cu_seq_lens_k max_length_q max_length_k return_dict logits_to_keep num_items_in_batch head_mask layer_idx "
    "past_key_values past_key_value attention_mask position_embeddings is_causal training output_router_logits".split()
)


def register_interfaces() -> None:
    """Enter mixplan's functions into transformers' registries; doing it again is harmless."""
    from transformers import AttentionInterface
    from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS
    from transformers.masking_utils import AttentionMaskInterface

    AttentionInterface.register(NAME, attention_interface)
    AttentionMaskInterface.register(NAME, mask_interface)
    ALL_EXPERTS_FUNCTIONS.register(NAME, experts_interface)


def set_implementations(model: Any) -> None:
    """Make a transformers model use them. A model that bypasses the attention interface is set to its eager attention, which is then
    found in the graph (eager_attention.py)."""
    register_interfaces()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.set_attn_implementation(NAME)
        if model.config._attn_implementation != NAME:
            model.config._attn_implementation = "eager"
        model.set_experts_implementation(NAME)


def mask_interface(*args: Any, mask_function: Any = None, **kwargs: Any) -> MaskKind:
    """In place of a mask tensor, the kind of mask."""
    return mask_kind(mask_function)


def attention_interface(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: MaskKind | Tensor | None = None,
    scaling: float | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """One `mixplan::attention` node for query [1, Hq, T, Dk], key [1, Hkv, T, Dk], value [1, Hkv, T, Dv]; gives [1, T, Hq, Dv]."""
    name = type(module).__name__
    unknown = sorted(key for key, value in kwargs.items() if key not in _NEUTRAL and value is not None and value is not False)
    if unknown:
        raise UnsupportedError(f"{name} calls attention with arguments that mixplan does not know: {', '.join(unknown)}")
    if attention_mask is None:
        causal = kwargs.get("is_causal")
        if not (getattr(module, "is_causal", True) if causal is None else causal):
            raise UnsupportedError(f"{name} attends in both directions, which cannot be run token by token")
        attention_mask = MaskKind()
    if not isinstance(attention_mask, MaskKind):
        raise UnsupportedError(f"{name} builds its attention mask as a tensor {tuple(attention_mask.shape)}, outside of the mask interface")
    if attention_mask.refused:
        raise UnsupportedError(
            f"{name} asks for an attention mask that is not causal: {attention_mask.refused}",
            hint="Supported masks: causal, sliding window, chunked. A model that looks ahead cannot be run token by token.",
        )
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    if isinstance(scale, Tensor):
        query, scale = query * scale, 1.0
    sinks = s_aux if s_aux is not None else None
    out = torch.ops.mixplan.attention(
        query,
        key,
        value,
        float(scale),
        current().next_layer(),
        attention_mask.window,
        float(softcap or 0.0),
        sinks,
        None,
        attention_mask.kind,
    )
    return out, None


def experts_interface(self: Any, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
    """Experts as two `mixplan::grouped_linear` nodes for hidden_states [T, K], top_k_index and top_k_weights [T, J]; gives [T, K].

    Runs as the forward of a transformers experts module (`self`), whose activation and gating stay plain nodes.
    """

    def weight(name: str) -> Tensor:
        tensor: Tensor = getattr(self, name)
        return tensor.transpose(1, 2) if self.is_transposed else tensor

    first = "gate_up_proj" if self.has_gate else "up_proj"
    grouped = torch.ops.mixplan.grouped_linear
    x = grouped(hidden_states.unsqueeze(1), top_k_index, weight(first), getattr(self, first + "_bias") if self.has_bias else None)
    x = self._apply_gate(x) if self.has_gate else self.act_fn(x)
    x = grouped(x, top_k_index, weight("down_proj"), self.down_proj_bias if self.has_bias else None)
    if self.has_post_expert_norm:
        x = self.post_expert_norm(x)
    return (x * top_k_weights.unsqueeze(-1)).sum(dim=1).to(hidden_states.dtype)
