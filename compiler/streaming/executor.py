"""The run itself: segment by segment, and in a segment batch by batch."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, fx

from mixplan.compiler.streaming.attention import windowed_attention
from mixplan.compiler.streaming.constants import call, load_constants, lookup
from mixplan.compiler.streaming.layers import last_product, product_layers
from mixplan.compiler.streaming.observer import Observer
from mixplan.compiler.streaming.segments import Segment, cut, segment_limit, table_of
from mixplan.compiler.streaming.windows import Batch, batches
from mixplan.compiler.weights.base import WeightSource
from mixplan.passes.fx_ops import ATTENTION, ATTENTION_TM, EMBEDDING, GROUPED_LINEAR
from mixplan.passes.patterns import argument
from mixplan.runtime.errors import InternalError, MixplanError, OptionError

__all__ = ["StreamReport", "stream"]

_BATCH_TOKENS = 1024


@dataclass
class StreamReport:
    """What a run took. seconds: of torch's work, by node name (constants count where they are read); reading: of the weights.

    kept_bytes: the most that waited between two segments, over all windows; weight_bytes: the most of one segment.
    """

    tokens: int = 0
    windows: int = 0
    segments: int = 0
    seconds: dict[str, float] = field(default_factory=dict)
    reading: float = 0.0
    kept_bytes: int = 0
    weight_bytes: int = 0


def stream(
    module: fx.GraphModule,
    weights: WeightSource,
    windows: Sequence[Sequence[int]] | Tensor,
    observer: Observer | None = None,
    *,
    threads: int | None = None,
    batch_tokens: int = _BATCH_TOKENS,
    segment_bytes: int | None = None,
    logits: bool = True,
    progress: Callable[[float], None] | None = None,
) -> StreamReport:
    """Run `windows` (token ids [W, L], or of various lengths) through a graph, telling `observer` what passes.

    threads: of torch; 1 makes every figure bitwise the same wherever the machine has the same instructions. batch_tokens: tokens that pass
    a segment together, at least a whole window. segment_bytes: weights, in f32, in memory at once, or one node's if that alone is more; by
    default a 32nd of the model, between 128 MiB and 1 GiB. logits=False ends the run with the input of the last product. progress gets the
    done fraction. Gradients are off. The graph is left as it is.
    """
    for name, value in (("threads", threads), ("batch_tokens", batch_tokens), ("segment_bytes", segment_bytes)):
        if value is not None and value < 1:
            raise OptionError(f"{name} is {value}; at least 1.")
    last = None if logits else last_product(module)
    segments = cut(module, segment_limit(module) if segment_bytes is None else segment_bytes, last)
    run = _Run(module, weights, observer or Observer(), batches(windows, batch_tokens), None if logits else last)
    with _torch_threads(threads), torch.no_grad():
        done, total = 0, sum(len(segment.nodes) for segment in segments) * len(run.batches)
        for segment in segments:
            constants = run.load(segment)
            for index in range(len(run.batches)):
                run.batch(segment, index, constants)
                done += len(segment.nodes)
                if progress is not None:
                    progress(done / max(total, 1))
            del constants
            run.report.kept_bytes = max(run.report.kept_bytes, run.kept_bytes())
    run.report.segments = len(segments)
    return run.report


class _Run:
    """The state of one run: what waits of every batch."""

    def __init__(self, module: fx.GraphModule, weights: WeightSource, observer: Observer, steps: list[Batch], stop: fx.Node | None) -> None:
        self.batches = steps
        self.report = StreamReport(tokens=sum(step.tokens for step in steps), windows=sum(len(step.indices) for step in steps))
        self._module, self._weights, self._observer, self._stop = module, weights, observer, stop
        self._products = {node: found for node in module.graph.nodes if (found := product_layers(module, node)) is not None}
        self._inputs = [node for node in module.graph.nodes if node.op == "placeholder"]
        self._output = module.graph.output_node().all_input_nodes[0]
        self._kept: list[dict[fx.Node, Any]] = [{} for _ in steps]

    def load(self, segment: Segment) -> dict[fx.Node, Any]:
        """The segment's constants, with their cost entered into the report."""
        started = perf_counter()
        constants = load_constants(self._module, self._weights, segment.constants)
        self.report.reading += perf_counter() - started
        held = sum(value.nbytes for value in constants.values() if isinstance(value, Tensor))
        self.report.weight_bytes = max(self.report.weight_bytes, held)
        return constants

    def kept_bytes(self) -> int:
        """Bytes that wait for the next segment."""
        return sum(value.nbytes for kept in self._kept for value in kept.values() if isinstance(value, Tensor))

    def batch(self, segment: Segment, index: int, constants: dict[fx.Node, Any]) -> None:
        """One batch through one segment."""
        step = self.batches[index]
        given = step.inputs
        known = {**constants, **{node: given[str(node.target)] for node in self._inputs}, **self._kept[index]}
        left = _uses(segment)
        for node in segment.nodes:
            self._tell_inputs(node, known)
            if node is self._stop:
                break
            known[node] = self._node(node, known, step)
            for source in node.all_input_nodes:
                left[source] -= 1
                if not left[source] and source not in segment.keep and source not in constants:
                    known.pop(source, None)
        if self._output in known and self._output in segment.nodes:
            logits = known[self._output]
            self._observer.on_logits(step.indices, logits.reshape(-1, logits.shape[-1]))
        self._kept[index] = {node: _own(known[node]) for node in segment.keep if node in known and node is not self._output}

    def _node(self, node: fx.Node, known: dict[fx.Node, Any], step: Batch) -> Any:
        started = perf_counter()
        try:
            args, kwargs, value = self._call(node, known, step)
        except (MixplanError, MemoryError):
            raise
        except Exception as error:  # any operator of a model may raise anything; the node is named
            raise InternalError(f"Node {node.name} ({node.target}) could not be run by torch: {error}") from error
        seconds = self.report.seconds
        seconds[node.name] = seconds.get(node.name, 0.0) + perf_counter() - started
        self._observer.on_node(node, args, kwargs, value)
        return value

    def _call(self, node: fx.Node, known: dict[fx.Node, Any], step: Batch) -> tuple[tuple[Any, ...], dict[str, Any], Any]:
        table = table_of(node)
        if table is not None and table not in known:
            ids = known[node.args[0] if node.target is EMBEDDING else node.args[1]]
            args = (ids, None) if node.target is EMBEDDING else (None, ids)
            return args, {}, lookup(self._weights, str(table.target), ids)
        if node.target in (ATTENTION, ATTENTION_TM):
            args = tuple(known[value] if isinstance(value, fx.Node) else value for value in node.args)
            kwargs = {name: known[value] if isinstance(value, fx.Node) else value for name, value in node.kwargs.items()}
            return args, kwargs, windowed_attention(step.lengths, *args, **kwargs, token_major=node.target is ATTENTION_TM)
        return call(node, known)

    def _tell_inputs(self, node: fx.Node, known: dict[fx.Node, Any]) -> None:
        found = self._products.get(node)
        if found is None:
            return
        place, layers = found
        x = known[node.args[place]]
        if node.target is GROUPED_LINEAR:
            self._tell_experts(node, layers[0], x, known)
            return
        for layer in layers:
            self._observer.on_input(layer, x.reshape(-1, x.shape[-1]))

    def _tell_experts(self, node: fx.Node, layer: str, x: Tensor, known: dict[fx.Node, Any]) -> None:
        ids = known[argument(node, 1, "expert_ids")]
        rows = x.expand(*ids.shape, x.shape[-1])
        routed = ids < node.args[2].meta["val"].shape[0]
        self._observer.on_input(layer, rows[routed])
        for expert in torch.unique(ids[routed]).tolist():
            self._observer.on_expert_input(layer, expert, rows[ids == expert])


def _uses(segment: Segment) -> dict[fx.Node, int]:
    """How many of the segment's nodes read each value."""
    counts: dict[fx.Node, int] = {}
    for node in segment.nodes:
        for source in node.all_input_nodes:
            counts[source] = counts.get(source, 0) + 1
    return counts


def _own(value: Any) -> Any:
    """A view of something larger as a tensor of its own, so that the larger one can go."""
    return value.clone() if isinstance(value, Tensor) and value.untyped_storage().nbytes() > value.nbytes else value


@contextlib.contextmanager
def _torch_threads(threads: int | None) -> Iterator[None]:
    before = torch.get_num_threads()
    if threads is not None:
        torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)
