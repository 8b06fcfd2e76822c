"""Which rows of a plan's packed weights are which parameter of the checkpoint.

A plan merges layers (Q, K and V; gate and up) and names no parameter's place in the merged weight. So the model is captured once more and
taken through the same passes under the plan's own decisions: the lowered graph has the plan's values, in order, and says of each which
expression over the checkpoint's parameters it holds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from torch import fx

from mixplan.compiler.constants import Call, Constants, Expr, Parameter, parameters
from mixplan.compiler.decisions import layer_name
from mixplan.compiler.frontends import Captured
from mixplan.compiler.lowering import Lowered, lower
from mixplan.compiler.lowering.operands import PackedWeight
from mixplan.compiler.packed import dense_array
from mixplan.compiler.tuning import collector_paused
from mixplan.passes.base import FunctionPass, PassContext, PassOptions, PassResult
from mixplan.passes.decision import DECISION, LayerDecision
from mixplan.passes.manager import PassManager
from mixplan.passes.pipeline import LEVELS, default_passes
from mixplan.passes.precision.effective_bits import LayerSize
from mixplan.passes.precision.layers import layers_of
from mixplan.passes.precision.schemes import parse_scheme
from mixplan.runtime.errors import UnsupportedError
from mixplan.runtime.formats import LANES, WeightFormat, ceil_div
from mixplan.runtime.packing import Quantized, slice_blocks, split_gated, unpack_codes
from mixplan.runtime.plan import Plan
from mixplan.runtime.plan_io import LoadedPlan

__all__ = ["PlanLayer", "codes_of", "plan_layers"]

_ROUNDED = ":e4m3"
_QUANTIZING = frozenset({"linear_q", "gated_linear_q", *(op + _ROUNDED for op in ("linear", "gated_linear"))})


@dataclass(frozen=True)
class _Part:
    """Rows [start, stop) of a parameter: from row `first` on of matrix `copy` of a packed weight, whose values are `roles`."""

    start: int
    stop: int
    roles: Mapping[str, int]
    weight: PackedWeight
    copy: int
    first: int


@dataclass
class PlanLayer:
    """One parameter of the checkpoint that the plan holds packed. `ops` are the plan's ops that read it, marked where they round to e4m3.

    tangled: why its rows cannot be told apart in the plan; "" where they can.
    """

    parameter: str
    format: WeightFormat
    ops: set[str] = field(default_factory=set)
    parts: list[_Part] = field(default_factory=list)
    tangled: str = ""

    @property
    def name(self) -> str:
        """The module that the parameter belongs to."""
        return layer_name(self.parameter)

    @property
    def rounded_input(self) -> bool:
        """Whether the layer's input is rounded to 8 bits: to int8, or to e4m3 where the weight is that."""
        return bool(self.ops & _QUANTIZING)


def plan_layers(loaded: LoadedPlan, captured: Captured) -> list[PlanLayer]:
    """Every packed parameter of the plan, in the plan's order. Changes `captured.graph`.

    Raises UnsupportedError where this version lowers the model to another graph than the plan's, or where the plan holds constants that
    are not the checkpoint's (a scale was moved from one layer into another).
    """
    plan = loaded.plan
    scaling = plan.provenance.options.get("scaling")
    if scaling:
        raise UnsupportedError(
            f"The plan was compiled with --scaling {scaling}, which moves numbers from norms into weights; this export copies the "
            "checkpoint's own norms and biases.",
            hint="Compile with --scaling none, and export that plan.",
        )
    constants = Constants(captured.weights)
    lowered = _lower_again(plan, captured, constants)
    _check_same(loaded, lowered, constants)
    readers: dict[int, set[str]] = {}
    for node in plan.nodes:
        op = node.op + (_ROUNDED if node.attrs.get("activation_dtype") == "e4m3" else "")
        for index in node.inputs:
            readers.setdefault(index, set()).add(op)
    roles: dict[str, dict[str, int]] = {}
    for index, source in lowered.sources.items():
        if source.packed is not None:
            roles.setdefault(source.packed.key, {})[source.role] = index
    layers: dict[str, PlanLayer] = {}
    for source in lowered.sources.values():
        if source.packed is not None and source.role == "weight":
            _enter(layers, source.packed, roles[source.packed.key], readers)
    for layer in layers.values():
        layer.parts.sort(key=lambda part: part.start)
    return list(layers.values())


def codes_of(loaded: LoadedPlan, layer: PlanLayer) -> Quantized:
    """The parameter as the plan holds it: codes u8 [N, K], scales f32 [N, G], zeros [N, G] (None for codebooks), row by row."""
    codes, scales, zeros = [], [], []
    for part in layer.parts:
        packed = {role: loaded.constant(index) for role, index in part.roles.items()}
        if part.weight.layout == "gated":
            packed = split_gated(packed)[part.copy]
        last = part.first + part.stop - part.start
        block = part.first // LANES
        found = unpack_codes(layer.format, slice_blocks(packed, block, ceil_div(last, LANES)))
        rows = slice(part.first - block * LANES, last - block * LANES)
        codes.append(found.codes[rows, : part.weight.columns])
        scales.append(found.scales[rows])
        if found.zeros is not None:
            zeros.append(found.zeros[rows])
    return Quantized(np.concatenate(codes), np.concatenate(scales), np.concatenate(zeros) if zeros else None)


