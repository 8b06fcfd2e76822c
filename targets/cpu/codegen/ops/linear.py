"""Products with packed weights: linear, linear_q, gated_linear, gated_linear_q, grouped_linear, and the embedding look-up."""

from __future__ import annotations

from collections.abc import Sequence

from mixplan.runtime.dtypes import DType
from mixplan.runtime.errors import OptionError
from mixplan.runtime.formats import WeightFormat
from mixplan.runtime.plan import Node, Value
from mixplan.targets.cpu.codegen.builder import Builder
from mixplan.targets.cpu.codegen.layout import contiguous, last_contiguous, rows, widened
from mixplan.targets.cpu.codegen.ops.common import integer, text
from mixplan.targets.cpu.codegen.poly import ONE, ZERO, Poly, product
from mixplan.targets.cpu.codegen.ref import Ref
from mixplan.targets.cpu.codegen.writer import Writer

__all__ = ["check_weight", "emit_embedding", "emit_grouped", "emit_linear", "emit_linear_q", "weight_type"]

_SCALES = {DType.f16: "Scale::F16", DType.f32: "Scale::F32", DType.i8: "Scale::TwoLevel"}
_ACTIVATIONS = {"f32": "Act::F32", "bf16": "Act::BF16", "e4m3": "Act::E4M3"}
_FUNCTIONS = {
    "silu": "Fn::Silu",
    "gelu": "Fn::Gelu",
    "gelu_tanh": "Fn::GeluTanh",
    "relu": "Fn::Relu",
    "relu2": "Fn::Relu2",
    "sigmoid": "Fn::Sigmoid",
    "tanh": "Fn::Tanh",
}
_PROLOGUES = {"quantize_act": "Pre::Plain", "rms_norm_quant": "Pre::Rms", "layer_norm_quant": "Pre::Layer"}

# Where an op's inputs weight, scales and zeros begin.
_WEIGHT_INPUT = {"linear": 1, "gated_linear": 1, "linear_q": 3, "gated_linear_q": 3, "grouped_linear": 2, "embedding": 1}


def weight_type(fmt: WeightFormat) -> str:
    """The C++ type that stands for a format in the kernels' template arguments (kernels/weight.h)."""
    if not fmt.quantized:
        return f"Weight<Fmt::{fmt.name.upper()}>"
    zeros = "None" if fmt.symmetric else "Minimum" if fmt.has_minimum else "Point"
    return f"Weight<Fmt::{fmt.name.upper()}, {fmt.group_size}, {_SCALES[fmt.scale_dtype]}, Zero::{zeros}>"


def check_weight(node: Node, values: Sequence[Value]) -> str:
    """Why the kernels have no form for the node's format or activation, "" if they have."""
    try:
        fmt = _format(node, values)
    except OptionError as error:
        return error.message
    if not fmt.group_size and fmt.has_minimum:
        return "minima without groups have no kernel"
    if node.op.endswith("_q") and (not fmt.quantized or fmt.floating):
        return f"{node.op} needs a weight of integers, not {fmt.name}"
    if node.op.startswith("gated") and text(node, "activation") not in _FUNCTIONS:
        return f"activation {text(node, 'activation')!r} has no kernel; there are {', '.join(_FUNCTIONS)}"
    if text(node, "activation_dtype", "f32") not in _ACTIVATIONS and not node.op.endswith("_q"):
        return f"activation_dtype {text(node, 'activation_dtype')!r} has no kernel; there are {', '.join(_ACTIVATIONS)}"
    return ""


def _format(node: Node, values: Sequence[Value]) -> WeightFormat:
    """The weight's format, by the node's attributes and the dtypes of its scales and zeros. OptionError where there is none."""
    first = _WEIGHT_INPUT[node.op]
    indices = [node.inputs[i] if i < len(node.inputs) else -1 for i in (first + 1, first + 2)]
    scales, zeros = (values[i].dtype if i >= 0 else None for i in indices)
    return WeightFormat.of(text(node, "format"), integer(node, "group_size"), zeros is None, scales, zeros or DType.u8)


def _weight(builder: Builder, node: Node, first: int, index: int, w: Writer) -> str:
    """Assign w, scales and zeros, which are inputs first, first + 1, first + 2; returns the template arguments format, width."""
    parts = [builder.optional(node, first + i) for i in range(3)]
    for name, ref in zip(("w", "scales", "zeros"), parts, strict=True):
        if ref is None:
            continue
        if ref.literal:
            ref = contiguous(builder, ref, index)
        w.line(f"a.{name} = {w.pointer(ref)};")
    return f"{weight_type(_format(node, builder.plan.values))}, {integer(node, 'columns')}"


def _bias(builder: Builder, ref: Ref | None, index: int, w: Writer) -> None:
    if ref is not None:
        w.line(f"a.bias = {w.pointer(contiguous(builder, ref, index))};")


def _result(builder: Builder, node: Node, residual: Ref | None, index: int, w: Writer, header: str) -> tuple[Ref, Poly]:
    """Assign y, its row count and the residual; returns y and the number of rows."""
    y = builder.output(node.outputs[0])
    w.use(header)
    m, n = product(y.shape[:-1]), integer(node, "rows")
    if residual is not None:
        residual, ldr = rows(builder, residual, index)
        w.line(f"a.residual = {w.pointer(residual)}; a.ldr = {ldr};")
    w.line(f"a.y = {w.pointer(y, write=True)}; a.ldy = {n}; a.m = {m}; a.n = {n}; a.scratch = c.scratch;")
    w.scratch.append(f"linear_scratch(nt, {integer(node, 'columns')})")
    return y, m


