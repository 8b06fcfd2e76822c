"""The quantizer's inner loops in native code: the same search as scales.py and the same compensation as gptq.py, some thirty times faster.

Compiled once from our own source by the compiler that plans are compiled with, and kept in the kernel cache. Rows stand in the lanes of a
vector and products are not fused with sums, so that every CPU gives the same codes. Where there is no compiler, torch does the work.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from mixplan.compiler.scales import is_plain
from mixplan.runtime.codebooks import CODEBOOKS
from mixplan.runtime.devices.cpu_info import runnable_levels
from mixplan.runtime.dtypes import DType
from mixplan.runtime.errors import InternalError, MissingExtraError, UnsupportedError
from mixplan.runtime.formats import WeightFormat
from mixplan.targets.cpu.cache import cached_kernel, kernel_key
from mixplan.targets.cpu.toolchain import find_compiler

__all__ = ["available", "quantize"]

_SOURCES = Path(__file__).parent / "templates"
_FILES = ("lanes.h", "format.h", "search.h", "quantize.h")
_FLAGS = ("-ffp-contract=off",)
_STEPS, _MINIMUM, _BOOK = 0, 1, 2


class _Format(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_int32) for name in ("kind", "bits", "group", "symmetric", "half_scales", "two_level", "plain", "finer")),
        ("book", ctypes.c_float * 32),
    )


class _Job(ctypes.Structure):
    _fields_ = (
        ("format", _Format),
        *((name, ctypes.c_int64) for name in ("n", "columns", "blocks")),
        *((name, ctypes.c_void_p) for name in ("rows", "weights", "factors", "sizes", "codes", "scales", "zeros")),
    )


def _source() -> str:
    lines = [line for name in _FILES for line in (_SOURCES / name).read_text(encoding="utf-8").splitlines()]
    return "\n".join(line for line in lines if line != "#pragma once" and not line.startswith('#include "')) + "\n"


@cache
def _library() -> ctypes.CDLL | None:
    levels = runnable_levels()
    if not levels:
        return None
    try:
        compiler, source = find_compiler(), _source()
        key = kernel_key(source, (*compiler.flags(levels[0]), *_FLAGS), compiler.identity)
    except (MissingExtraError, UnsupportedError):
        return None
    library = ctypes.CDLL(str(cached_kernel(key, lambda: compiler.compile(source, levels[0], _FLAGS))))
    library.mixplan_quantize.argtypes = (ctypes.POINTER(_Job),)
    library.mixplan_quantize.restype = ctypes.c_int
    return library


def available() -> bool:
    """Whether there is native code here; compiles it the first time."""
    return _library() is not None


def quantize(
    fmt: WeightFormat, rows: Tensor, group: int, weights: Tensor | None, factors: Sequence[Tensor] = ()
) -> tuple[Tensor, Tensor, Tensor]:
    """Codes u8 [n, K], scales and zeros f32 [n, K / group] of rows f32 [n, K], K a multiple of the group.

    weights: f32 [K], what a column's squared error counts for. factors: see `compensated` (gptq.py); none for nearest codes.
    """
    library = _library()
    if library is None:
        raise InternalError("The native quantizer was called where there is none.")
    n, columns = rows.shape
    rows = rows.contiguous()
    codes = torch.empty(n, columns, dtype=torch.uint8)
    scales, zeros = torch.empty(n, columns // group), torch.empty(n, columns // group)
    weights = None if weights is None else weights.contiguous()
    held = [factor.contiguous() for factor in factors]
    job = _Job(
        format=_format(fmt, group, finer=bool(held)),
        n=n,
        columns=columns,
        blocks=len(held),
        rows=rows.data_ptr(),
        weights=None if weights is None else weights.data_ptr(),
        factors=ctypes.cast((ctypes.c_void_p * len(held))(*(factor.data_ptr() for factor in held)), ctypes.c_void_p),
        sizes=ctypes.cast((ctypes.c_int64 * len(held))(*(len(factor) for factor in held)), ctypes.c_void_p),
        codes=codes.data_ptr(),
        scales=scales.data_ptr(),
        zeros=zeros.data_ptr(),
    )
    if library.mixplan_quantize(ctypes.byref(job)):
        raise MemoryError(f"no memory for {columns} columns")
    return codes, scales, zeros


def _format(fmt: WeightFormat, group: int, *, finer: bool) -> _Format:
    kind = _BOOK if fmt.nonuniform else _MINIMUM if fmt.has_minimum else _STEPS
    book = CODEBOOKS[fmt.bits].tolist() if fmt.nonuniform else []
    return _Format(
        kind=kind,
        bits=fmt.bits,
        group=group,
        symmetric=fmt.symmetric,
        half_scales=fmt.scale_dtype is DType.f16,
        two_level=fmt.two_level,
        plain=is_plain(fmt),
        finer=finer,
        book=(ctypes.c_float * 32)(*book),
    )
