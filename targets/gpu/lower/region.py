"""The launches of a region for one architecture, and whether a node can be launched at all."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec

from mixplan.runtime.devices.cpu_abi import region_fingerprint
from mixplan.runtime.devices.gpu_program import FORMAT, Constant, Kernel, Program
from mixplan.runtime.dtypes import DType
from mixplan.runtime.errors import PlanError, UnsupportedError
from mixplan.runtime.hal import PAGE_SIZE
from mixplan.runtime.ops import op_spec
from mixplan.runtime.plan import Node, Plan, Region, Value
from mixplan.targets.chains import Chain, ChainRules, find_chains
from mixplan.targets.gpu.arch import ARCHS, JIT, Arch
from mixplan.targets.gpu.builds import BuildRequest
from mixplan.targets.gpu.lower.arena import Buffer, place
from mixplan.targets.gpu.lower.attention import attention, stretch_of
from mixplan.targets.gpu.lower.axes import AXES
from mixplan.targets.gpu.lower.builder import DECODE_TOKENS, Builder, Special, affine, power_of_two
from mixplan.targets.gpu.lower.chain import POINTWISE
from mixplan.targets.gpu.lower.elementwise import ELEMENTWISE, VIEWS, emit_chain
from mixplan.targets.gpu.lower.gemm import PRODUCTS
from mixplan.targets.gpu.lower.matmul import matmul
from mixplan.targets.gpu.lower.places import PLACES
from mixplan.targets.gpu.lower.rows import ROWS
from mixplan.targets.gpu.lower.sums import find_sums
from mixplan.targets.gpu.lower.views import Refused

__all__ = ["EMITTERS", "lower_region", "refusal"]

EMITTERS: Mapping[str, Callable[[Builder, Node], None]] = {
    **ELEMENTWISE,
    **AXES,
    **PLACES,
    **ROWS,
    **PRODUCTS,
    "matmul": matmul,
    "attention": attention,
}
"""By op: what makes its launches."""


def _complete(node: Node) -> Node:
    """The node with its default attributes filled in."""
    return msgspec.structs.replace(node, attrs={**op_spec(node.op).signature.defaults, **node.attrs})


def refusal(node: Node, values: Sequence[Value]) -> str:
    """Why no GPU of any kind runs the node, "" where one does: its launches are made for once, and thrown away."""
    if node.op not in EMITTERS:
        return f"op {node.op!r} has no GPU kernel"
    touched = [values[value] for value in (*node.inputs, *node.outputs) if value >= 0]
    if any(dim == 0 for value in touched for dim in value.shape):
        return "a dimension of size 0"
    builder = Builder(ARCHS[JIT], values, 64, (), {})
    try:
        for value in node.inputs:
            if value >= 0 and values[value].kind != "const":
                builder.define(value)
        EMITTERS[node.op](builder, _complete(node))
    except (Refused, PlanError) as error:
        return str(error)
    return ""


_LIMIT = 1024  # logits that a drawn token is chosen among, where there is a top_k or top_p


def _sampling(b: Builder, plan: Plan, region: Region) -> None:
    """The launch that draws tokens from the logits, where the region makes them from the step and nothing else."""
    whole = bool(region.inputs) and all(plan.values[value].kind == "input" for value in region.inputs)
    if not whole or region.outputs != plan.outputs or len(region.outputs) != 1:
        return
    logits = b.views[region.outputs[0]]
    vocabulary, rows = logits.shape[-1], [dim for dim in logits.shape[:-1] if dim != 1]
    if logits.dtype is not DType.f32 or not isinstance(vocabulary, int) or len(rows) != 1:
        return
    step = [Special("step", kind, name) for name, kind in (("settings", "*fp64"), ("ks", "*i32"), ("scratch", "*i64"), ("tokens", "*i32"))]
    limit = min(_LIMIT, power_of_two(vocabulary))
    sizes: dict[str, Constant] = {"V": vocabulary, "LIMIT": limit, "BLOCK": min(2048, power_of_two(vocabulary))}
    b.launch("sample", [logits, *step], sizes, [affine(rows[0])], warps=8, mode="sample")


def _emit(builder: Builder, plan: Plan, work: int | Chain) -> None:
    """The launches of a chain and the views of its results, or of a node."""
    index = work.nodes[-1] if isinstance(work, Chain) else work
    builder.node, node = index, plan.nodes[index]
    try:
        if isinstance(work, Chain):
            emit_chain(builder, [_complete(plan.nodes[one]) for one in work.nodes], work.outputs)
        elif node.op not in EMITTERS:
            raise Refused(f"op {node.op!r} has no GPU kernel")
        elif not node.name or node.name not in builder.fused:
            EMITTERS[node.op](builder, _complete(node))
    except (Refused, PlanError) as error:
        raise UnsupportedError(f"Node {node.name!r} ({node.op}) cannot be compiled for the GPU: {error}.") from error
    for view in work.views if isinstance(work, Chain) else ():
        _emit(builder, plan, view)


def lower_region(plan: Plan, region: Region, arch: Arch) -> tuple[Program, list[BuildRequest]]:
    """The program of a region, whose kernels have no binaries yet, and what to build for them.

    Raises UnsupportedError naming the node that cannot be launched.
    """
    nodes = plan.nodes[region.start : region.stop]
    users: dict[int, list[Node]] = {}
    for node in nodes:
        for value in node.inputs:
            users.setdefault(value, []).append(node)
    # A value that leaves the region has a reader that is not known here.
    outside = Node("", (), ())
    for value in region.outputs:
        users.setdefault(value, []).extend([outside, outside])
    builder = Builder(arch, plan.values, plan.max_step_tokens, plan.attention, users)
    layers = [plan.attention[int(str(node.attrs["layer"]))] for node in nodes if node.op == "attention"]
    builder.stretch = stretch_of(arch, layers)
    for value in region.inputs:
        builder.define(value, first=-1)
    sums = find_sums(plan, region)
    builder.sums = {plan.nodes[norm].inputs[0]: plan.nodes[add] for norm, add in sums.items()}

    def reads(plan: Plan, index: int) -> set[int]:
        found = set(plan.nodes[index].inputs)
        if index in sums:
            found = {*plan.nodes[index].inputs[1:], *plan.nodes[sums[index]].inputs}
        return found - {-1}

    rules = ChainRules(lambda node: node.op in POINTWISE, VIEWS, reads, frozenset(sums.values()), widens=True)
    for work in find_chains(plan, region, rules):
        _emit(builder, plan, work)
    for value in region.outputs:
        view = builder.views[value]
        if not view.contiguous or not isinstance(view.home, Buffer):
            view = builder.views[value] = builder.copy(view, view.dtype)
        builder.keep(view)
    _sampling(builder, plan, region)
    arena = place(builder.buffers)
    requests, launches = builder.finished()
    offsets = {}
    for value in (*region.inputs, *region.outputs):
        view = builder.views[value]
        assert isinstance(view.home, Buffer)
        offsets[str(value)] = view.home.offset + view.offset * view.dtype.itemsize
    program = Program(
        format=FORMAT,
        arch=arch.name,
        compiler="",
        fingerprint=region_fingerprint(plan, region),
        arena=arena,
        page_size=PAGE_SIZE,
        stretch=builder.stretch,
        decode_tokens=DECODE_TOKENS,
        values=offsets,
        kernels=tuple(Kernel(r.kernel, r.types, dict(r.constants), r.warps, r.stages) for r in requests),
        launches=tuple(launches),
    )
    return program, requests
