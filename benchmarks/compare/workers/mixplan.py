"""mixplan, through its public Python API: one call of `Model.decode_greedy` for some steps."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import mixplan
from benchmarks.compare.workers.protocol import Worker, main
from mixplan.runtime import load

__all__ = ["Mixplan"]

_SEQUENCES = 64


class Mixplan(Worker):
    """One loaded plan; sequence 0 serves single prompts, 0.. serve batches."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__(config)
        options = {name: config[name] for name in ("isa", "kv_tokens") if name in config}
        self.model = load(config["model"], threads=config["threads"], max_sequences=_SEQUENCES, **options)
        self._prompt_native = 0.0

    def _prompt(self, ids: Sequence[int], sequence: int = 0) -> int:
        if self.model.length(sequence):
            self.model.free(sequence)
        before = self._native()
        token = int(self.model.prefill(ids, sequence).argmax())
        self._prompt_native = self._native() - before
        return token

    def first(self, ids: Sequence[int]) -> int:
        return self._prompt(ids)

    def _steps(self, prompts: Sequence[Sequence[int]], steps: int) -> list[float]:
        """Greedy steps as `generate` makes them: several in one call where that gives the same tokens."""
        numbers = list(range(len(prompts)))
        tokens = [self._prompt(ids, number) for number, ids in zip(numbers, prompts, strict=True)]
        seconds: list[float] = []
        while len(seconds) < steps:
            started = time.perf_counter()
            found = self.model.decode_greedy(tokens, numbers, steps=steps - len(seconds))
            done = len(found) // len(numbers)
            seconds += [(time.perf_counter() - started) / done] * done
            tokens = found[-len(numbers) :]
        return seconds

    def decode(self, ids: Sequence[int], steps: int) -> list[float]:
        return self._steps([ids], steps)

    def batch(self, prompts: Sequence[Sequence[int]], steps: int) -> list[float]:
        seconds = self._steps(prompts, steps)
        for number in range(1, len(prompts)):
            self.model.free(number)
        return seconds

    def logits(self, ids: Sequence[int]) -> Any:
        if self.model.length(0):
            self.model.free(0)
        return self.model.step(ids, range(len(ids)), [0] * len(ids), logits="all")

    def facts(self) -> Mapping[str, Any]:
        return {
            "version": f"mixplan {mixplan.__version__}",
            "placement": [str(place) for place in self.model.placement],
            "weights_bytes": self.model.metrics().weight_bytes,
        }

    def other(self, request: Mapping[str, Any]) -> dict[str, Any]:
        if request.get("do") == "ceilings":
            return self._ceilings(int(request["bytes"]))
        if request.get("do") == "overhead":
            return {"share": self._overhead(request["ids"], request["steps"])}
        return super().other(request)

    def _ceilings(self, size: int) -> dict[str, Any]:
        """GB/s of reading `size` bytes over and over, in the better kind of pages, and GOP/s of each unit, in this very process."""
        from mixplan.targets.cpu.ceilings import measure

        found = measure(sizes=(size,), threads=(self.config["threads"],), rounds=5)
        return {"read": found.bandwidth(size), **{peak.name: peak.gop_per_s for peak in found.peaks}}

    def _native(self) -> float:
        return sum(region.get("native_seconds", 0.0) for region in self.model.metrics().regions.values())

    def _overhead(self, ids: Sequence[int], steps: int) -> float:
        """The share of decode steps' time that is not spent in the plan's native code: Python, scheduling, the choice of the token."""
        self._steps([ids], 1)
        before = self._native()
        whole = sum(self._steps([ids], steps))
        return 1.0 - (self._native() - before - self._prompt_native) / whole


if __name__ == "__main__":
    main(Mixplan)
