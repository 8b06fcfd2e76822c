"""Decode steps of the GPU device: tokens are drawn where the logits are, so that a step brings back a few bytes and no logits."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from mixplan.runtime.hal import MOST_STEPS, Array
from mixplan.runtime.logit_rows import LogitRows
from mixplan.runtime.sampling import Draw, draw_tokens

__all__ = ["GpuDecoder"]


class _Region(Protocol):
    """What a decoder needs of its region; see GpuRegion."""

    def upload_step(self, tables: Array, positions: Array, slots: Array, stretches: Array, inputs: Sequence[Array]) -> None: ...

    def launch_decode(self, count: int) -> None: ...

    def launch_sampler(self, settings: NDArray[np.float64], ks: NDArray[np.int32]) -> NDArray[np.int32]: ...

    def logits(self, count: int) -> NDArray[np.float32]: ...


class GpuDecoder:
    """See hal.RegionDecoder. Not safe for use by several threads at once."""

    def __init__(self, region: _Region, tables: NDArray[np.int32], inputs: Sequence[str]) -> None:
        """inputs: names of the region's inputs."""
        self._region = region
        self._tables = tables
        self._names = tuple(inputs)

    def run(self, tokens: Sequence[int], positions: Sequence[int], slots: Sequence[int]) -> LogitRows:
        """See hal.RegionDecoder."""
        self._step(tokens, np.array(positions, np.int32), np.array(slots, np.int32))
        return LogitRows(self._region.logits(len(tokens)))

    def run_steps(
        self,
        tokens: Sequence[int],
        positions: Sequence[int],
        slots: Sequence[int],
        draws: Sequence[Draw] | None,
        steps: int,
        stops: tuple[int, ...],
        seconds: float,
    ) -> tuple[list[int], LogitRows]:
        """See hal.RegionDecoder. What the kernel leaves to the host is drawn here."""
        started, before = perf_counter(), perf_counter()
        at, where = np.array(positions, np.int32), np.array(slots, np.int32)
        settings = np.zeros((len(tokens), 4), np.float64)
        ks = np.zeros(len(tokens), np.int32)
        for row, draw in enumerate(draws or ()):
            params = draw.params
            settings[row, :3] = params.temperature, params.top_p, params.min_p
            ks[row] = min(params.top_k, np.iinfo(np.int32).max)
        found: list[int] = []
        given: Sequence[int] = tokens
        for number in range(min(steps, MOST_STEPS)):
            self._step(given, at + np.int32(number), where)
            if draws is not None:
                settings[:, 3] = [draw.uniforms[number] for draw in draws]
            given = self._region.launch_sampler(settings, ks).tolist()
            if min(given) < 0:
                given = self._by_host(given, draws, number)
            found += given
            now = perf_counter()
            if min(given) < 0 or not set(stops).isdisjoint(given) or now - started + (now - before) > seconds:
                break
            before = now
        return found, LogitRows(self._region.logits(len(tokens)))

    def _by_host(self, drawn: Sequence[int], draws: Sequence[Draw] | None, number: int) -> list[int]:
        """The tokens with those that the kernel left open; -1 stays for a row without a finite largest logit."""
        rows = LogitRows(self._region.logits(len(drawn)))
        if min(rows.best) < 0:
            return [-1 if best < 0 else token for best, token in zip(rows.best, drawn, strict=True)]
        if draws is None:
            return list(rows.best)
        return draw_tokens(rows, [Draw(draw.params, draw.uniforms[number : number + 1]) for draw in draws])

    def _step(self, tokens: Sequence[int], positions: NDArray[np.int32], slots: NDArray[np.int32]) -> None:
        count = len(tokens)
        arrays = {
            "token_ids": np.array(tokens, np.int64)[None],
            "position_ids": positions.astype(np.int64)[None],
            "sequence_lengths": positions.astype(np.int64)[None] + 1,
            "logit_rows": np.arange(count, dtype=np.int64),
        }
        stretches = np.stack([np.arange(count), np.ones(count)], axis=1)
        self._region.upload_step(self._tables, positions, slots, stretches, [arrays[name] for name in self._names])
        self._region.launch_decode(count)
