"""What a pass is: a named function from a graph and a context to a result, with no state of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeAlias

from torch import Tensor, fx

from mixplan.passes.decision import LayerDecision
from mixplan.passes.precision.effective_bits import LayerSize
from mixplan.passes.precision.overrides import Override
from mixplan.passes.precision.schemes import Scheme, parse_scheme
from mixplan.passes.rejections import Rejections

__all__ = [
    "STAGES",
    "FunctionPass",
    "Pass",
    "PassContext",
    "PassOptions",
    "PassResult",
    "Placement",
    "ScaledLayers",
    "Scaler",
    "Stage",
    "Support",
    "Supports",
]

Stage: TypeAlias = Literal["canonicalize", "precision", "fusion", "placement", "user"]
STAGES: tuple[Stage, ...] = ("canonicalize", "precision", "fusion", "placement", "user")


@dataclass(frozen=True)
class PassResult:
    """The graph that a pass leaves (most passes edit in place), whether it differs from what came in, and how many places it rewrote."""

    graph: fx.GraphModule
    changed: bool
    matches: int = 0


@dataclass(frozen=True)
class Support:
    """Whether a target takes a node, and why not."""

    ok: bool
    reason: str = ""


Supports: TypeAlias = Callable[[fx.Node], Support]


@dataclass(frozen=True)
class Placement:
    """Where a node went, and why it did not go to the wanted target."""

    node: str
    op: str
    target: str
    reason: str = ""


@dataclass(frozen=True)
class ScaledLayers:
    """Layers that read one value x [.., K], which may be divided by a number for each column.

    weights: their [N, K] constants in `graph`. shared: i64 [K], columns with equal numbers must have equal scales; None: any may.
    """

    graph: fx.GraphModule
    weights: tuple[fx.Node, ...]
    schemes: tuple[Scheme, ...]
    shared: Tensor | None = None


Scaler: TypeAlias = Callable[[ScaledLayers], Tensor | None]
"""The numbers f32 [K], None for layers that are best left alone."""


@dataclass(frozen=True)
class PassOptions:
    """What the caller asks for. `target` is the preferred device's name, `fallback` the one for nodes that it does not support.

    stored: for layers that keep what the checkpoint has, by name, their schemes and what the checkpoint calls it.
    scaler: chooses by what the inputs of layers are divided, and their weights multiplied (see fusion/scale_inputs.py).
    """

    scheme: Scheme = field(default_factory=lambda: parse_scheme("FP32"))
    overrides: tuple[Override, ...] = ()
    target: str = "cpu"
    fallback: str = "reference"
    user_passes: tuple[str, ...] = ()
    stored: Mapping[str, tuple[Scheme, str]] = field(default_factory=dict)
    scaler: Scaler | None = None


@dataclass
class PassContext:
    """What passes share, explicitly. Options and `supports` come in; rejections, decisions and placements are gathered.

    `tied` maps a parameter's other names to the one that the graph uses. `decisions` and `sizes` hold one record per layer, by layer name.
    """

    options: PassOptions = field(default_factory=PassOptions)
    tied: Mapping[str, str] = field(default_factory=dict)
    supports: Supports | None = None
    rejections: Rejections = field(default_factory=Rejections)
    decisions: dict[str, LayerDecision] = field(default_factory=dict)
    sizes: dict[str, LayerSize] = field(default_factory=dict)
    placements: list[Placement] = field(default_factory=list)


class Pass(Protocol):
    """A named callable. `summary` is its one-line description in `mixplan passes`."""

    @property
    def name(self) -> str:
        """Unique in a pipeline."""

    @property
    def stage(self) -> Stage:
        """The part of the pipeline that it belongs to."""

    @property
    def summary(self) -> str:
        """What it does, in one line."""

    def __call__(self, graph: fx.GraphModule, context: PassContext) -> PassResult:
        """Run it."""


@dataclass(frozen=True)
class FunctionPass:
    """A pass made of a plain function."""

    name: str
    stage: Stage
    summary: str
    function: Callable[[fx.GraphModule, PassContext], PassResult]

    def __call__(self, graph: fx.GraphModule, context: PassContext) -> PassResult:
        return self.function(graph, context)
