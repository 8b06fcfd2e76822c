"""C++ expressions of the pointwise ops, and the emission of chains of them as one loop nest."""

from __future__ import annotations

from collections.abc import Sequence

from mixplan.runtime.dtypes import DType
from mixplan.runtime.plan import Node, Value
from mixplan.targets.chains import Chain
from mixplan.targets.cpu.codegen.builder import Builder
from mixplan.targets.cpu.codegen.ops.common import number
from mixplan.targets.cpu.codegen.pointwise import Statement, write_nest
from mixplan.targets.cpu.codegen.poly import Poly
from mixplan.targets.cpu.codegen.ref import Ref
from mixplan.targets.cpu.codegen.types import FLOATS, literal
from mixplan.targets.cpu.codegen.writer import Writer

__all__ = ["POINTWISE", "check", "emit_chain"]

# op: expression for floats, for integers, for booleans; "" where the op has no such form. {0} and {1} are the inputs, {t} the C++ type.
_FORMS: dict[str, tuple[str, str, str]] = {
    "neg": ("-{0}", "({t})(0 - {0})", ""),
    "abs": ("fabsf({0})", "({t})({0} < 0 ? 0 - {0} : {0})", ""),
    "exp": ("exp_f({0})", "", ""),
    "exp2": ("exp2f({0})", "", ""),
    "expm1": ("expm1f({0})", "", ""),
    "log": ("logf({0})", "", ""),
    "log1p": ("log1pf({0})", "", ""),
    "sqrt": ("sqrtf({0})", "", ""),
    "rsqrt": ("1.0f / sqrtf({0})", "", ""),
    "reciprocal": ("1.0f / {0}", "", ""),
    "tanh": ("tanh_f({0})", "", ""),
    "sigmoid": ("sigmoid_f({0})", "", ""),
    "silu": ("silu_f({0})", "", ""),
    "gelu": ("gelu_f({0})", "", ""),
    "gelu_tanh": ("gelu_tanh_f({0})", "", ""),
    "relu": ("relu_f({0})", "({t})({0} < 0 ? 0 : {0})", ""),
    "erf": ("erf_f({0})", "", ""),
    "sin": ("sinf({0})", "", ""),
    "cos": ("cosf({0})", "", ""),
    "floor": ("floorf({0})", "", ""),
    "ceil": ("ceilf({0})", "", ""),
    "round": ("rintf({0})", "", ""),
    "sign": ("sign_f({0})", "({t})(({0} > 0) - ({0} < 0))", ""),
    "log_sigmoid": ("log_sigmoid_f({0})", "", ""),
    "softplus": ("softplus_f({0}, {beta}, {threshold})", "", ""),
    "logical_not": ("{0} == 0", "{0} == 0", "{0} == 0"),
    "bitwise_not": ("", "({t})~{0}", "{0} == 0"),
    "square": ("{0} * {0}", "({t})({0} * {0})", ""),
    "isnan": ("{0} != {0}", "", ""),
    "isinf": ("fabsf({0}) == INFINITY", "", ""),
    "add": ("{0} + {1}", "({t})({0} + {1})", ""),
    "sub": ("{0} - {1}", "({t})({0} - {1})", ""),
    "mul": ("{0} * {1}", "({t})({0} * {1})", ""),
    "div": ("{0} / {1}", "", ""),
    "pow": ("powf({0}, {1})", "pow_i<{t}>({0}, {1})", ""),
    "maximum": ("max_f({0}, {1})", "{0} > {1} ? {0} : {1}", "{0} | {1}"),
    "minimum": ("min_f({0}, {1})", "{0} < {1} ? {0} : {1}", "{0} & {1}"),
    "floor_div": ("floor_div_f({0}, {1})", "floor_div_i<{t}>({0}, {1})", ""),
    "remainder": ("remainder_f({0}, {1})", "remainder_i<{t}>({0}, {1})", ""),
    "fmod": ("fmodf({0}, {1})", "fmod_i<{t}>({0}, {1})", ""),
    "atan2": ("atan2f({0}, {1})", "", ""),
    **{
        name: (f"{{0}} {sign} {{1}}",) * 3
        for name, sign in (("eq", "=="), ("ne", "!="), ("lt", "<"), ("le", "<="), ("gt", ">"), ("ge", ">="))
    },
    "logical_and": ("({0} != 0) & ({1} != 0)",) * 2 + ("{0} & {1}",),
    "logical_or": ("({0} != 0) | ({1} != 0)",) * 2 + ("{0} | {1}",),
    "logical_xor": ("({0} != 0) ^ ({1} != 0)",) * 2 + ("{0} ^ {1}",),
    "bitwise_and": ("", "({t})({0} & {1})", "{0} & {1}"),
    "bitwise_or": ("", "({t})({0} | {1})", "{0} | {1}"),
    "bitwise_xor": ("", "({t})({0} ^ {1})", "{0} ^ {1}"),
    "shift_left": ("", "shift_left_i<{t}>({0}, {1})", ""),
    "shift_right": ("", "shift_right_i<{t}>({0}, {1})", ""),
}
POINTWISE = frozenset({*_FORMS, "where", "cast"})
# Element operations that one element of an op is worth, where that is far from 1.
_COST = {"exp": 4, "silu": 5, "sigmoid": 5, "tanh": 8, "gelu": 12, "gelu_tanh": 12, "erf": 10}
_LIBM = ("exp2", "expm1", "log", "log1p", "sin", "cos", "pow", "atan2", "fmod", "remainder", "floor_div", "softplus", "log_sigmoid")
_TYPES = {DType.i64: "int64_t", DType.i32: "int32_t", DType.i16: "int16_t", DType.i8: "int8_t", DType.u8: "uint8_t"}
_NARROW = {DType.f16: "round_f16((float)({}))", DType.bf16: "round_bf16((float)({}))"}


