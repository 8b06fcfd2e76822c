"""Tiles for a region on the GPU that is here: from the cache, and timed where they are not in it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from mixplan.runtime.devices.gpu_backend import Backend
from mixplan.runtime.devices.gpu_driver import Driver, find_driver
from mixplan.runtime.devices.gpu_native import DriverBackend
from mixplan.runtime.errors import OptionError
from mixplan.runtime.plan import Plan, Region
from mixplan.targets.gpu.arch import Arch
from mixplan.targets.gpu.build import build_each, compiler_identity
from mixplan.targets.gpu.tuning.bench import Clock, Rows, Sampler
from mixplan.targets.gpu.tuning.cache import TileCache
from mixplan.targets.gpu.tuning.search import Timed, search
from mixplan.targets.gpu.tuning.work import find_work

__all__ = ["gpu_for", "tune", "tuned_archs"]


def gpu_for(levels: Sequence[str]) -> Driver:
    """The GPU that is here, which must run one of these architectures. OptionError where there is none."""
    driver, reason = find_driver()
    if driver is None or driver.arch not in levels:
        here = f"the GPU here is {driver.describe()}" if driver else f"there is no GPU: {reason}"
        raise OptionError(
            f"tune is asked for, which times kernels on a GPU that runs {' or '.join(levels)}, but {here}.",
            hint="Leave tune out, or compile on a machine with that GPU.",
        )
    return driver


def tune(
    plan: Plan,
    region: Region,
    arch: Arch,
    cache: TileCache,
    make: Callable[[], Backend],
    *,
    jobs: int = 0,
    clock: Clock = lambda backend, launches: backend.seconds(launches),
    rows: Rows | None = None,
) -> dict[str, Timed]:
    """The tiles that the region's nodes ask for, by key; those that were not known are timed and kept."""
    works = find_work(plan, region, arch)
    known = cache.read()
    missing = [work for work in works if work.key not in known]
    if missing:
        found = search(missing, arch, partial(build_each, jobs=jobs), Sampler(make, clock, rows or Rows()))
        cache.add(found)
        known = {**known, **found}
    return {work.key: known[work.key] for work in works if work.key in known}


def tuned_archs(plan: Plan, region: Region, archs: Mapping[str, Arch], jobs: int) -> tuple[dict[str, Arch], tuple[str, ...]]:
    """The architectures, that of the GPU here with tiles timed on it; and what a plan's reader should know of them."""
    driver = gpu_for(tuple(archs))
    arch = archs[driver.arch]
    context = driver.retain()  # making one anew for each sample would take longer than the sample
    try:
        found = tune(plan, region, arch, TileCache(arch.name, driver.gpu, compiler_identity()), lambda: DriverBackend(driver), jobs=jobs)
    finally:
        driver.bind(context)
        driver.release()
    tiles = {key: timed.tile for key, timed in found.items()}
    works = [work for work in find_work(plan, region, arch) if tiles.get(work.key, work.table) != work.table]
    notes = [f"tile on {driver.gpu} ({arch.name}): {work.key}: {tiles[work.key]}; of the table: {work.table}" for work in works]
    notes += [f"tiles of {name} are the table's: the GPU here is {driver.gpu}" for name in archs if name != arch.name]
    return {**archs, arch.name: replace(arch, tuned=tiles)}, tuple(notes)
