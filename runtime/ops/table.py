"""The table of all ops, by name. (The families are being filled in: until then infer and reference raise InternalError.)"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mixplan.runtime.errors import InternalError, PlanError
from mixplan.runtime.ops.base import OpSpec
from mixplan.runtime.ops.define import define
from mixplan.runtime.plan import Attr

__all__ = ["OPS", "op_spec"]


def _pending(*_: Any) -> Any:
    raise InternalError("This op is not written yet.")


def _op(name: str, inputs: str, attrs: dict[str, type] | None = None, outputs: str = "y", **defaults: Attr) -> OpSpec:
    return define(name, tuple(inputs.split()), _pending, _pending, "", outputs=tuple(outputs.split()), attrs=attrs, defaults=defaults)


_UNARY = (
    "neg abs exp exp2 expm1 log log1p sqrt rsqrt reciprocal tanh sigmoid silu gelu gelu_tanh relu erf sin cos floor ceil round sign "
    "log_sigmoid logical_not bitwise_not square isnan isinf"
)
_BINARY = (
    "add sub mul div pow maximum minimum floor_div remainder fmod atan2 eq ne lt le gt ge logical_and logical_or logical_xor "
    "bitwise_and bitwise_or bitwise_xor shift_left shift_right"
)
_REDUCE = {"axes": tuple, "keepdims": bool}
_ARG = {"axis": int, "keepdims": bool}
_AXIS = {"axis": int}
_WEIGHT = {"format": str, "rows": int, "columns": int, "group_size": int}
_LINEAR = {**_WEIGHT, "activation_dtype": str}
_QUANT = "q scales sums"
_QIN = "q q_scales q_sums"

_ALL: tuple[OpSpec, ...] = (
    *(_op(name, "x") for name in _UNARY.split()),
    _op("softplus", "x", {"beta": float, "threshold": float}, beta=1.0, threshold=20.0),
    *(_op(name, "a b") for name in _BINARY.split()),
    _op("where", "cond a b"),
    _op("cast", "x"),
    *(_op(name, "x", _REDUCE, keepdims=False) for name in ("sum", "mean", "prod", "amax", "amin", "any", "all")),
    *(_op(name, "x", _ARG, keepdims=False) for name in ("argmax", "argmin")),
    *(_op(name, "x", _AXIS) for name in ("softmax", "log_softmax", "cumsum")),
    _op("logsumexp", "x", _ARG, keepdims=False),
    _op("topk", "x", {"k": int, "axis": int, "largest": bool}, "values indices", largest=True),
    _op("sort", "x", {"axis": int, "descending": bool}, "values indices", descending=False),
    _op("reshape", "x"),
    _op("permute", "x", {"axes": tuple}),
    _op("expand", "x"),
    _op("slice", "x", {"axis": int, "start": int, "stop": int, "step": int}, start=0, stop=-1, step=1),
    _op("cat", "xs*", _AXIS),
    _op("pad", "x", {"pads": tuple, "value": float}, value=0.0),
    _op("flip", "x", {"axes": tuple}),
    *(_op(name, "x", {"diagonal": int}, diagonal=0) for name in ("tril", "triu")),
    _op("embedding", "ids weight scales? zeros?", _WEIGHT, group_size=0),
    _op("take", "x index", _AXIS),
    _op("gather", "x index", _AXIS),
    _op("scatter", "x index src", {"axis": int, "reduce": str}, reduce="none"),
    _op("index_add", "x index src", _AXIS),
    _op("index_nd", "x indices*", _AXIS),
    _op("iota", "", _AXIS),
    _op("matmul", "a b"),
    _op("linear", "x weight scales? zeros? bias? residual?", _LINEAR, group_size=0, activation_dtype="f32"),
    _op("linear_q", f"{_QIN} weight scales zeros? bias? residual?", _LINEAR, group_size=0, activation_dtype="f32"),
    _op("gated_linear", "x weight scales? zeros? bias?", {**_LINEAR, "activation": str}, group_size=0, activation_dtype="f32"),
    _op("gated_linear_q", f"{_QIN} weight scales zeros? bias?", {**_LINEAR, "activation": str}, group_size=0, activation_dtype="f32"),
    _op("grouped_linear", "x expert_ids weight scales? zeros? bias?", {**_WEIGHT, "experts": int}, group_size=0),
    _op("quantize_act", "x", {"group": int}, _QUANT, group=0),
    _op("rms_norm", "x weight?", {"eps": float}),
    _op("layer_norm", "x weight? bias?", {"eps": float}),
    _op("rms_norm_quant", "x weight?", {"eps": float, "group": int}, _QUANT, group=0),
    _op("layer_norm_quant", "x weight? bias?", {"eps": float, "group": int}, _QUANT, group=0),
    _op("rope", "x cos sin", {"style": str}),
    _op(
        "attention",
        "q k v sinks? slopes?",
        {"layer": int, "scale": float, "window": int, "softcap": float, "mask": str},
        window=0,
        softcap=0.0,
        mask="causal",
    ),
)


def _by_name(specs: Sequence[OpSpec]) -> dict[str, OpSpec]:
    table: dict[str, OpSpec] = {}
    for spec in specs:
        if spec.name in table:
            raise InternalError(f"Two ops are called {spec.name!r}.")
        table[spec.name] = spec
    return table


OPS: dict[str, OpSpec] = _by_name(_ALL)


def op_spec(name: str) -> OpSpec:
    """The op called `name`; PlanError where there is none."""
    if name not in OPS:
        raise PlanError(f"Op {name!r} is not known to this version of mixplan.", hint="`python -m mixplan.runtime.ops` lists the ops.")
    return OPS[name]
