"""Runs an ordered list of passes: times each, counts matches, checks the graph against the spec, dumps it on request."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import fx

from mixplan.passes.base import Pass, PassContext, PassResult
from mixplan.passes.blame import working_on
from mixplan.passes.dump import graph_text
from mixplan.passes.rewriting import VALUES, stamp_origins
from mixplan.passes.spec import Level, check_graph
from mixplan.runtime.errors import InternalError, MixplanError, OptionError, OutputError, PassError

__all__ = ["PassManager", "PassRecord", "PipelineReport"]


@dataclass(frozen=True)
class PassRecord:
    """What one pass did: rewrites, wall-clock seconds, calls before and after."""

    name: str
    stage: str
    changed: bool
    matches: int
    seconds: float
    nodes_before: int
    nodes_after: int


@dataclass(frozen=True)
class PipelineReport:
    """The final graph and a record per pass, in order."""

    graph: fx.GraphModule
    records: tuple[PassRecord, ...]

    @property
    def matches(self) -> dict[str, int]:
        """Rewrites by pass name; passes that rewrote nothing are left out."""
        return {record.name: record.matches for record in self.records if record.matches}


class PassManager:
    """Holds the order; all state of a run is in the graph and the context.

    `levels` says which spec level holds from a pass on, by pass name.
    """

    def __init__(self, passes: Sequence[Pass], levels: dict[str, Level] | None = None) -> None:
        names = [one.name for one in passes]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise OptionError(f"Passes are named twice: {', '.join(twice)}. Every pass of a pipeline needs its own name.")
        self.passes = tuple(passes)
        self.levels = levels or {}

    def run(
        self,
        graph: fx.GraphModule,
        context: PassContext,
        *,
        dump: Path | None = None,
        check: bool = True,
        progress: Callable[[str, int, int], None] | None = None,
    ) -> PipelineReport:
        """Run all passes over `graph`, in place.

        dump: a directory that gets `00-captured.txt` and one `NN-name.txt` after each pass that changed the graph (so the file before it is
        what the pass saw). progress(name, index, count) is called before each pass. Raises PassError, or what a pass raises on purpose.
        """
        stamp_origins(graph.graph)
        level = Level.captured
        if check:
            check_graph(graph, level, "as captured")
        _dump(dump, 0, "captured", graph)
        records: list[PassRecord] = []
        for index, one in enumerate(self.passes, start=1):
            if progress is not None:
                progress(one.name, index, len(self.passes))
            before = _calls(graph)
            start = time.perf_counter()
            result = self._call(one, graph, context, records)
            seconds = time.perf_counter() - start
            graph = result.graph
            raised = self.levels.get(one.name, level) > level
            level = max(level, self.levels.get(one.name, level))
            if check and (result.changed or raised):
                check_graph(graph, level, f"after pass {one.name}", reaching=raised)
            if result.changed:
                _dump(dump, index, one.name, graph)
            records.append(PassRecord(one.name, one.stage, result.changed, result.matches, seconds, before, _calls(graph)))
        graph.meta.pop(VALUES, None)
        graph.recompile()
        return PipelineReport(graph, tuple(records))

    def _call(self, one: Pass, graph: fx.GraphModule, context: PassContext, done: Sequence[PassRecord]) -> PassResult:
        try:
            result = one(graph, context)
        except InternalError as error:
            # Rules name the node themselves.
            where = "" if error.message.startswith("Rule ") or " node " in error.message else working_on(error)
            raise PassError(f"Pass {one.name}{where}: {error.message}", hint=_after(done)) from error
        except MixplanError:
            raise
        except Exception as error:  # a pass may be anybody's code
            raise PassError(f"Pass {one.name} failed{working_on(error)}: {type(error).__name__}: {error}", hint=_after(done)) from error
        if not isinstance(result, PassResult):
            raise PassError(f"Pass {one.name} returned {type(result).__name__}; a pass returns a PassResult.")
        return result


def _after(done: Sequence[PassRecord]) -> str:
    changed = [record.name for record in done if record.changed]
    return f"Passes that changed the graph before it: {', '.join(changed) or 'none'}."


def _calls(graph: fx.GraphModule) -> int:
    return sum(node.op == "call_function" for node in graph.graph.nodes)


def _dump(directory: Path | None, index: int, name: str, graph: fx.GraphModule) -> None:
    if directory is None:
        return
    try:
        directory.mkdir(parents=True, exist_ok=True)
        (directory / f"{index:02d}-{name}.txt").write_text(graph_text(graph.graph), encoding="utf-8")
    except OSError as error:
        raise OutputError(f"Cannot write a graph to {directory}: {error.strerror}.") from error