def emit_linear(builder: Builder, node: Node, index: int) -> None:
    """linear and gated_linear with activations in f32, or rounded from it."""
    gated = node.op == "gated_linear"
    x, ldx = rows(builder, builder.ref(node.inputs[0]), index)
    residual = None if gated else builder.optional(node, 5)
    bias = builder.optional(node, 4)
    w = Writer()
    w.line("LinearArgs a{};")
    w.line(f"a.x = {w.pointer(x)}; a.ldx = {ldx};")
    arguments = _weight(builder, node, 1, index, w)
    _bias(builder, bias, index, w)
    _, m = _result(builder, node, residual, index, w, "kernels/linear.h")
    k, n = integer(node, "columns"), integer(node, "rows")
    arguments += f", {_ACTIVATIONS[text(node, 'activation_dtype', 'f32')]}"
    if gated:
        arguments += f", {_FUNCTIONS[text(node, 'activation')]}"
    w.line(f"{node.op}<{arguments}>(a, c.tid, c.nt);")
    builder.emit(w, index, m * (max(n * k // 8, 1) * (2 if gated else 1)))


def emit_linear_q(builder: Builder, node: Node, index: int) -> None:
    """linear_q and gated_linear_q, whose activations are int8 with scales and sums."""
    gated = node.op == "gated_linear_q"
    q, ldq = rows(builder, builder.ref(node.inputs[0]), index)
    scales, ldg = rows(builder, builder.ref(node.inputs[1]), index)
    sums, lds = rows(builder, builder.ref(node.inputs[2]), index)
    if lds != ldg:
        scales, sums, ldg = contiguous(builder, scales, index), contiguous(builder, sums, index), scales.shape[-1]
    residual = None if gated else builder.optional(node, 7)
    bias = builder.optional(node, 6)
    w = Writer()
    w.line("LinearQArgs a{};")
    w.line(f"a.q = {w.pointer(q)}; a.ldq = {ldq}; a.q_scales = {w.pointer(scales)}; a.q_sums = {w.pointer(sums)}; a.ldg = {ldg};")
    arguments = _weight(builder, node, 3, index, w)
    _bias(builder, bias, index, w)
    _, m = _result(builder, node, residual, index, w, "kernels/linear_q.h")
    k, n = integer(node, "columns"), integer(node, "rows")
    if gated:
        arguments += f", {_FUNCTIONS[text(node, 'activation')]}"
    arguments += _prologue(builder, node, index, w)
    w.line(f"{node.op}<{arguments}>(a, c.tid, c.nt);")
    builder.emit(w, index, m * (max(n * k // 16, 1) * (2 if gated else 1)))


def _prologue(builder: Builder, node: Node, index: int, w: Writer) -> str:
    """Assign what the product needs to quantize few rows itself; returns the template argument, "" where it cannot."""
    made = builder.quantized.get(node.inputs[0])
    if made is None:
        return ""
    w.line(f"a.x = {w.pointer(made.x)}; a.ldx = {made.stride}; a.few = kFewRows;")
    for name, ref in (("weight", made.weight), ("bias", made.bias)):
        if ref is not None:
            w.line(f"a.norm_{name} = {w.pointer(contiguous(builder, ref, index))};")
    if made.eps:
        w.line(f"a.eps = {made.eps};")
    return f", {_PROLOGUES[made.op]}"


def emit_grouped(builder: Builder, node: Node, index: int) -> None:
    """grouped_linear: x [T, J or 1, K], expert_ids [T, J]."""
    x = last_contiguous(builder, builder.ref(node.inputs[0]), index)
    ids = contiguous(builder, widened(builder, builder.ref(node.inputs[1]), index), index)
    bias = builder.optional(node, 5)
    y = builder.output(node.outputs[0])
    t, j = ids.shape[-2], ids.shape[-1]
    stride_j = ZERO if x.shape[-2] == ONE and j != ONE else x.strides[-2]
    k, n, experts = integer(node, "columns"), integer(node, "rows"), integer(node, "experts")
    w = Writer()
    w.use("kernels/grouped_linear.h")
    w.line("GroupedLinearArgs a{};")
    w.line(f"a.x = {w.pointer(x)}; a.ldx_t = {x.strides[-3]}; a.ldx_j = {stride_j}; a.ids = {w.pointer(ids)};")
    arguments = _weight(builder, node, 2, index, w)
    _bias(builder, bias, index, w)
    w.line(f"a.y = {w.pointer(y, write=True)}; a.t = {t}; a.j = {j}; a.n = {n}; a.experts = {experts}; a.scratch = c.scratch;")
    most = (t * j).at(builder.plan.max_step_tokens, builder.plan.max_step_tokens)
    w.scratch.append(f"grouped_linear_scratch(nt, {k}, {most}, {experts})")
    w.line(f"grouped_linear<{arguments}>(a, c.tid, c.nt);")
    builder.emit(w, index, t * j * max(n * k // 8, 1))


def emit_embedding(builder: Builder, node: Node, index: int) -> None:
    """Rows of a packed weight, unpacked to f32."""
    ids = contiguous(builder, widened(builder, builder.ref(node.inputs[0]), index), index)
    y = builder.output(node.outputs[0])
    k = integer(node, "columns")
    w = Writer()
    w.use("kernels/embedding.h")
    w.line("EmbeddingArgs a{};")
    w.line(f"a.ids = {w.pointer(ids)};")
    arguments = _weight(builder, node, 1, index, w)
    w.line(f"a.y = {w.pointer(y, write=True)}; a.ldy = {k}; a.m = {ids.size}; a.rows = {integer(node, 'rows')};")
    w.line("for (int64_t i = c.tid; i < a.m; i += c.nt) if (a.ids[i] < 0 || a.ids[i] >= a.rows) fail(c);")
    w.line(f"embedding<{arguments}>(a, c.tid, c.nt);")
    builder.emit(w, index, ids.size * k)
