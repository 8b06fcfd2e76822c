"""A transformers config from a GGUF file's metadata: transformers' own mapping, and the facts of the file that it leaves out."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mixplan.compiler.weights.gguf_file import GgufFile
from mixplan.runtime.errors import CheckpointError, MissingExtraError, UnsupportedError

__all__ = ["gguf_config", "rope_factors"]

# Lists longer than this are vocabularies, which the config does not need.
_LONGEST_LIST = 1024
_REMEDY = "Compile the model's Hugging Face directory instead."


def gguf_config(file: GgufFile) -> Any:
    """The config of an opened GGUF file; UnsupportedError for an architecture that transformers does not read from GGUF."""
    try:
        from transformers import AutoConfig
        from transformers.integrations import GGUF_CONFIG_MAPPING
    except ImportError as error:
        raise MissingExtraError("Reading a GGUF file", "hf") from error
    architecture = file.architecture
    known = sorted(set(GGUF_CONFIG_MAPPING) - {"general", "tokenizer"})
    with tempfile.TemporaryDirectory(prefix="mixplan-") as folder:
        # transformers' reader takes seconds on a vocabulary; it gets the file without.
        file.write_outline(Path(folder) / "model.gguf", longest_list=_LONGEST_LIST)
        try:
            with _quiet():
                config = AutoConfig.from_pretrained(folder, gguf_file="model.gguf", local_files_only=True)
        except ValueError as error:
            if "not supported" not in str(error) and "Unrecognized" not in str(error):
                raise CheckpointError(
                    f"{file.path}: its metadata make no config: {error}.", hint="Convert the model to GGUF again."
                ) from error
            raise UnsupportedError(
                f"{file.path}: transformers does not read the GGUF architecture {architecture!r}; it reads {', '.join(known)}.",
                hint=_REMEDY,
            ) from error
        except Exception as error:  # metadata that somebody else wrote may be wrong in any way
            raise CheckpointError(
                f"{file.path}: its metadata make no config: {type(error).__name__}: {error}.", hint="Convert the model to GGUF again."
            ) from error
    config.name_or_path = ""
    _complete(config, file)
    return config


@contextmanager
def _quiet() -> Iterator[None]:
    """Without transformers' warning that the vocabulary is not there: `_complete` sees to it."""
    logger = logging.getLogger("transformers.modeling_gguf_pytorch_utils")
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before


def _complete(config: Any, file: GgufFile) -> None:
    """Set what transformers' mapping does not take from the metadata."""
    architecture = file.architecture
    experts = file.integer(f"{architecture}.expert_count")
    if experts and not any(hasattr(config, name) for name in ("num_experts", "num_local_experts", "n_routed_experts")):
        raise UnsupportedError(
            f"{file.path}: a mixture of {experts} experts of architecture {architecture!r}, which transformers reads as a dense model.",
            hint=_REMEDY,
        )
    vocab = file.integer(f"{architecture}.vocab_size")
    if vocab is None and (embedding := file.tensors.get("token_embd.weight")) is not None:
        vocab = embedding.shape[0]
    if vocab is not None:
        config.vocab_size = vocab
        # An id of the config class's own default, beyond this vocabulary.
        if isinstance(getattr(config, "pad_token_id", None), int) and config.pad_token_id >= vocab:
            config.pad_token_id = None
    context = file.integer(f"{architecture}.context_length")
    if context is not None and hasattr(config, "max_position_embeddings"):
        config.max_position_embeddings = context
    for key, name in (
        ("expert_feed_forward_length", "moe_intermediate_size"),
        ("expert_shared_feed_forward_length", "shared_expert_intermediate_size"),
    ):
        size = file.integer(f"{architecture}.{key}")
        if size is not None and hasattr(config, name):
            setattr(config, name, size)
    head_dim = file.integer(f"{architecture}.attention.key_length")
    if head_dim is not None and isinstance(getattr(config, "head_dim", None), int):
        config.head_dim = head_dim
    window = file.metadata.get(f"{architecture}.attention.sliding_window")
    if isinstance(window, int) and hasattr(config, "sliding_window") and architecture in ("phi3", "mistral", "starcoder2"):
        config.sliding_window = window or None
    _complete_rope(config, file)


def _complete_rope(config: Any, file: GgufFile) -> None:
    architecture = file.architecture
    parameters = getattr(config, "rope_parameters", None)
    if not isinstance(parameters, dict):
        return
    # Models with two kinds of layers scale the ones with full attention only.
    rope: dict[str, Any] = parameters["full_attention"] if isinstance(parameters.get("full_attention"), dict) else parameters
    rotated = file.integer(f"{architecture}.rope.dimension_count")
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    if rotated is not None and "partial_rotary_factor" in rope and rotated <= head_dim:
        rope["partial_rotary_factor"] = rotated / head_dim
        if hasattr(config, "partial_rotary_factor"):
            config.partial_rotary_factor = rotated / head_dim
    original = file.integer(f"{architecture}.rope.scaling.original_context_length")
    long, short = rope_factors(file, "rope_factors_long"), rope_factors(file, "rope_factors_short")
    if long is not None and short is not None:
        rope.update(rope_type="longrope", long_factor=[float(f) for f in long], short_factor=[float(f) for f in short])
        attention = file.metadata.get(f"{architecture}.rope.scaling.attn_factor")
        if isinstance(attention, float):
            rope["attention_factor"] = attention
        if original is not None:
            rope["original_max_position_embeddings"] = original
            config.original_max_position_embeddings = original
        return
    kind = file.string(f"{architecture}.rope.scaling.type") or "none"
    factor = file.metadata.get(f"{architecture}.rope.scaling.factor")
    if kind == "none" or not isinstance(factor, float) or factor in (0.0, 1.0) or architecture == "gpt-oss":
        return
    if kind not in ("linear", "yarn"):
        raise UnsupportedError(f"{file.path}: the rope scaling {kind!r} of the metadata is neither 'linear' nor 'yarn'.", hint=_REMEDY)
    rope.update(rope_type=kind, factor=factor)
    if kind == "yarn" and original is not None:
        rope["original_max_position_embeddings"] = original


def rope_factors(file: GgufFile, name: str) -> NDArray[np.float32] | None:
    """Divisors of the rotary frequencies [rotated dims / 2], None where the file has none of that name."""
    tensor = file.tensors.get(f"{name}.weight")
    return None if tensor is None else file.read_rows(tensor, 0, tensor.shape[0]).reshape(-1)
