"""Named schemes: a weight format with an activation format, in the field's spelling."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from mixplan.runtime.errors import OptionError
from mixplan.runtime.formats import GROUP_SIZES, WeightFormat

__all__ = ["SCHEME_NAMES", "Activation", "Scheme", "parse_scheme"]

Activation: TypeAlias = Literal["f32", "bf16", "i8"]
_DEFAULT_GROUP = 128

# name: weight format, activation format. Weights of 4 bits are grouped; of 8 bits per channel unless a group size is given.
_TABLE: dict[str, tuple[str, Activation]] = {
    "FP32": ("f32", "f32"),
    "BF16": ("bf16", "bf16"),
    "W8A16": ("i8", "f32"),
    "W8A8": ("i8", "i8"),
    "W4A16": ("i4", "f32"),
    "W4A8": ("i4", "i8"),
}
SCHEME_NAMES = tuple(_TABLE)


@dataclass(frozen=True)
class Scheme:
    """`weight` is how the weight is stored; `activation` how the layer's input is rounded ("i8": dynamically, per row and group)."""

    name: str
    weight: WeightFormat
    activation: Activation

    @property
    def group(self) -> int:
        """Columns that share an activation scale; 0 is the whole row."""
        return self.weight.group_size

    def __str__(self) -> str:
        """The spelling that `parse_scheme` reads back."""
        parts = []
        if self.weight.group_size:
            parts.append(f"g{self.weight.group_size}")
        if self.weight.quantized and not self.weight.symmetric:
            parts.append("asym")
        return self.name + (":" + ",".join(parts) if parts else "")


def parse_scheme(text: str, *, group_size: int | None = None, asymmetric: bool | None = None) -> Scheme:
    """Read "W4A16", "w4a8:g64,asym", "W8A8:sym"; the keywords are defaults for what the text leaves open.

    For schemes without scales (FP32, BF16) the keywords mean nothing and are ignored, so that one command line can mix schemes.
    Raises OptionError for an unknown name, suffix, or group size.
    """
    name, _, suffix = text.strip().partition(":")
    name = name.upper()
    if name not in _TABLE:
        raise OptionError(f"Scheme {text!r} is not known; allowed: {', '.join(SCHEME_NAMES)}.", hint=_SUFFIX_HELP)
    weight, activation = _TABLE[name]
    symmetric = None if asymmetric is None else not asymmetric
    quantized = weight in ("i8", "i4")
    for part in filter(None, (piece.strip().lower() for piece in suffix.split(","))):
        if not quantized:
            raise OptionError(f"Scheme {text!r}: {name} has no scales, so {part!r} means nothing.")
        if part in ("asym", "sym"):
            symmetric = part == "sym"
        elif part.startswith("g") and part[1:].isdigit():
            group_size = int(part[1:])
        else:
            raise OptionError(f"Scheme {text!r}: suffix {part!r} is not known; allowed: g32, g64, g128, sym, asym.", hint=_SUFFIX_HELP)
    if not quantized:
        return Scheme(name, WeightFormat.of(weight), activation)
    group = group_size if group_size is not None else (_DEFAULT_GROUP if weight == "i4" else 0)
    if group not in ((0, *GROUP_SIZES) if weight == "i8" else GROUP_SIZES):
        allowed = ", ".join(map(str, GROUP_SIZES)) + (", or 0 for per-channel" if weight == "i8" else "")
        raise OptionError(f"Scheme {text!r}: group_size {group} is not supported; allowed: {allowed}.")
    return Scheme(name, WeightFormat.of(weight, group, symmetric is not False), activation)


_SUFFIX_HELP = "Group size and zero points follow a colon, as in W4A8:g64,asym."
