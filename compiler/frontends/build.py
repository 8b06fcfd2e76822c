"""A transformers causal LM from its config: meta parameters, real buffers."""

from __future__ import annotations

from typing import Any

from mixplan.compiler.export.skeleton import meta_parameters
from mixplan.runtime.errors import UnsupportedError

__all__ = ["build_model"]


def build_model(config: Any) -> Any:
    """The causal LM of a transformers config: float32, eval mode, meta parameters, and the buffers that its constructors compute."""
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.initialization import no_init_weights

    if type(config) not in AutoModelForCausalLM._model_mapping:
        raise UnsupportedError(
            f"model type {config.model_type!r} has no causal language model in transformers",
            hint="mixplan compiles decoder language models; see the list in the documentation.",
        )
    with meta_parameters(), no_init_weights():
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.tie_weights()
    return model.eval()
