"""How a weight is stored: the packed formats, and what each costs in bits.

| name | bits | a code stands for |
|---|---|---|
| f32, bf16 | 32, 16 | itself |
| i8 i6 i5 i4 i3 i2 | 8 to 2 | code - zero: evenly spaced numbers |
| n5 n4 n3 n2 | 5 to 2 | an entry of the width's fixed codebook (`codebooks.py`), denser near zero as weights are |
| e4m3 | 8 | a floating-point number of its own (`float8.py`): a codebook of 8 bits, as it were |

A quantized weight is `scale * (code - zero)`, or `scale * codebook[code]`, with unsigned codes.

Scales are one for each output row (8 bits only, f32), or one for each group of 32, 64 or 128 input columns: f16, f32, or i8, which is
"two-level": a signed byte for each group, times one bf16 for the output row. Those of e4m3 are always f32: they are 1/448 of the largest
weight, where f16 has few bits left. Symmetric formats have the middle code as their zero.
Asymmetric ones store for each scale a zero point (u8), or, where `zero_dtype` is f16, a minimum m: `scale * code + m`.

The byte layout is in `packing.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

from mixplan.runtime.dtypes import DType
from mixplan.runtime.errors import OptionError

__all__ = ["BF16", "F32", "FORMAT_NAMES", "GROUP_SIZES", "LANES", "NONUNIFORM_BITS", "UNIT", "WeightFormat", "ceil_div", "round_up"]

LANES = 16
"""Output rows that one packed block interleaves: one 512-bit vector of f32."""

UNIT = 32
"""Columns that are packed together in the formats of 8 bits and fewer."""

GROUP_SIZES = (32, 64, 128)
"""Input columns that may share a scale."""

NONUNIFORM_BITS = (5, 4, 3, 2)
"""Widths that have a codebook. At 6 bits it would gain nothing over even spacing, and 8 bits have e4m3."""

_UNIFORM = {32: "f32", 16: "bf16", 8: "i8", 6: "i6", 5: "i5", 4: "i4", 3: "i3", 2: "i2"}
_NONUNIFORM = {bits: f"n{bits}" for bits in NONUNIFORM_BITS} | {8: "e4m3"}
_KIND_OF_NAME = {name: (bits, kind) for kind, names in ((False, _UNIFORM), (True, _NONUNIFORM)) for bits, name in names.items()}

FORMAT_NAMES = tuple(_KIND_OF_NAME)
"""Names that the `format` attribute of a plan's node may take."""

_COLUMN_MULTIPLE = {32: 1, 16: 2}
_SCALES_PER_GROUP = (DType.f16, DType.f32, DType.i8)


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
    nonuniform: bool = False
    zero_dtype: DType = DType.u8

    def __post_init__(self) -> None:
        if self.bits not in _UNIFORM:
            raise OptionError(f"A weight format of {self.bits} bits is not known; allowed: {sorted(_UNIFORM)}.")
        if self.nonuniform and self.bits not in _NONUNIFORM:
            raise OptionError(f"There is no codebook of {self.bits} bits; nonuniform formats have 2 to 5, and 8.")
        allowed = (0,) if not self.quantized else (0, *GROUP_SIZES) if self.bits == 8 else GROUP_SIZES
        if self.group_size not in allowed:
            sizes = ", ".join(map(str, allowed))
            raise OptionError(f"Format {self.name} with group_size {self.group_size} is not supported; allowed: {sizes}.")
        if not self.symmetric and (self.nonuniform or not self.quantized):
            raise OptionError(f"Format {self.name} has no zero points, so it cannot be asymmetric.")
        self._check_dtypes()

    def _check_dtypes(self) -> None:
        allowed = _SCALES_PER_GROUP if self.group_size and not self.floating else (DType.f32,)
        if self.scale_dtype not in allowed:
            kind = f"of {self.name}" if self.floating else "per group" if self.group_size else "per channel"
            names = ", ".join(dtype.value for dtype in allowed)
            raise OptionError(f"Scales {kind} are not held as {self.scale_dtype.value}; allowed: {names}.")
        zeros = (DType.u8,) if self.symmetric else (DType.u8, DType.f16)
        if self.zero_dtype not in zeros:
            kind = "Symmetric formats store no zero points" if self.symmetric else "Zero points are u8, or f16 minima"
            raise OptionError(f"{kind}; zero_dtype {self.zero_dtype.value} is not supported.")

    @classmethod
    def of(
        cls, name: str, group_size: int = 0, symmetric: bool = True, scale_dtype: DType | None = None, zero_dtype: DType = DType.u8
    ) -> WeightFormat:
        """The format called `name` (one of FORMAT_NAMES). Scales that are not given are f16 per group, f32 per channel and of e4m3."""
        if name not in _KIND_OF_NAME:
            raise OptionError(f"Weight format {name!r} is not known; allowed: {', '.join(FORMAT_NAMES)}.")
        bits, nonuniform = _KIND_OF_NAME[name]
        usual = DType.f16 if group_size and name != "e4m3" else DType.f32
        return cls(bits, group_size, symmetric, scale_dtype or usual, nonuniform, zero_dtype)

    @property
    def name(self) -> str:
        """The name that stands in a plan's `format` attribute."""
        return (_NONUNIFORM if self.nonuniform else _UNIFORM)[self.bits]

    @property
    def quantized(self) -> bool:
        """Whether the weight is stored as integer codes with scales."""
        return self.bits <= 8

    @property
    def floating(self) -> bool:
        """Whether the codes are floating-point numbers: e4m3."""
        return self.nonuniform and self.bits == 8

    @property
    def levels(self) -> int:
        """Number of codes of a quantized format: codes are 0 .. levels - 1."""
        return 1 << self.bits

    @property
    def zero_point(self) -> int:
        """The code that stands for 0 where zero points are not stored: the middle one, or 0 of e4m3. Codebooks have no such code."""
        return 0 if self.floating else self.levels // 2

    @property
    def two_level(self) -> bool:
        """Whether a group's scale is a byte times its row's scale."""
        return self.scale_dtype is DType.i8

    @property
    def has_minimum(self) -> bool:
        """Whether groups have a minimum in place of a zero point."""
        return not self.symmetric and self.zero_dtype is DType.f16

    def padded_columns(self, columns: int) -> int:
        """Columns in storage: to a multiple of the group, of 32 (i8 per channel) or of 2 (bf16)."""
        return round_up(columns, self.group_size or _COLUMN_MULTIPLE.get(self.bits, UNIT))

    def groups(self, columns: int) -> int:
        """Scales for each output row: 0 where there are none."""
        if not self.quantized:
            return 0
        return ceil_div(columns, self.group_size) if self.group_size else 1

    def total_bits(self, rows: int, columns: int) -> int:
        """Bits of a weight [rows, columns] with its scales and zero points, padding not counted."""
        per_group = 8 * self.scale_dtype.itemsize + (0 if self.symmetric else 8 * self.zero_dtype.itemsize)
        per_row = 16 if self.two_level else 0
        return rows * (columns * self.bits + self.groups(columns) * per_group + per_row)

    def effective_bits(self, rows: int, columns: int) -> float:
        """Bits per weight, scales and zero points counted in."""
        return self.total_bits(rows, columns) / (rows * columns)


F32 = WeightFormat(32)
BF16 = WeightFormat(16)
