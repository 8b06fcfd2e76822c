"""A Hugging Face directory's JSON files, read with errors that say what is wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from mixplan.runtime.errors import CheckpointError, MissingExtraError, UnsupportedError

__all__ = ["load_config", "read_json"]


def read_json(path: Path, *, required: bool = False) -> dict[str, Any]:
    """The JSON object in `path`; {} where the file is absent and not required."""
    if not path.is_file():
        if required:
            raise CheckpointError(f"{path.parent}: {path.name} is missing", hint="Give a Hugging Face model directory, or a .gguf file.")
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"), parse_constant=_constant)
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: cannot be read as JSON: {error}") from None
    if not isinstance(content, dict):
        raise CheckpointError(f"{path}: expected a JSON object, got {type(content).__name__}")
    return content


def _constant(name: str) -> float:
    """Infinity stands in real configs, as a limit that is none; NaN is never meant."""
    if name == "NaN":
        raise ValueError("it holds NaN, which is no number")
    return float(name)


def _holds_float8(quantization: Any) -> bool:
    """Whether a `quantization_config` says that weights are e4m3 floats with scales, and nothing else is quantized in another way."""
    if not isinstance(quantization, dict):
        return False
    method = quantization.get("quant_method")
    if method == "fp8":
        return quantization.get("fmt", "e4m3") == "e4m3"
    groups = quantization.get("config_groups")
    if method != "compressed-tensors" or not isinstance(groups, dict) or not groups:
        return False
    weights = [group.get("weights") if isinstance(group, dict) else None for group in groups.values()]
    plain = all(isinstance(one, dict) and one.get("type") == "float" and one.get("num_bits") == 8 for one in weights)
    return plain and quantization.get("format") in ("float-quantized", "naive-quantized", "mixed-precision")


def load_config(folder: Path) -> Any:
    """The transformers config of a directory; CheckpointError or UnsupportedError where it can't be one that mixplan compiles."""
    try:
        from transformers import AutoConfig
        from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES
    except ImportError:
        raise MissingExtraError("Reading a Hugging Face checkpoint", "hf") from None
    path = folder / "config.json"
    content = read_json(path, required=True)
    model_type = content.get("model_type")
    if not isinstance(model_type, str):
        raise CheckpointError(f"{path}: has no model_type, so the architecture is unknown")
    if "auto_map" in content and model_type not in CONFIG_MAPPING_NAMES:
        raise UnsupportedError(
            f"{path}: model type {model_type!r} is defined by Python code inside the checkpoint, which mixplan does not run",
            hint="Use a checkpoint in transformers' own format, or pass the loaded module to mixplan.compile in Python.",
        )
    if model_type not in CONFIG_MAPPING_NAMES:
        import transformers

        raise UnsupportedError(
            f"{path}: model type {model_type!r} is unknown to transformers {transformers.__version__}",
            hint="A newer transformers may know it: pip install -U transformers.",
        )
    quantization = content.pop("quantization_config", None)
    if quantization and not _holds_float8(quantization):
        method = quantization.get("quant_method", "unknown") if isinstance(quantization, dict) else quantization
        raise UnsupportedError(
            f"{path}: the checkpoint is already quantized ({method})",
            hint="Compile from the original weights; mixplan quantizes them itself. Read are only weights in 8-bit floats (e4m3).",
        )
    for name in ("auto_map", "attn_implementation", "_attn_implementation"):
        content.pop(name, None)
    try:
        return AutoConfig.for_model(**content)
    except Exception as error:  # config classes validate in their own ways: any exception means that this one refused
        raise CheckpointError(f"{path}: not a valid config of model type {model_type!r}: {error}") from error
