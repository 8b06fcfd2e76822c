"""From a plan and the checkpoint that it was compiled from to a Hugging Face directory in the compressed-tensors format."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from mixplan.compiler.compressed_tensors.contents import Contents, contents_of, quantization_config
from mixplan.compiler.compressed_tensors.layers import codes_of, plan_layers
from mixplan.compiler.compressed_tensors.notes import notes_on
from mixplan.compiler.compressed_tensors.original import Original, original_of
from mixplan.compiler.compressed_tensors.schemes import config_group
from mixplan.compiler.compressed_tensors.shards import ShardWriter
from mixplan.compiler.compressed_tensors.tensors import layer_tensors
from mixplan.compiler.frontends import open_checkpoint
from mixplan.compiler.output import new_directory, reporting_disk_errors
from mixplan.compiler.sources import SourceHashes
from mixplan.compiler.verify_report import source_warnings
from mixplan.runtime.errors import CheckpointError, OptionError
from mixplan.runtime.packing import dequantize
from mixplan.runtime.plan_io import LoadedPlan, read_plan
from mixplan.runtime.progress import Progress

__all__ = ["DTYPES", "ExportReport", "export_plan"]

DTYPES = ("auto", "float32", "float16", "bfloat16")
"""What the engine computes in; auto is what the checkpoint says."""

_RECORD = "mixplan_export.json"


@dataclass
class ExportReport:
    """groups: quantized layers by format. tables: layers stored dequantized. nbytes: of all tensors."""

    output: Path
    plan: str
    plan_digest: str
    dtype: str
    groups: dict[str, int]
    tables: tuple[str, ...]
    plain: int
    nbytes: int
    notes: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Everything, as JSON can hold it."""
        return {**asdict(self), "output": str(self.output)}

    def render(self, table: Callable[..., Any]) -> list[Any]:
        """Rich tables, made by `table(title, *columns)`, and notes."""
        facts = table(f"{self.plan} -> {self.output}", "fact", "value")
        for text, count in self.groups.items():
            facts.add_row(text, f"{count} layers")
        facts.add_row("linear layers not quantized", str(self.plain))
        facts.add_row("stored dequantized", ", ".join(self.tables) or "none")
        facts.add_row("dtype", self.dtype)
        facts.add_row("weights", f"{self.nbytes / 1e6:,.1f} MB")
        return [facts, *(f"note: {note}" for note in self.notes)]


def export_plan(
    plan: str | Path,
    model: str | Path,
    output: str | Path,
    *,
    dtype: str = "auto",
    weight_only: bool = False,
    force: bool = False,
    progress: Progress | None = None,
) -> ExportReport:
    """Write the plan's decisions as a checkpoint that transformers and vLLM load.

    model: the checkpoint that the plan was compiled from, which gives config, tokenizer, norms and biases; the digests in the plan must be
    those of its files (CheckpointError). dtype: one of DTYPES. weight_only: leave the layers' inputs unrounded. Raises UnsupportedError
    where a layer's format has no counterpart, naming all such layers. The directory appears whole or not at all.
    """
    if dtype not in DTYPES:
        raise OptionError(f"dtype is {dtype!r}; allowed are {', '.join(DTYPES)}.")
    tell = progress or _silent
    with (
        read_plan(plan) as loaded,
        new_directory(Path(output), force=force, kind="an export of a plan", marker=_RECORD) as root,
    ):
        tell("open", 0.0)
        checkpoint = open_checkpoint(model)
        try:
            original = original_of(checkpoint)
            captured = checkpoint.capture()
            with SourceHashes(captured.source.files) as hashes:
                digests = hashes.result()
            if problems := source_warnings(loaded.plan, digests):
                raise CheckpointError(problems[0], hint="Give the checkpoint that the plan was compiled from, unchanged.")
            tell("capture", 0.0)
            layers = plan_layers(loaded, captured)
            contents = contents_of(loaded.plan, layers, original, captured.tied, weight_only=weight_only)
            config = original.config()
            chosen = _dtype(config) if dtype == "auto" else dtype
            with reporting_disk_errors(root):
                nbytes = _write_weights(root, loaded, contents, original, chosen, tell)
                report = _report(Path(output), loaded, contents, chosen, nbytes, weight_only)
                _write_files(root, contents, original, {**config, **_dtype_entry(config, chosen)}, report)
        finally:
            checkpoint.close()
    return report


