"""C++ spellings of the plan's element types and numbers."""

from __future__ import annotations

import math
import struct

from mixplan.runtime.dtypes import DType

__all__ = ["FLOATS", "STORAGE", "VARIABLE", "literal"]

# How an element lies in memory. Booleans are bytes of 0 or 1, as in numpy; f16 and bf16 are bit patterns.
STORAGE = {
    DType.f32: "float",
    DType.f16: "uint16_t",
    DType.bf16: "uint16_t",
    DType.i64: "int64_t",
    DType.i32: "int32_t",
    DType.i16: "int16_t",
    DType.i8: "int8_t",
    DType.u8: "uint8_t",
    DType.bool: "uint8_t",
}
# How a single element is held while it is computed with.
VARIABLE = {**STORAGE, DType.f16: "float", DType.bf16: "float"}
FLOATS = frozenset({DType.f32, DType.f16, DType.bf16})
_SPELLED = {"inf": "INFINITY", "-inf": "(-INFINITY)", "nan": "NAN"}


def literal(value: float | int | bool | str, dtype: DType) -> str:
    """`value` as a C++ literal of the variable type of `dtype`. "inf", "-inf" and "nan" are spelled, as in the plan."""
    if dtype in FLOATS:
        if isinstance(value, str):
            return _SPELLED[value]
        number = float(value)
        if not math.isfinite(number):
            return _SPELLED[str(number)]
        try:
            rounded = struct.unpack("<f", struct.pack("<f", number))[0]
        except OverflowError:
            return _SPELLED["inf" if number > 0 else "-inf"]
        text = repr(rounded)
        return f"{text}f" if text[0] != "-" else f"({text}f)"
    number_int = int(value)
    if dtype is DType.bool:
        return "1" if number_int else "0"
    if dtype is DType.i64:
        return "INT64_MIN" if number_int == -(2**63) else f"INT64_C({number_int})" if number_int >= 0 else f"(-INT64_C({-number_int}))"
    return f"({VARIABLE[dtype]})({number_int})"
