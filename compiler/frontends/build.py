"""A transformers causal LM from its config: meta parameters, real buffers."""

from __future__ import annotations

from typing import Any

from mixplan.compiler.export.skeleton import meta_parameters
from mixplan.runtime.errors import CheckpointError, UnsupportedError
from mixplan.runtime.short_memory import reporting_short_memory

__all__ = ["build_model"]


def build_model(config: Any, source: object = "the config") -> Any:
    """The causal LM of a transformers config: float32, eval mode, meta parameters, and the buffers that its constructors compute.

    CheckpointError where transformers refuses a value of the config, UnsupportedError where it lacks the model, CapacityError where there
    is no memory for it. `source` is where the config comes from, for errors.
    """
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.initialization import no_init_weights

    if type(config) not in AutoModelForCausalLM._model_mapping:
        raise UnsupportedError(
            f"model type {config.model_type!r} has no causal language model in transformers",
            hint="mixplan compiles decoder language models; see the list in the documentation.",
        )
    with reporting_short_memory(lambda: f"the {config.model_type!r} model of {source}", or_else="; or a size in the config is wrong"):
        try:
            with meta_parameters(), no_init_weights():
                model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        except ImportError as error:
            raise UnsupportedError(f"model type {config.model_type!r} needs a package that is not installed: {error}") from error
        except Exception as error:  # constructors check little: a wrong size or name fails wherever it is first used
            words = " ".join(str(error).split())[:300]
            raise CheckpointError(
                f"{source}: transformers can make no {config.model_type!r} model of it: {type(error).__name__}: {words}",
                hint="A size, or the name of an activation or rope type, is wrong there, or a newer transformers is needed.",
            ) from error
    model.tie_weights()
    return model.eval()
