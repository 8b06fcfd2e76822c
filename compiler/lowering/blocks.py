"""Norms, rotary embedding, attention, and the quantization of activations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from mixplan.compiler.lowering.context import CannotLower, Context
from mixplan.compiler.lowering.operands import Operand, Ref
from mixplan.compiler.lowering.symbols import product
from mixplan.compiler.lowering.weights import quantized_act
from mixplan.runtime.dtypes import DType
from mixplan.runtime.plan import Shape

__all__ = ["TABLE"]

Lowering = Callable[..., Operand]
_EPS = float(np.finfo(np.float32).eps)


def rms_norm(c: Context, x: Operand, weight: Operand, eps: float) -> Operand:
    """Over the last axis."""
    ref = c.ref(x, DType.f32)
    return c.node("rms_norm", [ref, _vector(c, weight)], DType.f32, ref.shape, eps=float(eps))


def layer_norm(c: Context, x: Operand, weight: Operand, bias: Operand, eps: float) -> Operand:
    """Over the last axis."""
    ref = c.ref(x, DType.f32)
    return c.node("layer_norm", [ref, _vector(c, weight), _vector(c, bias)], DType.f32, ref.shape, eps=float(eps))


def _vector(c: Context, weight: Operand) -> Ref | None:
    """A norm's weight, flat."""
    if weight is None:
        return None
    ref = c.ref(weight, DType.f32)
    return c.reshape(ref, (product(ref.shape),))


def _flat_norm(c: Context, x: Operand, shape: Any, run: Callable[[Ref], Operand]) -> Operand:
    """A norm over the last len(shape) axes, as one over the last axis."""
    ref = c.ref(x, DType.f32)
    if len(shape) > 1:
        flat = c.reshape(ref, (*ref.shape[: -len(shape)], product(tuple(shape))))
        return c.reshape(run(flat), ref.shape)
    return run(ref)


def aten_layer_norm(
    c: Context, x: Operand, shape: Any, weight: Operand = None, bias: Operand = None, eps: float = 1e-5, *_: Any
) -> Operand:
    """torch's layer_norm."""
    return _flat_norm(c, x, shape, lambda flat: layer_norm(c, flat, weight, bias, eps))


def native_layer_norm(c: Context, x: Operand, shape: Any, weight: Operand, bias: Operand, eps: float) -> Operand:
    """The same with its statistics, which inference does not use."""
    return [aten_layer_norm(c, x, shape, weight, bias, eps), None, None]


def aten_rms_norm(c: Context, x: Operand, shape: Any, weight: Operand = None, eps: float | None = None) -> Operand:
    """torch's rms_norm."""
    return _flat_norm(c, x, shape, lambda flat: rms_norm(c, flat, weight, _EPS if eps is None else eps))


def quantize_act(c: Context, x: Operand, group: int) -> Operand:
    """Dynamic int8 quantization."""
    return list(quantized_act(c, c.ref(x, DType.f32), group))


def _quant_outputs(c: Context) -> list[tuple[DType, Shape]]:
    q, scales, sums = c.val
    return [(DType.i8, c.symbols.shape(q.shape)), (DType.f32, c.symbols.shape(scales.shape)), (DType.f32, c.symbols.shape(sums.shape))]


def rms_norm_quant(c: Context, x: Operand, weight: Operand, eps: float, group: int) -> Operand:
    """rms_norm, its output quantized."""
    inputs = [c.ref(x, DType.f32), _vector(c, weight)]
    return list(c.build.node("rms_norm_quant", inputs, _quant_outputs(c), eps=float(eps), group=group))


def layer_norm_quant(c: Context, x: Operand, weight: Operand, bias: Operand, eps: float, group: int) -> Operand:
    """layer_norm, its output quantized."""
    inputs = [c.ref(x, DType.f32), _vector(c, weight), _vector(c, bias)]
    return list(c.build.node("layer_norm_quant", inputs, _quant_outputs(c), eps=float(eps), group=group))


def rope(c: Context, x: Operand, cos: Operand, sin: Operand, style: str) -> Operand:
    """Rotary embedding of token-major heads."""
    ref = c.ref(x, DType.f32)
    return c.node("rope", [ref, c.ref(cos, DType.f32), c.ref(sin, DType.f32)], DType.f32, ref.shape, style=style)


def attention_tm(
    c: Context,
    q: Operand,
    k: Operand,
    v: Operand,
    scale: float,
    layer: int,
    window: int = 0,
    softcap: float = 0.0,
    sinks: Operand = None,
    slopes: Operand = None,
    mask: str = "causal",
) -> Operand:
    """Attention of token-major heads over the cache and the step's own tokens."""
    queries, keys, values = c.ref(q, DType.f32), c.ref(k, DType.f32), c.ref(v, DType.f32)
    shape = (*queries.shape[:3], values.shape[3])
    attrs: dict[str, Any] = {"layer": layer, "scale": float(scale), "window": window, "softcap": float(softcap), "mask": mask}
    return c.node("attention", [queries, keys, values, _vector(c, sinks), _vector(c, slopes)], DType.f32, shape, **attrs)


def attention(c: Context, q: Operand, k: Operand, v: Operand, *rest: Operand, **names: Operand) -> Operand:
    """The captured, head-major form."""
    heads: list[Operand] = [c.permute(c.ref(x, DType.f32), (0, 2, 1, 3)) for x in (q, k, v)]
    return attention_tm(c, heads[0], heads[1], heads[2], *rest, **names)


def conv1d(
    c: Context,
    x: Operand,
    weight: Operand,
    bias: Operand = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Operand:
    """Refused: a convolution over tokens needs state between steps, which a plan keeps for attention only."""
    raise CannotLower("a convolution over tokens: it needs state between steps, which a plan keeps for attention only")


TABLE: dict[str, Lowering] = {
    "mixplan.rms_norm": rms_norm,
    "mixplan.layer_norm": layer_norm,
    "mixplan.rms_norm_quant": rms_norm_quant,
    "mixplan.layer_norm_quant": layer_norm_quant,
    "mixplan.quantize_act": quantize_act,
    "mixplan.rope": rope,
    "mixplan.attention_tm": attention_tm,
    "mixplan.attention": attention,
    "aten.layer_norm": aten_layer_norm,
    "aten.native_layer_norm": native_layer_norm,
    "aten.rms_norm": aten_rms_norm,
    "aten.conv1d": conv1d,
    "aten.convolution": conv1d,
}
