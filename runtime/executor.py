"""Runs a plan's regions in order, passing values across their borders."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter_ns

import numpy as np
from numpy.typing import NDArray

from mixplan.runtime.errors import UnsupportedError
from mixplan.runtime.hal import Array, DecodingRegion, LoadedRegion, ProfiledRegion, RegionDecoder, Step, TappableRegion
from mixplan.runtime.plan import Plan

__all__ = ["Executor", "Tap"]

Tap = Callable[[str, Array], Array | None]


class Executor:
    """One loaded region for each of the plan's regions, in order."""

    def __init__(self, plan: Plan, regions: Sequence[LoadedRegion]) -> None:
        self._plan = plan
        self._regions = tuple(regions)
        self._inputs = {index: value.name for index, value in enumerate(plan.values) if value.kind == "input"}
        last = {value: number for number, region in enumerate(plan.regions) for value in region.inputs}
        last.update((value, len(plan.regions)) for value in plan.outputs)
        # After each region, the border values that nobody reads any more.
        self._dead: list[list[int]] = [[] for _ in plan.regions]
        for value, number in last.items():
            if number < len(plan.regions):
                self._dead[number].append(value)
        self.nanoseconds = [0] * len(self._regions)
        self.calls = 0

    def run(self, step: Step, tap: Tap | None = None) -> list[Array]:
        """The plan's outputs, in order. They may lie in a device's memory, valid until the next run.

        tap(value name, array) is called for each node's output, and may give another array of its shape and dtype, which takes its place;
        UnsupportedError where a region's device cannot show them.
        """
        border = self._step_inputs(step)
        for number, (region, loaded) in enumerate(zip(self._plan.regions, self._regions, strict=True)):
            inputs = {value: border[value] for value in region.inputs}
            started = perf_counter_ns()
            if tap is None:
                made = loaded.run(step, inputs)
            elif isinstance(loaded, TappableRegion):
                made = loaded.run_tapped(step, inputs, tap)
            else:
                raise UnsupportedError(
                    f"Region {region.name!r} runs on {loaded.isa}, which cannot show the outputs of single nodes.",
                    hint="Load the plan with device='reference'.",
                )
            self.nanoseconds[number] += perf_counter_ns() - started
            border.update(made)
            for value in self._dead[number]:
                del border[value]
        self.calls += 1
        return [border[value] for value in self._plan.outputs]

    def decoder(self, tables: NDArray[np.int32]) -> RegionDecoder | None:
        """The short way for decode steps (see hal.DecodingRegion), where the plan is one region of a device that has it."""
        if len(self._regions) != 1 or not isinstance(self._regions[0], DecodingRegion):
            return None
        return self._regions[0].decoder(tables)

    def count(self, nanoseconds: int, calls: int) -> None:
        """Enter steps that were made the short way."""
        self.nanoseconds[0] += nanoseconds
        self.calls += calls

    def metrics(self) -> dict[str, dict[str, float]]:
        """By region's name: seconds, calls, and what the device says."""
        return {
            region.name: {"seconds": nanoseconds / 1e9, "calls": float(self.calls), **loaded.metrics()}
            for region, loaded, nanoseconds in zip(self._plan.regions, self._regions, self.nanoseconds, strict=True)
        }

    def op_seconds(self) -> list[tuple[int, int, float]]:
        """(region, node, seconds so far) of each op that runs; node -1 for the whole of a region whose device keeps no times of ops."""
        found = []
        for number, loaded in enumerate(self._regions):
            ops = loaded.op_seconds() if isinstance(loaded, ProfiledRegion) else []
            found += [(number, node, seconds) for node, seconds in ops] or [(number, -1, self.nanoseconds[number] / 1e9)]
        return found

    def close(self) -> None:
        """Close all regions."""
        for loaded in self._regions:
            loaded.close()

    def _step_inputs(self, step: Step) -> dict[int, Array]:
        arrays = {
            "token_ids": step.token_ids[None],
            "position_ids": step.positions[None],
            "sequence_lengths": step.sequence_lengths[None],
            "logit_rows": step.logit_rows,
        }
        return {index: arrays[name].astype(np.int64) for index, name in self._inputs.items()}
