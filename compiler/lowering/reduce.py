"""Reductions, softmax, cumulative sums, top-k and sort."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mixplan.compiler.lowering.context import CannotLower, Context
from mixplan.compiler.lowering.operands import Operand, Ref
from mixplan.runtime.dtypes import DType
from mixplan.runtime.plan import Shape

__all__ = ["TABLE"]

Lowering = Callable[..., Operand]


def _axes(x: Ref, dim: Any) -> list[int]:
    """A dim argument (None, an int or a list, negative ones too) as axes."""
    if dim is None or dim == []:
        return list(range(x.rank))
    dims = [dim] if isinstance(dim, int) else list(dim)
    return [d % x.rank for d in dims] if x.rank else []


def _reduction(op: str) -> Lowering:
    def lower(c: Context, x: Operand, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Operand:
        ref = c.ref(x)
        # torch sums integers and booleans in int64, and takes the mean of floats only.
        if op in ("sum", "mean", "prod"):
            ref = c.cast(ref, c.dtype)
        if op in ("any", "all"):
            ref = c.cast(ref, DType.bool)
        axes = _axes(ref, dim)
        return c.reduce(op, ref, axes, keepdim) if axes else ref

    return lower


def _extreme(op: str, arg: str) -> Lowering:
    """max.dim and min.dim: values and indices."""

    def lower(c: Context, x: Operand, dim: int, keepdim: bool = False) -> Operand:
        ref = c.ref(x)
        axis = dim % ref.rank
        values = c.reduce(op, ref, [axis], keepdim)
        indices = c.node(arg, [ref], DType.i64, values.shape, axis=axis, keepdims=keepdim)
        return [values, indices]

    return lower


def _arg(op: str) -> Lowering:
    def lower(c: Context, x: Operand, dim: int | None = None, keepdim: bool = False) -> Operand:
        ref = c.ref(x)
        if dim is None:
            ref, dim = c.reshape(ref, (c.static(_numel(ref.shape), "the size that argmax runs over"),)), 0
        axis = dim % ref.rank
        return c.node(op, [ref], DType.i64, c.shape, axis=axis, keepdims=keepdim)

    return lower


def _numel(shape: Shape) -> Any:
    from mixplan.compiler.lowering.symbols import product

    return product(shape)


def _softmax(op: str) -> Lowering:
    def lower(c: Context, x: Operand, dim: int, *_: Any, **__: Any) -> Operand:
        ref = c.ref(x, DType.f32)
        if not ref.rank:
            raise CannotLower(f"{op} of a tensor without dims")
        return c.unary(op, ref, axis=dim % ref.rank)

    return lower


def logsumexp(c: Context, x: Operand, dim: Any, keepdim: bool = False) -> Operand:
    """log(sum(exp(x))) over one axis."""
    ref = c.ref(x, DType.f32)
    axes = _axes(ref, dim)
    if len(axes) != 1:
        raise CannotLower(f"logsumexp over {len(axes)} axes; one has a lowering")
    return c.node("logsumexp", [ref], DType.f32, c.shape, axis=axes[0], keepdims=keepdim)


def cumsum(c: Context, x: Operand, dim: int, *, dtype: Any = None) -> Operand:
    """Running sums; integers and booleans in int64 unless a dtype is given."""
    ref = c.ref(x, c.dtype)
    return c.unary("cumsum", ref, axis=dim % max(ref.rank, 1))


def topk(c: Context, x: Operand, k: Operand, dim: int = -1, largest: bool = True, sorted: bool = True) -> Operand:  # noqa: A002
    """The k largest (or smallest) values, in order, and their indices."""
    ref = c.ref(x)
    axis = dim % ref.rank
    count = c.static(k, "the k of topk")
    shape = (*ref.shape[:axis], count, *ref.shape[axis + 1 :])
    return list(c.build.node("topk", [ref], [(ref.dtype, shape), (DType.i64, shape)], k=count, axis=axis, largest=largest))


def sort(c: Context, x: Operand, dim: int = -1, descending: bool = False, *, stable: bool | None = None) -> Operand:
    """Values in order and their indices; always stable."""
    if isinstance(stable, int) and not isinstance(stable, bool):
        raise CannotLower("this overload of sort")
    ref = c.ref(x)
    both = [(ref.dtype, ref.shape), (DType.i64, ref.shape)]
    return list(c.build.node("sort", [ref], both, axis=dim % max(ref.rank, 1), descending=descending))


def sort_stable(c: Context, x: Operand, *, stable: bool | None = None, dim: int = -1, descending: bool = False) -> Operand:
    """sort.stable."""
    return sort(c, x, dim, descending)


def argsort(c: Context, x: Operand, dim: int = -1, descending: bool = False, **_: Any) -> Operand:
    """The indices of sort."""
    return sort(c, x, dim, descending)[1]


def vector_norm(c: Context, x: Operand, order: Any = 2, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Operand:
    """The 1-, 2- or infinity-norm over some axes."""
    ref = c.ref(x, DType.f32)
    axes = _axes(ref, dim)
    if order == 2:
        return c.unary("sqrt", c.reduce("sum", c.unary("square", ref), axes, keepdim))
    if order == 1:
        return c.reduce("sum", c.unary("abs", ref), axes, keepdim)
    if order == float("inf"):
        return c.reduce("amax", c.unary("abs", ref), axes, keepdim)
    raise CannotLower(f"a norm of order {order}; 1, 2 and inf have a lowering")


def norm(c: Context, x: Operand, p: Any = 2, dim: Any = None, keepdim: bool = False, **_: Any) -> Operand:
    """torch's older norm."""
    return vector_norm(c, x, 2 if p is None else p, dim, keepdim)


