"""What a graph node is while it is being lowered."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

from mixplan.compiler.constants import Expr
from mixplan.runtime.dtypes import DType
from mixplan.runtime.formats import WeightFormat, ceil_div
from mixplan.runtime.plan import Shape

__all__ = ["ComplexPair", "Operand", "PackedWeight", "Ref", "plan_dtype", "torch_dtype"]


@dataclass(frozen=True)
class Ref:
    """A value of the plan that is being built."""

    index: int
    dtype: DType
    shape: Shape

    @property
    def rank(self) -> int:
        """Number of dimensions."""
        return len(self.shape)


@dataclass(frozen=True)
class ComplexPair:
    """A complex tensor, held as two real ones of its shape."""

    real: Ref
    imag: Ref


@dataclass(frozen=True)
class PackedWeight:
    """A weight to be packed: its [rows, columns] matrices, one after another, each padded to whole blocks.

    layout "linear": one matrix; "gated": gate and up, whose blocks alternate; "grouped": one expression [experts, rows, columns].
    stored: its codes are those of the checkpoint's file.
    """

    layout: str
    pieces: tuple[Expr, ...]
    format: WeightFormat
    rows: int
    columns: int
    experts: int = 1
    stored: bool = False

    @property
    def key(self) -> str:
        """Equal keys have equal bytes."""
        fmt = self.format
        names = "+".join(p.key for p in self.pieces)
        return f"{self.layout}|{names}|{fmt.name}|{fmt.group_size}|{fmt.symmetric}|{fmt.scale_dtype}|{fmt.zero_dtype}|{self.stored}"

    @property
    def copies(self) -> int:
        """How many [rows, columns] matrices it holds."""
        return len(self.pieces) if self.layout == "gated" else self.experts

    @property
    def blocks(self) -> int:
        """16-row blocks of one matrix."""
        return ceil_div(self.rows, 16)


# Refs, complex pairs, constant expressions, dimensions, lists of these, and whatever plain values torch's signatures take.
Operand: TypeAlias = Any

_TO_PLAN = {
    torch.float64: DType.f32,
    torch.float32: DType.f32,
    torch.float16: DType.f32,
    torch.bfloat16: DType.f32,
    torch.int64: DType.i64,
    torch.int32: DType.i32,
    torch.int16: DType.i16,
    torch.int8: DType.i8,
    torch.uint8: DType.u8,
    torch.bool: DType.bool,
}
_TO_TORCH = {
    DType.f32: torch.float32,
    DType.i64: torch.int64,
    DType.i32: torch.int32,
    DType.i16: torch.int16,
    DType.i8: torch.int8,
    DType.u8: torch.uint8,
    DType.bool: torch.bool,
}


def plan_dtype(dtype: torch.dtype) -> DType:
    """The plan's dtype for a torch dtype. Every float is f32: a plan computes in f32 whatever width the model asks for."""
    if dtype not in _TO_PLAN:
        raise ValueError(f"dtype {dtype} has no place in a plan")
    return _TO_PLAN[dtype]


def torch_dtype(dtype: DType) -> torch.dtype:
    """The torch dtype of a plan value, for torch's promotion rules."""
    return _TO_TORCH[dtype]
