"""Named schemes: a weight format with an activation format, in the field's spelling."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from mixplan.runtime.dtypes import DType
from mixplan.runtime.errors import OptionError
from mixplan.runtime.formats import WeightFormat

__all__ = ["SCHEME_NAMES", "SOURCE", "Activation", "Scheme", "default_group", "parse_scheme", "parse_source"]

Activation: TypeAlias = Literal["f32", "bf16", "i8", "e4m3"]
_DEFAULT_GROUP = 128
_WIDTHS = (2, 3, 4, 5, 6, 8)

# name: weight bits, activation format. Weights of fewer than 8 bits are grouped; of 8 bits per channel unless a group size is given.
# FP8 has e4m3 weights too, all others integers unless a suffix says otherwise.
_TABLE: dict[str, tuple[int, Activation]] = {"FP32": (32, "f32"), "BF16": (16, "bf16")}
_TABLE |= {f"W{bits}A{act}": (bits, "i8" if act == 8 else "f32") for bits in reversed(_WIDTHS) for act in (16, 8)}
_TABLE |= {"FP8": (8, "e4m3")}
SCHEME_NAMES = tuple(_TABLE)

SOURCE = "source"
"""In place of a scheme for the whole model: each layer as the file stores it."""

_SCALES = {"s8": DType.i8, "s16": DType.f16, "s32": DType.f32}
_SCALE_TEXTS = {dtype: text for text, dtype in _SCALES.items()}
_SUFFIXES = "g32, g64, g128, sym, asym, min, nl, e4m3, s8, s16, s32"
_SUFFIX_HELP = "Group size, zero points, codebook and scales follow a colon, as in W4A8:g64,asym or W3A16:g32,nl,s8 or W8A16:e4m3."


@dataclass(frozen=True)
class Scheme:
    """`weight` is how the weight is stored; `activation` how the layer's input is rounded: to "i8" dynamically, per row and group; to
    "e4m3" dynamically, per row.
    """

    name: str
    weight: WeightFormat
    activation: Activation

    @property
    def group(self) -> int:
        """Columns that share an activation scale; 0 is the whole row."""
        return self.weight.group_size

    def __str__(self) -> str:
        """The spelling that `parse_scheme` reads back."""
        fmt, parts = self.weight, []
        if fmt.group_size:
            parts.append(f"g{fmt.group_size}")
        if not fmt.symmetric:
            parts.append("min" if fmt.has_minimum else "asym")
        if fmt.nonuniform and self.name != "FP8":
            parts.append("e4m3" if fmt.floating else "nl")
        if fmt.group_size and not fmt.floating and fmt.scale_dtype is not DType.f16:
            parts.append(_SCALE_TEXTS[fmt.scale_dtype])
        return self.name + (":" + ",".join(parts) if parts else "")


def default_group(text: str, group_size: int) -> int | None:
    """The group size that a compile's option gives to a scheme which says none: 8-bit weights only have groups that they ask for."""
    name = text.strip().partition(":")[0].upper()
    return group_size if name in _TABLE and _TABLE[name][0] < 8 else None


def parse_source(text: str) -> Literal["f32", "i8"] | None:
    """How inputs are rounded under "source" (or "source:A16") and "source:A8"; None for another scheme. OptionError for another suffix."""
    name, _, suffix = text.strip().lower().partition(":")
    if name != SOURCE:
        return None
    if suffix not in ("", "a16", "a8"):
        raise OptionError(
            f"Scheme {text!r}: suffix {suffix!r} is not known; allowed: A16, A8.", hint="Its file says how weights are stored."
        )
    return "i8" if suffix == "a8" else "f32"


def parse_scheme(text: str, *, group_size: int | None = None, asymmetric: bool | None = None) -> Scheme:
    """Read "W4A16", "w4a8:g64,asym", "W8A8:sym", "W3A16:g32,nl,s8"; the keywords are defaults for what the text leaves open.

    Suffixes: gN is the group size; sym, asym (zero points) or min (an f16 minimum for each group); nl takes the width's codebook, e4m3
    8-bit floats; s8, s16 and s32 are scales in two levels, f16 and f32. For schemes without scales (FP32, BF16) the keywords mean nothing
    and are ignored, so that one command line can mix schemes; so is `asymmetric` for a codebook or floats. Raises OptionError for an
    unknown name or suffix, or for what has no storage format.
    """
    name, _, suffix = text.strip().partition(":")
    name = name.upper()
    if name == SOURCE.upper():
        raise OptionError(f"Scheme {text!r} is for a whole model, and for nothing else.", hint="Give it to compile, as --scheme source.")
    if name not in _TABLE:
        raise OptionError(f"Scheme {text!r} is not known; allowed: {', '.join(SCHEME_NAMES)}.", hint=_SUFFIX_HELP)
    bits, activation = _TABLE[name]
    zeros: str | None = None
    nonuniform, scales = name == "FP8", None
    for part in filter(None, (piece.strip().lower() for piece in suffix.split(","))):
        if bits > 8:
            raise OptionError(f"Scheme {text!r}: {name} has no scales, so {part!r} means nothing.")
        if part in ("asym", "sym", "min"):
            zeros = part
        elif part in ("nl", "e4m3"):
            if (part == "e4m3") != (bits == 8):
                what = "codebook" if part == "nl" else "format of floats"
                raise OptionError(f"Scheme {text!r}: There is no {what} of {bits} bits.", hint=_SUFFIX_HELP)
            nonuniform = True
        elif part in _SCALES:
            scales = _SCALES[part]
        elif part.startswith("g") and part[1:].isdigit():
            group_size = int(part[1:])
        else:
            raise OptionError(f"Scheme {text!r}: suffix {part!r} is not known; allowed: {_SUFFIXES}.", hint=_SUFFIX_HELP)
    if bits > 8:
        return Scheme(name, WeightFormat(bits), activation)
    floating = nonuniform and bits == 8
    if floating and activation == "i8":
        raise OptionError(f"Scheme {text!r}: int8 inputs are multiplied with integers.", hint="FP8 has weights and inputs in e4m3.")
    if zeros is None:
        zeros = "asym" if asymmetric and not nonuniform else "sym"
    group = group_size if group_size is not None else (_DEFAULT_GROUP if bits < 8 else 0)
    try:
        fmt = WeightFormat(
            bits,
            group,
            zeros == "sym",
            scales or (DType.f16 if group and not floating else DType.f32),
            nonuniform,
            DType.f16 if zeros == "min" else DType.u8,
        )
    except OptionError as error:
        raise OptionError(f"Scheme {text!r}: {error.message}", hint=_SUFFIX_HELP) from None
    return Scheme(name, fmt, activation)
