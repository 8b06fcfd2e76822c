"""How a weight's format stands in an ONNX model, by what a provider's DequantizeLinear takes.

| in the plan | stored | scales | besides |
|---|---|---|---|
| f32, bf16 | f32 | | |
| symmetric i8 to i2 | code less the middle one: int8, or int4 for 4 bits and fewer | as the plan's | |
| codebooks n5 to n2 | the codebook's entries: int8 | as the plan's | |
| zero points | the code: uint8, uint4 | as the plan's | zero points |
| zero points, where the provider takes none | the code less the middle one | as the plan's | minima, of middle - zero point |
| minima | the code less the middle one | as the plan's | minima, of minimum + middle * scale |

Minima are multiplied with the sums of x over each group of columns, in a product of their own, so that the large one stays a product with
integers. Where the provider takes one scale for a tensor alone, that is COMMON, and what the product gives is multiplied by each channel's
scale over COMMON. What none of this can express is folded: the numbers themselves, f32, with the reason. Every form stands for exactly the
numbers that the plan's format does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from mixplan.runtime.formats import WeightFormat

__all__ = ["COMMON", "Stored", "WeightForm", "WeightRules", "weight_form"]

COMMON = 2.0**-7
"""The scale of a tensor that may have only one: a power of two, with which codes are numbers of about 1."""

Granularity: TypeAlias = Literal["block", "channel", "tensor"]
Stored: TypeAlias = Literal["numbers", "codes", "middle", "entries"]


@dataclass(frozen=True)
class WeightRules:
    """What a provider's DequantizeLinear takes for weights: element types, the finest part of a tensor that may have a scale of its own,
    and whether zero points may be others than 0.
    """

    kinds: tuple[str, ...]
    scales: Granularity
    zeros: bool = True


@dataclass(frozen=True)
class WeightForm:
    """kind: the element type. stored: what it holds. scales: of each block or channel, or `after` the product; "" for none.

    zeros, minima: whether there are such tensors. folded: why the weight stands as numbers although the plan holds codes, "" where it
    does not.
    """

    kind: str
    stored: Stored
    scales: Literal["", "block", "channel", "after"] = ""
    zeros: bool = False
    minima: bool = False
    folded: str = ""


def weight_form(fmt: WeightFormat, rules: WeightRules, *, table: bool) -> WeightForm:
    """table: rows of it are gathered, made numbers by ordinary operators, and no rule of quantized weights bears on them."""
    if not fmt.quantized:
        return WeightForm("f32", "numbers")
    if fmt.floating:
        return WeightForm("f32", "numbers", folded=f"codes of {fmt.name} are no integers")
    zeros = not fmt.symmetric and not fmt.has_minimum and (table or rules.zeros)
    minima = not fmt.symmetric and not zeros
    stored: Stored = "entries" if fmt.nonuniform else "codes" if zeros else "middle"
    sign = "u" if stored == "codes" else "i"
    if table:
        return WeightForm(f"{sign}8", stored, "block", zeros, minima)
    kinds = [f"{sign}8"] if fmt.nonuniform or fmt.bits > 4 else [f"{sign}4", f"{sign}8"]
    kind = next((one for one in kinds if one in rules.kinds), "")
    if not kind:
        return WeightForm("f32", "numbers", folded=f"it takes no weights of type {' or '.join(kinds)}")
    if fmt.group_size and rules.scales != "block":
        return WeightForm("f32", "numbers", folded=f"it takes a scale for each {rules.scales} of a weight, not for each group of columns")
    if fmt.group_size:
        return WeightForm(kind, stored, "block", zeros, minima)
    if rules.scales == "tensor":
        return WeightForm(kind, stored, "after", zeros, minima)
    return WeightForm(kind, stored, "channel", zeros, minima)