def _form(op: str, dtype: DType) -> str:
    return _FORMS[op][0 if dtype in FLOATS else 2 if dtype is DType.bool else 1]


def check(node: Node, values: Sequence[Value]) -> str:
    """Why a pointwise node has no native form, "" if it has one."""
    if node.op in ("where", "cast"):
        return ""
    dtype = values[node.inputs[0]].dtype
    if dtype in (DType.f16, DType.bf16) or not _form(node.op, dtype):
        return f"{node.op} has no native form for {dtype.value}"
    return ""


def _cast(source: DType, target: DType, x: str) -> str:
    if target is DType.bool:
        return f"{x} != 0"
    if target in FLOATS:
        return _NARROW.get(target, "(float)({})").format(x)
    if source not in FLOATS:
        return f"({_TYPES[target]}){x}"
    if target is DType.i64:
        return f"to_i64({x})"
    return f"to_i32({x})" if target is DType.i32 else f"({_TYPES[target]})to_i64({x})"


def _expression(builder: Builder, node: Node, names: Sequence[str]) -> str:
    source, target = builder.value(node.inputs[0]).dtype, builder.value(node.outputs[0]).dtype
    if node.op == "where":
        return f"{names[0]} ? {names[1]} : {names[2]}"
    if node.op == "cast":
        return _cast(source, target, names[0])
    numbers = {}
    if node.op == "softplus":
        numbers = {key: literal(number(node, key, default), DType.f32) for key, default in (("beta", 1.0), ("threshold", 20.0))}
    return _form(node.op, source).format(*names, t=_TYPES.get(source, "float"), **numbers)


def emit_chain(builder: Builder, chain: Chain) -> None:
    """One loop nest for a chain; results that do not leave it stay in registers."""
    plan = builder.plan
    made: dict[int, str] = {}
    loads: dict[object, str] = {}
    inputs: list[Ref] = []
    statements: list[Statement] = []
    cost = 0
    for index in chain.nodes:
        node = plan.nodes[index]
        names = []
        for value in node.inputs:
            if value in made:
                names.append(made[value])
                continue
            ref = builder.ref(value)
            # A literal is told apart by its text and type, other inputs by where they lie.
            key = (ref.literal, ref.dtype) if ref.literal else (id(ref.buffer), ref.dtype, ref.shape, ref.strides, ref.offset)
            if key not in loads:
                loads[key] = f"x{len(inputs)}"
                inputs.append(ref)
            names.append(loads[key])
        made[node.outputs[0]] = f"v{len(made)}"
        statements.append(Statement(made[node.outputs[0]], builder.value(node.outputs[0]).dtype, _expression(builder, node, names)))
        cost += 20 if node.op in _LIBM else _COST.get(node.op, 1)
    shape = builder.shape(plan.nodes[chain.nodes[-1]].outputs[0])
    stores = [(made[value], builder.output(value)) for value in chain.outputs]
    writer = Writer()
    write_nest(writer, shape, inputs, statements, stores)
    work = Poly.of(cost)
    for size in shape:
        work = work * size
    builder.emit(writer, chain.nodes[-1], work)