def _silent(stage: str, fraction: float) -> None:
    pass


def _dtype(config: dict[str, Any]) -> str:
    """The checkpoint's own; float16 where it says none, as GGUF files do."""
    found = str(config.get("dtype") or config.get("torch_dtype") or "float16").removeprefix("torch.")
    return found if found in DTYPES else "float32"


def _dtype_entry(config: dict[str, Any], dtype: str) -> dict[str, str]:
    """Under the name that the config uses."""
    return {"torch_dtype" if "torch_dtype" in config else "dtype": dtype}


def _write_weights(root: Path, loaded: LoadedPlan, contents: Contents, original: Original, dtype: str, tell: Progress) -> int:
    writer = ShardWriter(root)
    stored = list(original.tensors())
    for number, (name, read) in enumerate(stored):
        tell("weights", number / len(stored))
        if name in contents.dropped:
            continue
        for made, tensor in _tensors(name, read, loaded, contents, dtype):
            writer.add(made, tensor)
    writer.finish()
    return writer.nbytes


def _tensors(
    name: str, read: Callable[[], torch.Tensor], loaded: LoadedPlan, contents: Contents, dtype: str
) -> Iterator[tuple[str, torch.Tensor]]:
    if name in contents.quantized:
        one = contents.quantized[name]
        rows = codes_of(loaded, one.layer)
        for role, tensor in layer_tensors(one.layer.format, one.rounded_input, rows, wide_scales=dtype == "float32").items():
            yield f"{one.stored}.{role}", tensor
    elif name in contents.tables:
        layer = contents.tables[name]
        table = torch.from_numpy(dequantize(layer.format, codes_of(loaded, layer)))
        half = table.half()
        yield name, half if dtype != "float32" and bool(half.isfinite().all()) else table
    elif name in contents.rounded:
        yield name, read().bfloat16()
    else:
        yield name, read()


def _write_files(root: Path, contents: Contents, original: Original, config: dict[str, Any], report: ExportReport) -> None:
    if (quantization := quantization_config(contents)) is not None:
        config["quantization_config"] = quantization
    for name, data in original.files().items():
        (root / name).write_bytes(data)
    record = {key: value for key, value in report.to_dict().items() if key != "output"}
    for name, content in (("config.json", config), (_RECORD, record)):
        (root / name).write_text(json.dumps(content, indent=2, default=str) + "\n", encoding="utf-8")


def _report(output: Path, loaded: LoadedPlan, contents: Contents, dtype: str, nbytes: int, weight_only: bool) -> ExportReport:
    groups = Counter(_describe(config_group(one.layer.format, one.rounded_input, [])) for one in contents.quantized.values())
    return ExportReport(
        output=output,
        plan=loaded.plan.name,
        plan_digest=loaded.digest,
        dtype=dtype,
        groups=dict(groups),
        tables=tuple(layer.name for layer in contents.tables.values()),
        plain=len(contents.ignored),
        nbytes=nbytes,
        notes=notes_on(contents, dtype, weight_only=weight_only),
    )


def _describe(group: dict[str, Any]) -> str:
    weights = group["weights"]
    size = f"groups of {weights['group_size']}" if "group_size" in weights else "per channel"
    kind = "symmetric" if weights["symmetric"] else "asymmetric"
    what = "e4m3" if weights["type"] == "float" else f"int{weights['num_bits']}"
    inputs = ("e4m3" if weights["type"] == "float" else "int8") if group["input_activations"] else "unrounded"
    return f"{what} {size}, {kind}, inputs {inputs} ({group['format']})"
