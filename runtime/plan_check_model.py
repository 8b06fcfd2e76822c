"""Checks of what makes a plan a decoder: model facts, attention layers, the four inputs and the logits."""

from __future__ import annotations

import math

from mixplan.runtime.dtypes import DType
from mixplan.runtime.errors import PlanError
from mixplan.runtime.ops.base import TypedShape
from mixplan.runtime.ops.shapes import shape_text
from mixplan.runtime.plan import Plan, Sym
from mixplan.runtime.plan_check_graph import describe_node

__all__ = ["INPUTS", "check_attention", "check_decoder", "check_model"]

_TOKENS = (DType.i64, (1, Sym(sym="T")))
INPUTS: dict[str, TypedShape] = {
    "token_ids": _TOKENS,
    "position_ids": _TOKENS,
    "sequence_lengths": _TOKENS,
    "logit_rows": (DType.i64, (Sym(sym="R"),)),
}
"""What the runtime can give: a plan's values of kind "input" are some of these."""

_MAX_COUNT = 1 << 31


def check_model(plan: Plan) -> None:
    """Model facts and limits are numbers that can be."""
    model = plan.model
    limits = {
        "model.vocab_size": model.vocab_size,
        "model.context_length": model.context_length,
        "max_step_tokens": plan.max_step_tokens,
    }
    for name, number in limits.items():
        if not 1 <= number < _MAX_COUNT:
            raise PlanError(f"{name} is {number}; it must be from 1 to 2^31 - 1.")
    for token in (*model.eos_token_ids, *(() if model.bos_token_id is None else (model.bos_token_id,))):
        if not 0 <= token < _MAX_COUNT:
            raise PlanError(f"{token} is not a token id; they are from 0 to 2^31 - 1.")
    for key, setting in model.generation.items():
        if not math.isfinite(setting):
            raise PlanError(f"model.generation has {key[:80]!r} = {setting}; it must be finite.")


def check_attention(plan: Plan) -> None:
    """Each attention node has its own layer in plan.attention, and they agree about heads, sizes and window."""
    owner: dict[int, str] = {}
    for index, node in enumerate(plan.nodes):
        if node.op != "attention":
            continue
        where = describe_node(index, node)
        layer = node.attrs.get("layer")
        if not isinstance(layer, int) or not 0 <= layer < len(plan.attention):
            raise PlanError(f"{where} is layer {layer}; plan.json describes {len(plan.attention)} attention layers.")
        if layer in owner:
            raise PlanError(f"{where} has attention layer {layer}, which {owner[layer]} has already.")
        owner[layer] = where
        cache = plan.attention[layer]
        keys = (1, Sym(sym="T"), cache.kv_heads, cache.k_dim)
        values = (1, Sym(sym="T"), cache.kv_heads, cache.v_dim)
        for name, value, shape in (("keys", node.inputs[1], keys), ("values", node.inputs[2], values)):
            if plan.values[value].shape != shape:
                raise PlanError(
                    f"{where} stores {name} of shape {shape_text(plan.values[value].shape)}; "
                    f"attention layer {layer} keeps {shape_text(shape)}."
                )
        if node.attrs.get("window", 0) != cache.window:
            raise PlanError(f"{where} has window {node.attrs.get('window', 0)}; attention layer {layer} says {cache.window}.")
        if cache.heads and len(cache.heads) != cache.kv_heads:
            raise PlanError(f"Attention layer {layer} gives formats of {len(cache.heads)} KV heads; it has {cache.kv_heads}.")
        if node.attrs.get("scores", "f32") != "f32" and not all(held.quantized for held, _ in cache.runs):
            raise PlanError(
                f"{where} has scores in {node.attrs['scores']}; heads of attention layer {layer} keep keys that are no integers."
            )
    if len(owner) != len(plan.attention):
        raise PlanError(f"plan.json describes {len(plan.attention)} attention layers, but {len(owner)} nodes are attention.")


def check_decoder(plan: Plan) -> None:
    """The inputs are ones that the runtime gives, and the one output is logits f32 [1, R, vocab_size]."""
    for value in plan.values:
        if value.kind == "input" and INPUTS.get(value.name) != (value.dtype, value.shape):
            allowed = ", ".join(f"{name} {dtype.value} {shape_text(shape)}" for name, (dtype, shape) in INPUTS.items())
            raise PlanError(
                f"The plan asks for the input {value.name!r} as {value.dtype.value} {shape_text(value.shape)}.",
                hint=f"Allowed: {allowed}.",
            )
    logits = plan.values[plan.outputs[0]]
    wanted = (1, Sym(sym="R"), plan.model.vocab_size)
    if len(plan.outputs) != 1 or logits.dtype is not DType.f32 or logits.shape != wanted:
        raise PlanError(
            f"The plan's output is {logits.dtype.value} {shape_text(logits.shape)} (of {len(plan.outputs)}); "
            f"it must be one, f32 {shape_text(wanted)}."
        )
