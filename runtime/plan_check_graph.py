"""Checks of a plan's graph: indices, SSA order, each op against its shape rule, and how regions cut it up."""

from __future__ import annotations

from mixplan.runtime.dtypes import DType
from mixplan.runtime.errors import PlanError
from mixplan.runtime.ops import op_spec
from mixplan.runtime.ops.base import TypedShape
from mixplan.runtime.ops.shapes import shape_text
from mixplan.runtime.plan import Node, Plan, Region, Shape

__all__ = ["check_nodes", "check_regions", "describe_node"]

_MAX_INT = 1 << 63


def describe_node(index: int, node: Node) -> str:
    """How errors name a node."""
    return f"Node {index} {node.name[:200]!r} ({node.op[:80]})"


def check_nodes(plan: Plan) -> None:
    """Every input made before use, every node value made exactly once, every op known and its outputs as its shape rule gives them."""
    count = len(plan.values)
    made = [value.kind != "node" for value in plan.values]
    # Layers repeat: what fits in one fits in all.
    sound: set[object] = set()
    for index, node in enumerate(plan.nodes):
        where = describe_node(index, node)
        for value in node.inputs:
            if not -1 <= value < count:
                raise PlanError(f"{where} reads value {value}; the plan has values 0 to {count - 1}.")
            if value >= 0 and not made[value]:
                raise PlanError(f"{where} reads value {value} {plan.values[value].name!r} before it is made.")
        for value in node.outputs:
            if not 0 <= value < count:
                raise PlanError(f"{where} makes value {value}; the plan has values 0 to {count - 1}.")
            if plan.values[value].kind != "node":
                raise PlanError(f"{where} makes value {value} {plan.values[value].name!r}, which is of kind {plan.values[value].kind!r}.")
            if made[value]:
                raise PlanError(f"{where} makes value {value} {plan.values[value].name!r}, which is made already.")
            made[value] = True
        _check_op(plan, node, where, sound)
    for value, done in enumerate(made):
        if not done:
            raise PlanError(f"Value {value} {plan.values[value].name!r} is of kind 'node', but no node makes it.")
    for value in plan.outputs:
        if not 0 <= value < count or plan.values[value].kind != "node":
            raise PlanError(f"The plan's output is value {value}; it must be one that a node makes.")
    if not plan.outputs or len(set(plan.outputs)) != len(plan.outputs):
        raise PlanError(f"The plan's outputs are {list(plan.outputs)}; there must be at least one, and none twice.")


def check_regions(plan: Plan) -> None:
    """Regions cover the nodes in order, and each one's inputs and outputs are exactly what crosses its border."""
    maker = {value: index for index, node in enumerate(plan.nodes) for value in node.outputs}
    last_use = {value: index for index, node in enumerate(plan.nodes) for value in node.inputs}
    last_use.update((value, len(plan.nodes)) for value in plan.outputs)
    names: set[str] = set()
    expected = 0
    for region in plan.regions:
        where = f"Region {region.name[:200]!r}"
        if region.name in names:
            raise PlanError(f"{where} stands twice; names of regions must differ.")
        names.add(region.name)
        if region.start != expected or not region.start < region.stop <= len(plan.nodes):
            raise PlanError(
                f"{where} has nodes [{region.start}, {region.stop}); it must begin at {expected}, hold a node and end by {len(plan.nodes)}."
            )
        expected = region.stop
        used = {value for node in plan.nodes[region.start : region.stop] for value in node.inputs if value >= 0}
        needed = {
            value
            for value in used
            if plan.values[value].kind == "input" or (plan.values[value].kind == "node" and maker[value] < region.start)
        }
        inside = {value for node in plan.nodes[region.start : region.stop] for value in node.outputs}
        given = {value for value in inside if last_use.get(value, -1) >= region.stop}
        _check_border(plan, region, "inputs", region.inputs, needed)
        _check_border(plan, region, "outputs", region.outputs, given)
    if expected != len(plan.nodes):
        raise PlanError(f"The regions cover nodes 0 to {expected - 1}; the plan has {len(plan.nodes)} nodes.")


def _check_border(plan: Plan, region: Region, side: str, stated: tuple[int, ...], actual: set[int]) -> None:
    if len(set(stated)) != len(stated):
        raise PlanError(f"Region {region.name!r} lists one of its {side} twice.")
    wrong = sorted(set(stated) ^ actual)
    if wrong:
        value = wrong[0]
        name = repr(plan.values[value].name) if 0 <= value < len(plan.values) else "which does not exist"
        problem = "lists" if value in stated else "lacks"
        raise PlanError(f"Region {region.name!r} {problem} value {value} ({name}) among its {side}, unlike its nodes.")


def _check_op(plan: Plan, node: Node, where: str, sound: set[object]) -> None:
    """The op is known, and its shape rule gives what the plan declares. sound: what was found so of other nodes."""
    inputs = [None if value < 0 else _typed(plan, value) for value in node.inputs]
    declared = [_typed(plan, value) for value in node.outputs]
    # Attributes with their types: 1, 1.0 and True are equal.
    attrs = tuple((key, type(attr), attr, tuple(map(type, attr)) if isinstance(attr, tuple) else ()) for key, attr in node.attrs.items())
    same = (node.op, tuple(inputs), tuple(declared), attrs)
    if same in sound:
        return
    for key, attr in node.attrs.items():
        for item in attr if isinstance(attr, tuple) else (attr,):
            if isinstance(item, int) and abs(item) >= _MAX_INT:
                raise PlanError(f"{where} has attribute {key[:80]!r} with a number beyond 64 bits.")
    try:
        inferred = tuple(op_spec(node.op).infer(inputs, dict(node.attrs), declared))
    except PlanError as error:
        raise PlanError(f"{where}: {error.message}", hint=error.hint) from None
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        # A shape rule met something that it did not foresee: the plan is refused all the same.
        raise PlanError(f"{where} does not fit its inputs: {type(error).__name__}: {error}.") from error
    if len(inferred) != len(declared):
        raise PlanError(f"{where} declares {len(declared)} outputs; the op has {len(inferred)}.")
    for value, given, wanted in zip(node.outputs, declared, inferred, strict=True):
        if given[0] is not wanted[0] or given[1] != tuple(wanted[1]):
            raise PlanError(
                f"{where} declares its output {plan.values[value].name!r} as {given[0].value} {shape_text(given[1])}; "
                f"its inputs give {wanted[0].value} {shape_text(tuple(wanted[1]))}."
            )
    sound.add(same)


def _typed(plan: Plan, value: int) -> TypedShape:
    dtype: DType = plan.values[value].dtype
    shape: Shape = plan.values[value].shape
    return dtype, shape
