"""How a weight is stored: the four packed formats, and what each costs in bits.

| name | bits | scales | zero points |
|---|---|---|---|
| f32  | 32 | none | none |
| bf16 | 16 | none | none |
| i8   | 8  | per output row (f32), or per group of input columns (f16) | u8 where asymmetric, else 128 |
| i4   | 4  | per group of input columns (f16) | u8 where asymmetric, else 8 |

A quantized weight is `scale * (code - zero)`, with unsigned codes. The byte layout is in `packing.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

from mixplan.runtime.dtypes import DType
from mixplan.runtime.errors import OptionError

__all__ = ["BF16", "F32", "FORMAT_NAMES", "GROUP_SIZES", "LANES", "WeightFormat", "ceil_div", "round_up"]

LANES = 16
"""Output rows that one packed block interleaves: one 512-bit vector of f32."""

GROUP_SIZES = (32, 64, 128)
"""Input columns that may share a scale."""

FORMAT_NAMES = ("f32", "bf16", "i8", "i4")
"""Names that the `format` attribute of a plan's node may take."""

_NAME_OF_BITS = {32: "f32", 16: "bf16", 8: "i8", 4: "i4"}
_BITS_OF_NAME = {name: bits for bits, name in _NAME_OF_BITS.items()}
_COLUMN_MULTIPLE = {32: 1, 16: 2, 8: 32}


def ceil_div(a: int, b: int) -> int:
    """The smallest integer not below a / b, for b > 0."""
    return -(-a // b)


def round_up(a: int, multiple: int) -> int:
    """The smallest multiple of `multiple` not below `a`."""
    return ceil_div(a, multiple) * multiple


@dataclass(frozen=True)
class WeightFormat:
    """A weight's storage format. Group size 0 is one scale for each output row (8 bits), or no scale at all (16 and 32 bits).

    Raises OptionError for a combination that has no packed layout.
    """

    bits: int
    group_size: int = 0
    symmetric: bool = True
    scale_dtype: DType = DType.f32

    def __post_init__(self) -> None:
        if self.bits not in _NAME_OF_BITS:
            raise OptionError(f"A weight format of {self.bits} bits is not known; allowed: {sorted(_NAME_OF_BITS)}.")
        allowed = {8: (0, *GROUP_SIZES), 4: GROUP_SIZES}.get(self.bits, (0,))
        if self.group_size not in allowed:
            raise OptionError(f"Format {self.name} with group_size {self.group_size} is not supported; allowed: {list(allowed)}.")
        if not self.quantized and not self.symmetric:
            raise OptionError(f"Format {self.name} has no zero points, so it cannot be asymmetric.")
        expected = DType.f16 if self.group_size else DType.f32
        if self.scale_dtype is not expected:
            kind = "per group" if self.group_size else "per channel"
            raise OptionError(f"Scales {kind} are held as {expected.value}, not {self.scale_dtype.value}.")

    @classmethod
    def of(cls, name: str, group_size: int = 0, symmetric: bool = True) -> WeightFormat:
        """The format called `name` ("f32", "bf16", "i8", "i4"), with the scale dtype that its granularity implies."""
        if name not in _BITS_OF_NAME:
            raise OptionError(f"Weight format {name!r} is not known; allowed: {', '.join(FORMAT_NAMES)}.")
        return cls(_BITS_OF_NAME[name], group_size, symmetric, DType.f16 if group_size else DType.f32)

    @property
    def name(self) -> str:
        """The name that stands in a plan's `format` attribute."""
        return _NAME_OF_BITS[self.bits]

    @property
    def quantized(self) -> bool:
        """Whether the weight is stored as integer codes with scales."""
        return self.bits <= 8

    @property
    def levels(self) -> int:
        """Number of codes of a quantized format: codes are 0 .. levels - 1."""
        return 1 << self.bits

    @property
    def zero_point(self) -> int:
        """The code that stands for 0 where zero points are not stored: 128 or 8."""
        return self.levels // 2

    def padded_columns(self, columns: int) -> int:
        """Columns in storage: to a multiple of the group, of 32 (i8 per channel) or of 2 (bf16)."""
        return round_up(columns, self.group_size or _COLUMN_MULTIPLE[self.bits])

    def groups(self, columns: int) -> int:
        """Scales for each output row: 0 where there are none."""
        if not self.quantized:
            return 0
        return ceil_div(columns, self.group_size) if self.group_size else 1

    def total_bits(self, rows: int, columns: int) -> int:
        """Bits of a weight [rows, columns] with its scales and zero points, padding not counted."""
        per_group = 8 * self.scale_dtype.itemsize + (0 if self.symmetric else 8)
        return rows * (columns * self.bits + self.groups(columns) * per_group)

    def effective_bits(self, rows: int, columns: int) -> float:
        """Bits per weight, scales and zero points counted in."""
        return self.total_bits(rows, columns) / (rows * columns)


F32 = WeightFormat(32)
BF16 = WeightFormat(16)
