"""What the user of an export should know: where an engine computes otherwise than the plan."""

from __future__ import annotations

from collections.abc import Mapping

from mixplan.compiler.compressed_tensors.contents import Contents, Quantity
from mixplan.runtime.dtypes import DType

__all__ = ["notes_on"]

# Modules that engines merge, by the ends of their names: all of one parent must have one format there.
_MERGED = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))
_COMMON_BITS = (4, 8)


def notes_on(contents: Contents, dtype: str, *, weight_only: bool) -> tuple[str, ...]:
    """One sentence each."""
    quantized = list(contents.quantized.values())
    notes = []
    if contents.tables:
        names = ", ".join(layer.name for layer in contents.tables.values())
        notes.append(f"{names}: stored dequantized, with the plan's values, since engines read embeddings and tied heads unquantized.")
    if dtype == "bfloat16" and any(one.layer.format.scale_dtype is DType.f16 for one in quantized):
        notes.append("Engines that run this in bfloat16 round the f16 scales to 8 bits; --dtype float16 keeps them, if the model bears it.")
    if dtype != "float32" and any(one.layer.format.scale_dtype is not DType.f16 and one.layer.format.group_size for one in quantized):
        notes.append(f"Scales in two levels or f32 are stored as f32; engines that run this in {dtype} round them to it.")
    if any(one.rounded_input and not one.layer.format.floating for one in quantized):
        notes.append("int8 inputs are scaled by the engine: some divide by 127.5 where the plan divides by 127.")
    elif weight_only and any(one.layer.rounded_input for one in quantized):
        notes.append("Inputs are left unrounded, as --weight-only asks; the plan rounds some to 8 bits.")
    if any(one.layer.format.bits not in _COMMON_BITS for one in quantized):
        notes.append("Weights of 2, 3, 5 or 6 bits need engines that read the dense packing (compressed-tensors 0.20 or newer).")
    if any(not one.layer.format.symmetric for one in quantized):
        notes.append("Zero points are packed, as the format has them; transformers 5.24 cannot load them (vLLM and the library can).")
    if split := _split(contents.quantized):
        notes.append(f"Engines that merge Q, K and V, or gate and up, need one format for all of them; they differ in {split}.")
    return tuple(notes)


def _split(quantized: Mapping[str, Quantity]) -> str:
    """The first parent whose modules differ; "" where there is none."""
    kinds = {one.stored: (one.layer.format, one.rounded_input) for one in quantized.values()}
    parents = dict.fromkeys(name.rpartition(".")[0] for name in kinds)
    for parent in parents:
        for members in _MERGED:
            found = {kinds.get(f"{parent}.{member}") for member in members}
            if len(found) > 1:
                return parent
    return ""
