"""What a target is: the compile half of a piece of hardware."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias, runtime_checkable

from mixplan.runtime.plan import Node, Plan, Region, Shape, Value

__all__ = ["Capabilities", "CompileOptions", "CompiledRegion", "CostModel", "CostedTarget", "Metadata", "Port", "Support", "Target"]

Metadata: TypeAlias = dict[str, str | int | float | list[str]]


@dataclass(frozen=True)
class Support:
    """An answer and, where it is no, the reason."""

    ok: bool
    reason: str = ""

    def __bool__(self) -> bool:
        return self.ok


@dataclass(frozen=True)
class Capabilities:
    """What a target can do, as the placement pass and `mixplan targets` see it.

    available says whether this machine can compile for the target (not whether it can run the result), `reason` why not.
    levels are the names of the binaries it can make, best last; formats the weight formats; activations the activation formats.
    factor_errors: levels ("" for a target without any) whose products round their factors further than the op says, and by how much: 2**-9,
    relatively, where they become bf16. Conformance allows for that.
    """

    name: str
    available: Support
    levels: tuple[str, ...] = ()
    formats: tuple[str, ...] = ()
    activations: tuple[str, ...] = ()
    notes: Mapping[str, str] = field(default_factory=dict)
    factor_errors: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class CompileOptions:
    """How to compile a region.

    levels: the binaries wanted, () for all that the target makes by default. jobs: compilers to run at once, 0 for one on each core.
    activation: the integer type of activations with static scales, "" for the target's own choice. ranges: smallest and largest number of
    what is rounded with such scales, by the name of the plan's value. tune: time the shapes of kernels on the hardware that is
    here, as far as they are not known yet.
    """

    levels: tuple[str, ...] = ()
    jobs: int = 0
    activation: str = ""
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    tune: bool = False


@dataclass(frozen=True)
class CostModel:
    """What a target's work takes: bytes/s of weights and KV cache, operations/s by what is multiplied (0: unknown, and left out), and
    seconds for each call of a region. node_seconds: what a node takes at least, such as a launch. narrow: whether products of floats with
    weights or a KV cache narrower than 32 bits run as bf16, although their activations are f32. link: bytes/s to and from the host, 0 where
    it works in the host's memory. source: where the figures come from.
    """

    bandwidth: float
    int8: float = 0.0
    bf16: float = 0.0
    f32: float = 0.0
    call_seconds: float = 0.0
    node_seconds: float = 0.0
    narrow: bool = False
    link: float = 0.0
    source: str = ""


@runtime_checkable
class CostedTarget(Protocol):
    """A target that can be weighed against others."""

    def cost_model(self) -> CostModel:
        """What its work takes on this machine, or on the hardware that it is for."""


@dataclass(frozen=True)
class Port:
    """How a target compiled a value at a region's border: its dtype by name, and dims, -1 for one that it leaves open."""

    dtype: str
    shape: Shape


@dataclass(frozen=True)
class CompiledRegion:
    """A region's binaries by level, the source they were made from ("" if none), and facts for the report. suffix: of the binaries' files;
    source_suffix: of the source's.

    ports: values at the region's borders, by index, as they were compiled; what is missing is as the plan declares. notes: what the user
    should know of how it was compiled; the report shows them, and the plan keeps them.
    """

    kernels: dict[str, bytes] = field(default_factory=dict)
    source: str = ""
    metadata: Metadata = field(default_factory=dict)
    suffix: str = "so"
    source_suffix: str = "cpp"
    ports: Mapping[int, Port] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


@runtime_checkable
class Target(Protocol):
    """The compile half of a piece of hardware. Its run half is the device of the same name in `mixplan.runtime.devices`."""

    name: str

    def capabilities(self) -> Capabilities:
        """What the target can do on this machine."""

    def resolve_levels(self, wanted: Sequence[str]) -> tuple[str, ...]:
        """The levels that `compile` makes where `wanted` are asked for, () where it makes none. OptionError for a name it does not know."""

    def supports(self, node: Node, values: Sequence[Value]) -> Support:
        """Whether the target runs `node`; `values` are all values of the plan, indexed by the node's inputs and outputs."""

    def compile(self, plan: Plan, region: Region, options: CompileOptions) -> CompiledRegion:
        """Compile nodes [region.start, region.stop) of `plan`, whose constants need not be on disk yet.

        Raises UnsupportedError naming the node where `supports` would have said no, MissingExtraError where there is no compiler.
        """
