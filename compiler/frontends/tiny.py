"""Tiny configs of transformers' causal-LM types, for tests and the export census."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from mixplan.compiler.frontends.build import build_model
from mixplan.runtime.errors import OptionError

__all__ = ["randomize", "tiny_config", "tiny_model"]

_LARGEST = 20_000_000
# Sizes by the names that configs use for them. Windows and chunks are shorter than the tests' prompts, so that they matter.
_SIZES: dict[str, Any] = {
    "hidden_size": 64,
    "n_embd": 64,
    "d_model": 64,
    "embed_dim": 64,
    "word_embed_proj_dim": 64,
    "embedding_size": 64,
    "intermediate_size": 128,
    "ffn_dim": 128,
    "decoder_ffn_dim": 128,
    "n_inner": 128,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
    "num_hidden_layers": 2,
    "n_layer": 2,
    "num_layers": 2,
    "n_layers": 2,
    "decoder_layers": 2,
    "num_attention_heads": 4,
    "n_head": 4,
    "n_heads": 4,
    "num_heads": 4,
    "decoder_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 256,
    "max_position_embeddings": 512,
    "n_positions": 512,
    "max_seq_len": 512,
    "num_experts": 4,
    "num_local_experts": 4,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "sliding_window": 16,
    "attention_chunk_size": 16,
    "kv_lora_rank": 16,
    "q_lora_rank": 24,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "v_head_dim": 16,
    "rotary_dim": 8,
    "rotary_pct": 0.5,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "is_decoder": True,
}
# Types whose sizes have to agree in ways that names don't tell.
_SPECIAL: dict[str, dict[str, Any]] = {
    "dots1": {"layer_types": None},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]], "window_size": 16},
}


def tiny_config(model_type: str, **overrides: Any) -> Any:
    """A config of `model_type` with about 100,000 parameters; overrides win over the usual tiny sizes."""
    from transformers import AutoConfig

    known = AutoConfig.for_model(model_type).to_dict()
    sizes = {key: value for key, value in _SIZES.items() if key in known and known[key] is not ...}
    if "kv_lora_rank" in known:
        # Multi-head latent attention expands keys to all heads, and `head_dim` means the rotary part.
        sizes |= {"num_key_value_heads": 4, "head_dim": 8}
    return AutoConfig.for_model(model_type, **{**sizes, **_SPECIAL.get(model_type, {}), **overrides})


def tiny_model(model_type: str, seed: int = 0, **overrides: Any) -> Any:
    """A causal LM of `tiny_config` with random weights, in eval mode, float32."""
    from transformers import AutoModelForCausalLM

    config = tiny_config(model_type, **overrides)
    count = sum(parameter.numel() for parameter in build_model(config).parameters())
    if count > _LARGEST:
        raise OptionError(f"the tiny config of {model_type} is not tiny: {count} parameters, at most {_LARGEST}")
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    randomize(model, seed)
    return model


def randomize(model: nn.Module, seed: int = 0) -> None:
    """Weights large enough that attention is peaked and positions matter; transformers' initial ones give almost uniform attention."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.ndim >= 2:
                parameter.copy_(noise * (1.0 if "emb" in name else 1.5 * parameter.shape[-1] ** -0.5))
            elif bool(parameter.any()):
                parameter.mul_(1 + noise * 0.1)
            else:
                parameter.add_(noise * 0.1)
