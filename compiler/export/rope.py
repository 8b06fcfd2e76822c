"""Rotary embeddings whose frequencies depend on the sequence's length, made a choice per token.

transformers recomputes the frequencies of a whole batch from its largest position. In a ragged step each token has its own sequence, so
the same formula is applied per token to the step input `sequence_lengths` [1, T], and `inv_freq` becomes [1, T, D/2].
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from mixplan.compiler.export.context import current
from mixplan.runtime.errors import UnsupportedError

__all__ = ["patch_rotary"]


def patch_rotary(model: nn.Module) -> None:
    """Replace the forward of every module of `model` that uses longrope or dynamic NTK scaling (in place)."""
    for module in model.modules():
        kind = getattr(module, "rope_type", None)
        kinds = set(kind.values()) if isinstance(kind, dict) else {kind}
        if any(isinstance(name, str) and ("dynamic" in name or name == "longrope") for name in kinds):
            module.forward = _Rotary(module)


class _Rotary:
    """The forward of one rotary module."""

    def __init__(self, module: nn.Module) -> None:
        forward = type(module).forward
        self.module: Any = module
        # Without transformers' decorator, which updates the frequencies per batch.
        self.inner: Callable[..., Any] = getattr(forward, "__wrapped__", forward)

    def __call__(self, x: Tensor, position_ids: Tensor, layer_type: str | None = None) -> Any:
        module = self.module
        kind = module.rope_type if layer_type is None else module.rope_type[layer_type]
        prefix = "" if layer_type is None else f"{layer_type}_"
        extra = {} if layer_type is None else {"layer_type": layer_type}
        lengths = current().sequence_lengths
        if lengths is None or not ("dynamic" in kind or kind == "longrope"):
            return self.inner(module, x, position_ids, **extra)
        frequencies = _longrope if kind == "longrope" else _dynamic
        original = getattr(module, f"{prefix}inv_freq")
        module._buffers[f"{prefix}inv_freq"] = frequencies(module, kind, lengths.unsqueeze(-1), original, layer_type)
        try:
            return self.inner(module, x, position_ids, **extra)
        finally:
            module._buffers[f"{prefix}inv_freq"] = original


def _parameters(module: Any, layer_type: str | None) -> dict[str, Any]:
    parameters: dict[str, Any] = module.config.rope_parameters
    return parameters if layer_type is None else parameters[layer_type]


def _longrope(module: Any, kind: str, lengths: Tensor, original: Tensor, layer_type: str | None) -> Tensor:
    """Long factors for tokens of sequences longer than the pretraining length (arXiv:2402.13753). lengths [1, T, 1] -> [1, T, D/2]."""
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    pretrained = _parameters(module, layer_type)["original_max_position_embeddings"]
    extra = {} if layer_type is None else {"layer_type": layer_type}
    long, _ = ROPE_INIT_FUNCTIONS[kind](module.config, torch.device("cpu"), seq_len=pretrained + 1, **extra)
    short, _ = ROPE_INIT_FUNCTIONS[kind](module.config, torch.device("cpu"), seq_len=pretrained, **extra)
    return torch.where(lengths > pretrained, long, short)


def _dynamic(module: Any, kind: str, lengths: Tensor, original: Tensor, layer_type: str | None) -> Tensor:
    """NTK scaling by the sequence's length. lengths [1, T, 1] -> [1, T, D/2]; D and the base come from the module's own frequencies."""
    if kind != "dynamic":
        raise UnsupportedError(f"rope type {kind!r} has frequencies that depend on the sequence length in a way that mixplan does not know")
    config, parameters = module.config, _parameters(module, layer_type)
    base, factor, limit = parameters["rope_theta"], parameters["factor"], config.max_position_embeddings
    dim = 2 * original.shape[-1]
    lengths = torch.clamp(lengths, min=limit).float()
    scaled = base * ((factor * lengths / limit) - (factor - 1)) ** (dim / (dim - 2))
    exponents = torch.arange(0, dim, 2, dtype=torch.float32) / dim
    return 1.0 / (scaled**exponents)
