"""What an export consists of: which layers are quantized, which become plain tables, which stay as the checkpoint has them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from mixplan.compiler.compressed_tensors.layers import PlanLayer
from mixplan.compiler.compressed_tensors.original import Original
from mixplan.compiler.compressed_tensors.schemes import config_group, refusal
from mixplan.runtime.errors import UnsupportedError
from mixplan.runtime.formats import BF16
from mixplan.runtime.plan import Plan

__all__ = ["Contents", "Quantity", "contents_of", "quantization_config"]

_NAMED = 8
_EXPERTS = "it is of experts, for which this export has no layout"


@dataclass(frozen=True)
class Quantity:
    """A layer that is written quantized. `stored` is the checkpoint's own name of the module. rounded_input as it is exported."""

    layer: PlanLayer
    stored: str
    rounded_input: bool


@dataclass(frozen=True)
class Contents:
    """quantized: by the stored names of their weights. tables: plain, but with the plan's values. rounded: to bf16. ignored: linear modules
    that are not quantized. dropped: names of tied weights that are stored twice."""

    quantized: dict[str, Quantity]
    tables: dict[str, PlanLayer]
    rounded: set[str]
    ignored: list[str]
    dropped: set[str]


def contents_of(plan: Plan, layers: Sequence[PlanLayer], original: Original, tied: Mapping[str, str], *, weight_only: bool) -> Contents:
    """Sort the plan's layers. UnsupportedError naming every layer that has no counterpart, with its scheme and the reason."""
    schemes = {record.layer: record.scheme for record in plan.decisions}
    quantized: dict[str, Quantity] = {}
    tables: dict[str, PlanLayer] = {}
    rounded: set[str] = set()
    refused: list[tuple[str, str, str]] = []
    kept = set(tied.values())
    for layer in layers:
        stored = original.stored_name(layer.parameter)
        if "grouped_linear" in layer.ops:
            refused.append((layer.name, schemes.get(layer.name, layer.format.name), _EXPERTS))
            continue
        if not layer.format.quantized:
            if layer.format == BF16 and stored is not None:
                rounded.add(stored)
            continue
        rows, columns = original.model.get_parameter(layer.parameter).shape[-2:]
        linear = isinstance(_module(original.model, layer.name), nn.Linear) and layer.parameter not in kept
        why = layer.tangled or ("" if _whole(layer, rows) else "the plan does not hold all of its rows")
        why = why or ("" if stored is not None else "the checkpoint stores it in another form than the model")
        why = why or (refusal(layer.format, columns) if linear else "")
        if why or stored is None:
            refused.append((layer.name, schemes.get(layer.name, layer.format.name), why))
        elif linear:
            quantized[stored] = Quantity(layer, stored.removesuffix(".weight"), layer.rounded_input and not weight_only)
        else:
            tables[stored] = layer
    if refused:
        raise _refused(refused)
    names = {one.layer.name for one in quantized.values()}
    ignored = [name for name, module in original.model.named_modules() if isinstance(module, nn.Linear) and name not in names]
    parameters = {layer.parameter for layer in tables.values()} | {one.layer.parameter for one in quantized.values()}
    return Contents(quantized, tables, rounded, ignored, {other for other, name in tied.items() if name in parameters})


def quantization_config(contents: Contents) -> dict[str, Any] | None:
    """The `quantization_config` of config.json; None where no layer is quantized."""
    groups: list[dict[str, Any]] = []
    for one in contents.quantized.values():
        made = config_group(one.layer.format, one.rounded_input, [])
        group = next((known for known in groups if {**known, "targets": []} == made), None)
        if group is None:
            groups.append(group := made)
        group["targets"] += dict.fromkeys((one.layer.name, one.stored))
    if not groups:
        return None
    formats = {group["format"] for group in groups}
    return {
        "quant_method": "compressed-tensors",
        "format": formats.pop() if len(formats) == 1 else "mixed-precision",
        "quantization_status": "compressed",
        "config_groups": {f"group_{number}": group for number, group in enumerate(groups)},
        "ignore": contents.ignored,
        "kv_cache_scheme": None,
        "global_compression_ratio": None,
    }


def _module(model: nn.Module, name: str) -> nn.Module | None:
    try:
        return model.get_submodule(name)
    except AttributeError:  # a parameter of a name of its own
        return None


def _whole(layer: PlanLayer, rows: int) -> bool:
    """Whether the parts are the rows 0 to `rows`, each once. The same part may stand in several packed weights; one of them is kept."""
    parts, at = [], 0
    for part in layer.parts:
        if part.start == at:
            parts.append(part)
            at = part.stop
    layer.parts[:] = parts
    return at == rows


def _refused(refused: Sequence[tuple[str, str, str]]) -> UnsupportedError:
    shown = "".join(f"\n  {layer} ({scheme}): {why}" for layer, scheme, why in refused[:_NAMED])
    more = f"\n  and {len(refused) - _NAMED} more" if len(refused) > _NAMED else ""
    count = "1 layer has" if len(refused) == 1 else f"{len(refused)} layers have"
    return UnsupportedError(
        f"{count} no counterpart in compressed-tensors:{shown}{more}",
        hint="Compile again with even spacing and zero points for these layers (no nl, no min; a group that divides the columns), "
        "as with --override 're:PATTERN=W4A16:g32'.",
    )
