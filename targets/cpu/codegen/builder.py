"""Collects the functions, ops and buffers of a region while the emitters walk its nodes."""

from __future__ import annotations

from dataclasses import dataclass, field

from mixplan.runtime.devices.cpu_abi import attention_layers, region_constants
from mixplan.runtime.dtypes import DType
from mixplan.runtime.errors import InternalError
from mixplan.runtime.plan import Node, Plan, Region, Value
from mixplan.targets.cpu.codegen.poly import Poly, product
from mixplan.targets.cpu.codegen.ref import Buffer, Ref, contiguous_strides
from mixplan.targets.cpu.codegen.writer import Operand, Writer

__all__ = ["ALWAYS_PARALLEL", "Builder", "Function", "Op", "Rows"]

# The work of ops whose phases must see the same number of threads, whatever their size.
ALWAYS_PARALLEL = Poly.of(1 << 40)


@dataclass(frozen=True)
class Function:
    """One generated C++ function."""

    name: str
    body: str


@dataclass(frozen=True)
class Op:
    """One entry of the op table: a function, its operands, the plan node it works for (index), and how much work it is."""

    function: str
    operands: tuple[Operand, ...]
    node: int
    work: Poly
    # An op that later ones do in its place where the step has few tokens ("T") or rows ("R"), or where every token is the last of its
    # sequence ("last"); "" for all others.
    few: str = ""


@dataclass(frozen=True)
class Rows:
    """What an op that quantizes rows reads, kept so that the products that use its output can do it themselves. Layer norms have a bias."""

    op: str
    x: Ref
    stride: Poly
    weight: Ref | None
    bias: Ref | None
    eps: str


@dataclass
class Builder:
    """State of the generation of one region. Emitters read values with `ref`, write with `output`, and add ops with `emit`."""

    plan: Plan
    region: Region
    functions: dict[str, Function] = field(default_factory=dict)
    ops: list[Op] = field(default_factory=list)
    headers: list[str] = field(default_factory=list)
    scratch: list[str] = field(default_factory=list)
    kv: list[str] = field(default_factory=list)
    buffers: list[Buffer] = field(default_factory=list)
    refs: dict[int, Ref] = field(default_factory=dict)
    # Values whose buffer is a region output: the outputs themselves, and what they are mere reshapes of.
    outputs: dict[int, Buffer] = field(default_factory=dict)
    # By the value of their int8 output: the quantizing ops whose readers do their work in steps of few rows.
    quantized: dict[int, Rows] = field(default_factory=dict)

    # For attention nodes that rotate their q and k themselves: the nodes of the two ropes. All by index.
    rotations: dict[int, tuple[int, int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.constants = region_constants(self.plan, self.region)
        self.layers = attention_layers(self.plan, self.region)
        self._const_buffers = {value: Buffer("const", k) for k, value in enumerate(self.constants)}
        self._input_buffers = {value: Buffer("input", k) for k, value in enumerate(self.region.inputs)}
        self.kv = [""] * len(self.layers)
        made = {out: node for node in self.plan.nodes[self.region.start : self.region.stop] for out in node.outputs}
        for k, value in enumerate(self.region.outputs):
            buffer, root = Buffer("output", k), value
            while root in made and made[root].op == "reshape" and root not in self.outputs:
                root = made[root].inputs[0]
            self.outputs.setdefault(root if root in made and root not in self.region.outputs else value, buffer)

    def value(self, index: int) -> Value:
        """The plan's value."""
        return self.plan.values[index]

    def shape(self, index: int) -> tuple[Poly, ...]:
        """A value's declared shape."""
        return tuple(Poly.of(dim) for dim in self.value(index).shape)

    def ref(self, index: int) -> Ref:
        """Where a value lies. Node outputs must have been made before."""
        if index in self.refs:
            return self.refs[index]
        value, shape = self.value(index), self.shape(index)
        if value.fill is not None:
            return Ref.fill(value.fill, value.dtype, shape)
        buffer = self._const_buffers.get(index) or self._input_buffers.get(index)
        if buffer is None:
            raise InternalError(f"Region {self.region.name!r} reads value {index} ({value.name!r}) before it is made.")
        return Ref(buffer, value.dtype, shape, contiguous_strides(shape))

    def optional(self, node: Node, position: int) -> Ref | None:
        """An optional input, None where it is left out."""
        return self.ref(node.inputs[position]) if position < len(node.inputs) and node.inputs[position] >= 0 else None

    def temporary(self, dtype: DType, shape: tuple[Poly, ...], name: str = "") -> Ref:
        """A new contiguous piece of the arena, live from its first write to its last use."""
        tokens = self.plan.max_step_tokens
        buffer = Buffer("arena", nbytes=product(shape).at(tokens, tokens) * dtype.itemsize, name=name)
        self.buffers.append(buffer)
        return Ref(buffer, dtype, shape, contiguous_strides(shape))

    def output(self, index: int) -> Ref:
        """Contiguous memory for node output `index`; from now on it is where the value lies."""
        value, shape = self.value(index), self.shape(index)
        if index in self.outputs:
            made = Ref(self.outputs[index], value.dtype, shape, contiguous_strides(shape))
        else:
            made = self.temporary(value.dtype, shape, value.name)
        self.refs[index] = made
        return made

    def readers(self, value: int) -> list[Node] | None:
        """The region's nodes that read `value`; None where it also leaves the region."""
        if value in self.region.outputs:
            return None
        return [node for node in self.plan.nodes[self.region.start : self.region.stop] if value in node.inputs]

    def emit(self, writer: Writer, node: int, work: Poly, few: str = "") -> None:
        """Add an op that runs the written text, shared with earlier ops of the same text."""
        body = "\n".join(writer.lines)
        function = self.functions.get(body)
        if function is None:
            function = self.functions[body] = Function(f"f{len(self.functions)}", body)
            for header in writer.headers:
                if header not in self.headers:
                    self.headers.append(header)
            for need in writer.scratch:
                if need not in self.scratch:
                    self.scratch.append(need)
        self.ops.append(Op(function.name, tuple(writer.operands), node, work, few))
