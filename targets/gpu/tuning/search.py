"""Looks for the fastest tile of each piece of work, from the table's on."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from mixplan.runtime.devices.gpu_program import Program
from mixplan.runtime.errors import InternalError, MixplanError
from mixplan.targets.gpu.arch import JIT, Arch
from mixplan.targets.gpu.builds import Build, BuildRequest, with_builds
from mixplan.targets.gpu.tile import Tile
from mixplan.targets.gpu.tuning.bench import Sample
from mixplan.targets.gpu.tuning.candidates import AXES, neighbours
from mixplan.targets.gpu.tuning.work import Work

__all__ = ["Builder", "Timed", "search"]

_LOG = logging.getLogger("mixplan.tuning")
_GAIN = 0.98
"""A tile takes another's place where it takes this part of its time at most: less may be chance."""

Builder = Callable[[Sequence[tuple[str, BuildRequest]]], Sequence[Build | InternalError]]


@dataclass(frozen=True)
class Timed:
    """A tile, its seconds, and those of the table's tile."""

    tile: Tile
    seconds: float
    table_seconds: float


@dataclass(frozen=True)
class _Trial:
    work: Work
    tile: Tile
    program: Program
    requests: tuple[BuildRequest, ...]


def search(
    works: Sequence[Work], arch: Arch, build: Builder, sample: Callable[[Work, Program, bytes], Sample], axes: Sequence[str] = AXES
) -> dict[str, Timed]:
    """The best tile of each by key; works whose table tile does not run here are left out, with a line in the log.

    One axis after the other, for all works at once, so that many kernels are built together. A tile that does not build, asks for more than
    there is, spills registers, or computes something else than the table's, is passed over.
    """
    best: dict[str, tuple[_Trial, Sample]] = {}
    first: dict[str, Sample] = {}
    for trial, outcome in _measured([_trial(work, arch, work.table) for work in works], arch, build, sample):
        if isinstance(outcome, str):
            _LOG.warning("%s cannot be tuned: the table's tile does not run: %s", trial.work.key, outcome)
        else:
            best[trial.work.key], first[trial.work.key] = (trial, outcome), outcome
    for axis in axes:
        trials = []
        for trial, _ in best.values():
            near = (_trial(trial.work, arch, tile) for tile in neighbours(trial.work.kind, trial.tile, axis) if trial.work.takes(tile))
            trials += [one for one in near if one.requests != trial.requests or one.program.launches != trial.program.launches]
        for trial, outcome in _measured(trials, arch, build, sample):
            key = trial.work.key
            if isinstance(outcome, str):
                _LOG.debug("%s: %s does not do: %s", key, trial.tile, outcome)
            elif not first[key].agrees(outcome):
                _LOG.warning("%s: %s computes something else than the table's tile, and is not taken", key, trial.tile)
            elif outcome.seconds < _GAIN * best[key][1].seconds:
                best[key] = trial, outcome
    return {key: Timed(trial.tile, outcome.seconds, first[key].seconds) for key, (trial, outcome) in best.items()}


def _trial(work: Work, arch: Arch, tile: Tile) -> _Trial:
    program, requests = work.lowered(replace(arch, tuned={work.key: tile}))
    return _Trial(work, tile, program, requests)


def _measured(
    trials: Sequence[_Trial], arch: Arch, build: Builder, sample: Callable[[Work, Program, bytes], Sample]
) -> list[tuple[_Trial, Sample | str]]:
    """Each trial with what came of it, or why nothing did."""
    wanted = [] if arch.name == JIT else [(arch.name, request) for trial in trials for request in trial.requests]
    builds = iter(build(wanted) if wanted else ())
    done: list[tuple[_Trial, Sample | str]] = []
    for trial in trials:
        own = [] if arch.name == JIT else [next(builds) for _ in trial.requests]
        why = _misfit(own, arch)
        done.append((trial, why or _sampled(trial, [one for one in own if isinstance(one, Build)], sample)))
    return done


def _misfit(builds: Sequence[Build | InternalError], arch: Arch) -> str:
    for build in builds:
        if isinstance(build, InternalError):
            return build.message
        if build.spilled or build.shared > arch.shared:
            return f"{build.spilled} bytes of registers are spilled, and {build.shared} of {arch.shared} bytes of shared memory asked for"
    return ""


def _sampled(trial: _Trial, builds: Sequence[Build], sample: Callable[[Work, Program, bytes], Sample]) -> Sample | str:
    program = with_builds(trial.program, builds) if builds else trial.program
    try:
        return sample(trial.work, program, b"".join(build.data for build in builds))
    except (MixplanError, MemoryError) as error:
        return str(error)