def _lower_again(plan: Plan, captured: Captured, constants: Constants) -> Lowered:
    decided = {record.layer: record for record in plan.decisions}

    def assign(graph: fx.GraphModule, context: PassContext) -> PassResult:
        layers = layers_of(graph, context.tied)
        for layer in layers:
            names = (*layer.name.split(" + "), *layer.aliases)
            record = next((decided[name] for name in names if name in decided), None)
            scheme = parse_scheme("FP32" if record is None else record.scheme)
            decision = LayerDecision(layer.name, scheme, "" if record is None else record.rule)
            context.decisions[layer.name] = decision
            context.sizes[layer.name] = LayerSize(layer.rows, layer.columns)
            for node in layer.nodes:
                node.meta[DECISION] = decision
        return PassResult(graph, bool(layers), len(layers))

    written = plan.provenance.options
    options = PassOptions(target=written.get("targets", "cpu").split()[0], user_passes=tuple(written.get("passes", "").split()))
    known = FunctionPass("assign_precision", "precision", "the plan's own schemes", assign)
    passes = [known if one.name == known.name else one for one in default_passes(options)]
    with collector_paused():
        graph = PassManager(passes, LEVELS).run(captured.graph, PassContext(options=options, tied=dict(captured.tied))).graph
        return lower(graph, constants)


def _check_same(loaded: LoadedPlan, lowered: Lowered, constants: Constants) -> None:
    plan = loaded.plan
    ours = [(value.name, value.kind, value.dtype, value.shape) for value in lowered.values]
    theirs = [(value.name, value.kind, value.dtype, value.shape) for value in plan.values]
    if ours != theirs:
        at = next((i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), min(len(ours), len(theirs)))
        name = plan.values[at].name if at < len(theirs) else "the end"
        raise UnsupportedError(
            f"This mixplan lowers the model to another graph than the plan's (made by {plan.provenance.versions.get('mixplan', '?')} with "
            f"torch {plan.provenance.versions.get('torch', '?')}): they differ from {name} on, so merged layers cannot be told apart.",
            hint="Compile the model again with the versions installed here, and export that plan.",
        )
    for index, source in lowered.sources.items():
        if source.expr is None or not parameters(source.expr):
            continue
        value = plan.values[index]
        if not np.array_equal(loaded.constant(index), dense_array(constants, source.expr, value.dtype)):
            raise UnsupportedError(
                f"The plan's constant {value.name} is not what the checkpoint makes of it: scales were moved between layers when the plan "
                "was compiled, and this export copies the checkpoint's own norms and biases.",
                hint="Compile without scaling, and export that plan.",
            )


def _enter(layers: dict[str, PlanLayer], weight: PackedWeight, roles: Mapping[str, int], readers: Mapping[int, set[str]]) -> None:
    ops = readers.get(roles["weight"], set())
    for copy, piece in enumerate(weight.pieces):
        for name in parameters(piece):
            layer = layers.setdefault(name, PlanLayer(name, weight.format))
            layer.ops |= ops
            if layer.format != weight.format:
                layer.tangled = f"the plan holds it in two formats, {layer.format.name} and {weight.format.name}"
        ranges = None if weight.layout == "grouped" else _row_ranges(piece)
        if ranges is None:
            for name in parameters(piece):
                layers[name].tangled = "the plan holds it transformed, not row by row"
            continue
        first = 0
        for name, start, stop in ranges:
            layers[name].parts.append(_Part(start, stop, roles, weight, copy, first))
            first += stop - start


def _row_ranges(expr: Expr) -> list[tuple[str, int, int]] | None:
    """Parameters and their rows that a matrix consists of, top to bottom; None where it is anything but a stack of rows."""
    if isinstance(expr, Parameter):
        return [(expr.name, 0, expr.shape[0])]
    if not isinstance(expr, Call) or not expr.args:
        return None
    if expr.op in ("cat", "concat"):
        axis = expr.args[1] if len(expr.args) > 1 else expr.kwargs.get("dim", 0)
        found = [_row_ranges(piece) for piece in expr.args[0]] if axis % len(expr.shape) == 0 else [None]
        return None if any(one is None for one in found) else [row for one in found if one is not None for row in one]
    if expr.op == "slice" and isinstance(expr.args[0], Parameter):
        axis, start, step = ([*expr.args[1:], *(None, None, None, None)][i] for i in (0, 1, 3))
        if (axis or 0) % len(expr.shape) == 0 and step in (None, 1):
            begin = start or 0
            begin += expr.args[0].shape[0] if begin < 0 else 0
            return [(expr.args[0].name, begin, begin + expr.shape[0])]
    return None
