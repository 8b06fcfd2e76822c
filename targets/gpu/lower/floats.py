"""Rows in 8-bit floats: the input of products whose `activation_dtype` is e4m3, rounded once for all that read it."""

from __future__ import annotations

from mixplan.runtime.devices.gpu_program import Constant
from mixplan.runtime.dtypes import DType
from mixplan.runtime.plan import Dim
from mixplan.targets.gpu.lower.builder import Builder, affine, power_of_two
from mixplan.targets.gpu.lower.views import Refused, View

__all__ = ["rounded_rows"]

_WIDEST = 65536  # columns of a row that one program holds
_WIDE = 2048  # columns from which it has more warps


def rounded_rows(b: Builder, value: int, x: View, rows: tuple[Dim, int, int], padded: int) -> tuple[View, View]:
    """Codes u8 [rows, padded] and scales f32 [rows] of `value`, which stands as x: `rows` of so many elements stride and columns."""
    found = b.rounded.get((value, padded))
    if found is not None:
        return found
    count, stride, columns = rows
    block = power_of_two(padded)
    if block > _WIDEST:
        raise Refused(f"rows of {columns} elements; the kernels hold at most {_WIDEST}")
    codes, scales = b.temporary(DType.u8, (count, padded)), b.temporary(DType.f32, (count,))
    options: dict[str, Constant] = {"K": columns, "KP": padded, "X_STRIDE": stride, "BLOCK": block}
    b.launch("quantize_fp8", [x, codes, scales], options, [affine(count)], warps=8 if block > _WIDE else 4)
    b.rounded[value, padded] = codes, scales
    return codes, scales
