"""What an op's lowering function works with: operands in, plan nodes out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from mixplan.compiler.constants import Call, Constants, Expr, Literal, parameters
from mixplan.compiler.lowering.builder import Builder
from mixplan.compiler.lowering.operands import ComplexPair, Operand, Ref, plan_dtype, torch_dtype
from mixplan.compiler.lowering.symbols import Symbols, add_dims
from mixplan.runtime.dtypes import DType
from mixplan.runtime.plan import Attr, Dim, Shape, Sym

__all__ = ["CannotLower", "Context", "expr_name"]

_FILL_LIMIT = 1 << 20


class CannotLower(Exception):  # noqa: N818 - a reason, turned into UnsupportedError where the node is known
    """This call of an op has no lowering; the text says what is missing."""


class Context:
    """The plan under construction and the fx node being lowered."""

    def __init__(self, builder: Builder, symbols: Symbols, constants: Constants) -> None:
        self.build = builder
        self.symbols = symbols
        self.constants = constants
        self.fx: fx.Node | None = None

    # What torch says of the node's result

    @property
    def val(self) -> Any:
        """The fake value of the node being lowered."""
        assert self.fx is not None
        return self.fx.meta.get("val")

    @property
    def dtype(self) -> DType:
        """The result's dtype."""
        return DType.f32 if self.val.dtype.is_complex else plan_dtype(self.val.dtype)

    @property
    def shape(self) -> Shape:
        """The result's shape."""
        return self.symbols.shape(self.val.shape)

    # Operands

    def ref(self, value: Operand, dtype: DType | None = None) -> Ref:
        """The operand as a value of the plan: constants are stored, numbers become constants of `dtype` (their own if None)."""
        if isinstance(value, Ref):
            return value if dtype is None else self.cast(value, dtype)
        if isinstance(value, Expr):
            return self._constant(value, dtype)
        if isinstance(value, (bool, int, float)):
            return self.build.fill(value, dtype or _own_dtype(value))
        if isinstance(value, ComplexPair):
            raise CannotLower("a complex tensor where only real ones have a lowering")
        if isinstance(value, Sym):
            raise CannotLower(f"a number that depends on the step's size ({value.mul} * {value.sym} + {value.add}) used as a tensor")
        raise CannotLower(f"an operand of type {type(value).__name__}")

    def optional(self, value: Operand) -> Ref | None:
        """`ref`, with None kept."""
        return None if value is None else self.ref(value)

    def _constant(self, expr: Expr, dtype: DType | None) -> Ref:
        wanted = dtype or plan_dtype(expr.dtype)
        if expr.numel <= _FILL_LIMIT and not _has_parameters(expr):
            tensor = self.constants.evaluate(expr)
            first = tensor.reshape(-1)[0].item() if expr.numel else 0
            if expr.numel and bool((tensor == first).all()):
                return self.build.fill(first, wanted, expr.shape)
        return self.build.dense(expr, wanted, expr_name(expr, self.build.name))

    def promote(self, *values: Operand) -> list[Ref]:
        """The operands as refs of one dtype, by torch's promotion rules (Python numbers are weaker than tensors)."""
        dtype = plan_dtype(self.result_type(*values))
        return [self.ref(v, dtype) for v in values]

    def result_type(self, *values: Operand) -> torch.dtype:
        """torch's promoted dtype of the operands."""
        probes = sorted((_probe(v) for v in values), key=lambda p: not isinstance(p, torch.Tensor))
        kind = probes[0]
        if not isinstance(kind, torch.Tensor):
            return torch.tensor(sum(probes)).dtype
        for probe in probes[1:]:
            rank = max(kind.dim(), probe.dim() if isinstance(probe, torch.Tensor) else 0)
            kind = torch.empty((1,) * rank, dtype=torch.result_type(kind, probe))
        return kind.dtype

    def shape_of(self, value: Operand) -> Shape:
        """An operand's shape; a number's is ()."""
        return value.shape if isinstance(value, (Ref, Expr)) else ()

    def dim(self, value: Operand) -> Dim:
        """An operand that is a size."""
        if isinstance(value, (int, Sym)):
            return value
        raise CannotLower(f"a size computed from data ({type(value).__name__})")

    def static(self, value: Operand, what: str) -> int:
        """A size that must be a number."""
        if isinstance(value, int):
            return value
        raise CannotLower(f"{what} must be a number that does not depend on the step, got {value}")

    # Nodes

    def node(self, op: str, inputs: Sequence[Ref | None], dtype: DType, shape: Shape, **attrs: Attr) -> Ref:
        """A node with one output."""
        return self.build.node(op, inputs, [(dtype, shape)], **attrs)[0]

    def unary(self, op: str, x: Ref, **attrs: Attr) -> Ref:
        """An elementwise op of one input that keeps the dtype."""
        return self.node(op, [x], x.dtype, x.shape, **attrs)

    def binary(self, op: str, a: Ref, b: Ref, dtype: DType | None = None) -> Ref:
        """An elementwise op of two inputs of one dtype; `dtype` is the result's, where that differs."""
        return self.node(op, [a, b], dtype or a.dtype, self.broadcast(a.shape, b.shape))

    def broadcast(self, *shapes: Shape) -> Shape:
        """The shape that numpy's broadcasting gives."""
        rank = max(len(s) for s in shapes)
        out: list[Dim] = []
        for axis in range(rank):
            dims = [s[axis - rank + len(s)] for s in shapes if axis - rank + len(s) >= 0]
            wide = [d for d in dims if d != 1]
            if any(d != wide[0] for d in wide):
                raise CannotLower(f"shapes that do not broadcast: {shapes}")
            out.append(wide[0] if wide else 1)
        return tuple(out)

    def cast(self, x: Ref, dtype: DType) -> Ref:
        """x as dtype."""
        return x if x.dtype is dtype else self.node("cast", [x], dtype, x.shape)

    def reshape(self, x: Ref, shape: Shape) -> Ref:
        """x with another shape of as many elements."""
        return x if x.shape == tuple(shape) else self.node("reshape", [x], x.dtype, tuple(shape))

    def permute(self, x: Ref, axes: Sequence[int]) -> Ref:
        """x with its axes in the given order."""
        if list(axes) == list(range(x.rank)):
            return x
        return self.node("permute", [x], x.dtype, tuple(x.shape[a] for a in axes), axes=tuple(axes))

    def expand(self, x: Ref, shape: Shape) -> Ref:
        """x broadcast to `shape`."""
        return x if x.shape == tuple(shape) else self.node("expand", [x], x.dtype, tuple(shape))

    def slice(self, x: Ref, axis: int, start: int, stop: int, step: int = 1) -> Ref:
        """x[start:stop:step] along an axis; stop -1 is the end."""
        size = x.shape[axis]
        if isinstance(size, int):
            stop = size if stop == -1 else min(stop, size)
            length: Dim = max(-(-(stop - start) // step), 0)
            stop = -1 if stop == size else stop
        elif stop != -1:
            if stop > size.mul + size.add:
                raise CannotLower(f"a slice up to {stop} of a dimension that a step of one token makes {size.mul + size.add} long")
            length = max(-(-(stop - start) // step), 0)
        elif step == 1:
            length = Sym(sym=size.sym, mul=size.mul, add=size.add - start)
        else:
            raise CannotLower("a strided slice of a dimension that depends on the step")
        if start == 0 and stop == -1 and step == 1:
            return x
        shape = (*x.shape[:axis], length, *x.shape[axis + 1 :])
        return self.node("slice", [x], x.dtype, shape, axis=axis, start=start, stop=stop, step=step)

    def cat(self, xs: Sequence[Ref], axis: int) -> Ref:
        """xs one after another along an axis."""
        if len(xs) == 1:
            return xs[0]
        total: Dim = 0
        for x in xs:
            total = add_dims(total, x.shape[axis])
        first = xs[0].shape
        return self.node("cat", list(xs), xs[0].dtype, (*first[:axis], total, *first[axis + 1 :]), axis=axis)

    def reduce(self, op: str, x: Ref, axes: Sequence[int], keepdims: bool, dtype: DType | None = None) -> Ref:
        """A reduction over some axes."""
        shape = tuple(1 if a in axes else d for a, d in enumerate(x.shape) if keepdims or a not in axes)
        return self.node(op, [x], dtype or x.dtype, shape, axes=tuple(sorted(axes)), keepdims=keepdims)

    def iota(self, length: Dim) -> Operand:
        """0, 1, ... length - 1 as i64 [length]."""
        if isinstance(length, int):
            return Call(torch.arange, (length,), {}, (length,), torch.int64)
        return self.node("iota", [], DType.i64, (length,), axis=0)

    def literal(self, tensor: torch.Tensor) -> Ref:
        """A small constant."""
        return self.ref(Literal(tensor))


def expr_name(expr: Expr, fallback: str) -> str:
    """A constant's name in the plan: that of its first checkpoint tensor or of the buffer, else that of the node that uses it."""
    names = parameters(expr)
    if names:
        return names[0] if len(names) == 1 else f"{names[0]}+{len(names) - 1}"
    name = getattr(expr, "name", "")
    return str(name) or f"{fallback}.const"


def _has_parameters(expr: Expr) -> bool:
    return bool(parameters(expr))


def _own_dtype(value: bool | int | float) -> DType:
    return DType.bool if isinstance(value, bool) else DType.i64 if isinstance(value, int) else DType.f32


def _probe(value: Operand) -> Any:
    if isinstance(value, Ref):
        return torch.empty((1,) * min(value.rank, 1), dtype=torch_dtype(value.dtype))
    if isinstance(value, Expr):
        return torch.empty((1,) * min(len(value.shape), 1), dtype=torch_dtype(plan_dtype(value.dtype)))
    if isinstance(value, ComplexPair):
        return torch.empty((1,), dtype=torch.complex64)
    if isinstance(value, Sym):
        return 1
    return value
