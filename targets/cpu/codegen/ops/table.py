"""Which emitter writes which op. An op that stands in none of these sets has no native form."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from mixplan.runtime.plan import Node, Value
from mixplan.targets.cpu.codegen.builder import Builder
from mixplan.targets.cpu.codegen.ops.attention import check_attention, emit_attention
from mixplan.targets.cpu.codegen.ops.axis import emit_arg, emit_cumsum, emit_order, emit_softmax
from mixplan.targets.cpu.codegen.ops.elementwise import POINTWISE
from mixplan.targets.cpu.codegen.ops.elementwise import check as check_pointwise
from mixplan.targets.cpu.codegen.ops.index import emit_gather, emit_index_nd, emit_scatter
from mixplan.targets.cpu.codegen.ops.linear import check_weight, emit_embedding, emit_grouped, emit_linear, emit_linear_q
from mixplan.targets.cpu.codegen.ops.matmul import emit_matmul
from mixplan.targets.cpu.codegen.ops.norm import check_quantize, emit_norm, emit_quantize
from mixplan.targets.cpu.codegen.ops.reduce import REDUCTIONS, emit_reduce
from mixplan.targets.cpu.codegen.ops.rope import emit_rope
from mixplan.targets.cpu.codegen.ops.shape import emit_cat, emit_iota, emit_pad, emit_triangle
from mixplan.targets.cpu.codegen.ops.views import VIEWS, emit_view

__all__ = ["CHECKS", "EMITTERS", "POINTWISE", "VIEWS"]

Emitter: TypeAlias = Callable[[Builder, Node, int], None]
Check: TypeAlias = Callable[[Node, Sequence[Value]], str]

EMITTERS: dict[str, Emitter] = {
    **dict.fromkeys(sorted(VIEWS), emit_view),
    **dict.fromkeys(REDUCTIONS, emit_reduce),
    **dict.fromkeys(("softmax", "log_softmax", "logsumexp"), emit_softmax),
    **dict.fromkeys(("argmax", "argmin"), emit_arg),
    **dict.fromkeys(("topk", "sort"), emit_order),
    **dict.fromkeys(("take", "index_nd"), emit_index_nd),
    **dict.fromkeys(("scatter", "index_add"), emit_scatter),
    **dict.fromkeys(("tril", "triu"), emit_triangle),
    **dict.fromkeys(("linear", "gated_linear"), emit_linear),
    **dict.fromkeys(("linear_q", "gated_linear_q"), emit_linear_q),
    **dict.fromkeys(("rms_norm", "layer_norm"), emit_norm),
    **dict.fromkeys(("quantize_act", "rms_norm_quant", "layer_norm_quant"), emit_quantize),
    "cumsum": emit_cumsum,
    "gather": emit_gather,
    "cat": emit_cat,
    "pad": emit_pad,
    "iota": emit_iota,
    "matmul": emit_matmul,
    "embedding": emit_embedding,
    "grouped_linear": emit_grouped,
    "rope": emit_rope,
    "attention": emit_attention,
}
# Why an emitter would not take a node, beyond its op's name.
CHECKS: dict[str, Check] = {
    **dict.fromkeys(sorted(POINTWISE), check_pointwise),
    **dict.fromkeys(("linear", "gated_linear", "linear_q", "gated_linear_q", "grouped_linear", "embedding"), check_weight),
    **dict.fromkeys(("rms_norm_quant", "layer_norm_quant"), check_quantize),
    "attention": check_attention,
}