def variance(c: Context, x: Operand, dim: Any = None, unbiased: Any = True, keepdim: bool = False, *, correction: Any = None) -> Operand:
    """Variance over static axes, by default with Bessel's correction."""
    ref = c.ref(x, DType.f32)
    axes = _axes(ref, dim)
    count = c.static(_numel(tuple(ref.shape[a] for a in axes)), "the number of elements of a variance")
    less = (1 if unbiased else 0) if correction is None else correction
    centred = c.binary("sub", ref, c.reduce("mean", ref, axes, True))
    total = c.reduce("sum", c.unary("square", centred), axes, keepdim)
    return c.binary("mul", total, c.ref(1.0 / (count - less), DType.f32))


def std(c: Context, x: Operand, dim: Any = None, unbiased: Any = True, keepdim: bool = False, *, correction: Any = None) -> Operand:
    """Square root of the variance."""
    return c.unary("sqrt", variance(c, x, dim, unbiased, keepdim, correction=correction))


def diff(c: Context, x: Operand, n: int = 1, dim: int = -1, prepend: Operand = None, append: Operand = None) -> Operand:
    """Differences of neighbours, after putting `prepend` and `append` at the ends."""
    ref = c.ref(x)
    axis = dim % ref.rank
    parts = [c.ref(p, ref.dtype) for p in (prepend, ref, append) if p is not None]
    out = c.cat(parts, axis)
    for _ in range(n):
        size = out.shape[axis]
        later = c.slice(out, axis, 1, -1)
        if isinstance(size, int):
            earlier = c.slice(out, axis, 0, size - 1)
        else:
            # Dropping the last of an unknown number: reversed, it is the first.
            flipped = c.slice(c.node("flip", [out], out.dtype, out.shape, axes=(axis,)), axis, 1, -1)
            earlier = c.node("flip", [flipped], out.dtype, flipped.shape, axes=(axis,))
        out = c.binary("logical_xor" if out.dtype is DType.bool else "sub", later, earlier)
    return out


TABLE: dict[str, Lowering] = {
    "aten.sum": _reduction("sum"),
    "aten.mean": _reduction("mean"),
    "aten.prod": _reduction("prod"),
    "aten.amax": _reduction("amax"),
    "aten.amin": _reduction("amin"),
    "aten.max.default": _reduction("amax"),
    "aten.min.default": _reduction("amin"),
    "aten.any": _reduction("any"),
    "aten.all": _reduction("all"),
    "aten.max.dim": _extreme("amax", "argmax"),
    "aten.min.dim": _extreme("amin", "argmin"),
    "aten.argmax": _arg("argmax"),
    "aten.argmin": _arg("argmin"),
    "aten.softmax": _softmax("softmax"),
    "aten._softmax": _softmax("softmax"),
    "aten._safe_softmax": _softmax("softmax"),
    "aten.log_softmax": _softmax("log_softmax"),
    "aten._log_softmax": _softmax("log_softmax"),
    "aten.logsumexp": logsumexp,
    "aten.cumsum": cumsum,
    "aten.topk": topk,
    "aten.sort.default": sort,
    "aten.sort.stable": sort_stable,
    "aten.argsort": argsort,
    "aten.linalg_vector_norm": vector_norm,
    "aten.norm": norm,
    "aten.var": variance,
    "aten.std": std,
    "aten.diff": diff,
}
