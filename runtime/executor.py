"""Runs a plan's regions in order, passing values across their borders."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter_ns

import numpy as np
from numpy.typing import NDArray

from mixplan.runtime.errors import CapacityError, UnsupportedError
from mixplan.runtime.hal import Array, DecodingRegion, LoadedRegion, ProfiledRegion, ProviderRegion, RegionDecoder, Step, TappableRegion
from mixplan.runtime.plan import Plan

__all__ = ["Executor", "Tap"]

Tap = Callable[[str, Array], Array | None]
Replace = Callable[[int, str], LoadedRegion | None]


class Executor:
    """One loaded region for each of the plan's regions, in order."""

    def __init__(self, plan: Plan, regions: Sequence[LoadedRegion], replace: Replace | None = None) -> None:
        """replace(region's index, reason): another way to run a region whose device has run out of memory, None where there is none."""
        self._plan = plan
        self._regions = list(regions)
        self._replace = replace
        self._remembers = [any(node.op == "attention" for node in plan.nodes[r.start : r.stop]) for r in plan.regions]
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
        self.moves = 0
        """How often a region went to another device."""
        self.restore: Callable[[Callable[[Step], object]], None] = lambda run: None
        """Has the function given run steps that make the keys and values of all sequences anew: a region that held some has moved."""

    def run(self, step: Step, tap: Tap | None = None) -> list[Array]:
        """The plan's outputs, in order. They may lie in a device's memory, valid until the next run.

        tap(value name, array) is called for each node's output, and may give another array of its shape and dtype, which takes its place;
        UnsupportedError where a region's device cannot show them.
        """
        border = self._step_inputs(step)
        for number, region in enumerate(self._plan.regions):
            inputs = {value: border[value] for value in region.inputs}
            started = perf_counter_ns()
            try:
                made = self._run(number, step, inputs, tap)
            except (CapacityError, MemoryError) as error:
                self.move(number, error)
                if self._remembers[number]:
                    return self.run(step, tap)
                made = self._run(number, step, inputs, tap)
            self.nanoseconds[number] += perf_counter_ns() - started
            border.update(made)
            for value in self._dead[number]:
                del border[value]
        self.calls += 1
        return [border[value] for value in self._plan.outputs]

    def _run(self, number: int, step: Step, inputs: dict[int, Array], tap: Tap | None) -> dict[int, Array]:
        loaded = self._regions[number]
        if tap is None:
            return loaded.run(step, inputs)
        if isinstance(loaded, TappableRegion):
            return loaded.run_tapped(step, inputs, tap)
        raise UnsupportedError(
            f"Region {self._plan.regions[number].name!r} runs on {loaded.isa}, which cannot show the outputs of single nodes.",
            hint="Load the plan with device='reference'.",
        )

    def move(self, number: int, error: CapacityError | MemoryError) -> None:
        """Put the next implementation in the region's place, for this step and all later ones, with what it held of keys and values; raises
        what went wrong, where there is none.
        """
        region, reason = self._plan.regions[number], error.message if isinstance(error, CapacityError) else str(error) or "out of memory"
        other = self._replace(number, reason) if self._replace is not None else None
        if other is None:
            if isinstance(error, CapacityError):
                raise error
            hint = "Load the plan with fewer max_step_tokens."
            raise CapacityError(f"Region {region.name!r} ran out of memory: {reason}", hint=hint) from error
        self._regions[number].close()
        self._regions[number] = other
        self.moves += 1
        if self._remembers[number]:
            self.restore(self.run)

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

    def node_providers(self) -> dict[str, dict[str, str]]:
        """By region's name, for those whose device knows: what runs each node."""
        return {
            region.name: loaded.node_providers()
            for region, loaded in zip(self._plan.regions, self._regions, strict=True)
            if isinstance(loaded, ProviderRegion)
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
