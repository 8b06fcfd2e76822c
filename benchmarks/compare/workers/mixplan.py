"""mixplan, through its public Python API."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import mixplan
import numpy as np

from benchmarks.compare.workers.protocol import main, timed

__all__ = ["Mixplan"]

_SEQUENCES = 64


class Mixplan:
    """One loaded plan; sequence 0 serves single prompts, 0.. serve batches."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        options = {name: config[name] for name in ("isa", "kv_tokens") if name in config}
        self.model = mixplan.load(config["model"], threads=config["threads"], max_sequences=_SEQUENCES, **options)

    def _prompt(self, ids: Sequence[int], sequence: int = 0) -> int:
        if self.model.length(sequence):
            self.model.free(sequence)
        return int(self.model.prefill(ids, sequence).argmax())

    def first(self, ids: Sequence[int]) -> int:
        return self._prompt(ids)

    def decode(self, ids: Sequence[int], steps: int) -> list[float]:
        state = [self._prompt(ids), len(ids)]

        def step() -> None:
            logits = self.model.step(state[:1], state[1:], [0])
            state[:] = [int(logits[0].argmax()), state[1] + 1]

        return timed(steps, step)

    def batch(self, prompts: Sequence[Sequence[int]], steps: int) -> list[float]:
        numbers = np.arange(len(prompts))
        tokens = np.asarray([self._prompt(ids, number) for number, ids in enumerate(prompts)])
        positions = np.asarray([len(ids) for ids in prompts])

        def step() -> None:
            nonlocal tokens
            tokens = self.model.step(tokens, positions, numbers).argmax(-1)
            positions[:] += 1

        seconds = timed(steps, step)
        for number in range(1, len(prompts)):
            self.model.free(number)
        return seconds

    def logits(self, ids: Sequence[int]) -> Any:
        if self.model.length(0):
            self.model.free(0)
        return self.model.step(ids, range(len(ids)), [0] * len(ids), logits="all")

    def facts(self) -> Mapping[str, Any]:
        return {"version": f"mixplan {mixplan.__version__}", "placement": [str(place) for place in self.model.placement]}


if __name__ == "__main__":
    main(Mixplan)
