"""From a plan's files to a model: what `load` does once the weights are on their way."""

from __future__ import annotations

import os
from time import perf_counter

from mixplan.runtime.errors import OptionError
from mixplan.runtime.executor import Executor
from mixplan.runtime.fallbacks import Fallbacks
from mixplan.runtime.hal import DeviceOptions
from mixplan.runtime.kv_cache import PagedCache
from mixplan.runtime.limits import cache_spec, step_limit
from mixplan.runtime.loading import WEIGHTS, Weights
from mixplan.runtime.model import Model
from mixplan.runtime.placement import RegionLoader, check_options
from mixplan.runtime.plan_check import check_decoder
from mixplan.runtime.plan_files import PlanFile
from mixplan.runtime.plan_io import Verify, open_plan
from mixplan.runtime.trust import trust_digest

__all__ = ["open_model"]


def open_model(
    path: str | os.PathLike[str],
    ahead: dict[str, PlanFile],
    *,
    device: str,
    threads: int | None,
    trust: bool,
    max_sequences: int,
    kv_tokens: int | None,
    max_step_tokens: int | None,
    isa: str | None,
    verify: Verify,
    weights: Weights,
    profile: bool,
    strict: bool,
    allow_cpu_fallback: bool,
    started: float,
) -> Model:
    """What `load` does once its weights are on their way. ahead: the plan's files that are being read."""
    check_options(device, threads)
    for name, number in (("max_sequences", max_sequences), ("kv_tokens", kv_tokens), ("max_step_tokens", max_step_tokens)):
        if number is not None and not isinstance(number, int):
            raise OptionError(f"{name} is {number!r}; it must be a whole number.")
    if weights not in WEIGHTS:
        raise OptionError(f"weights is {weights!r}; allowed are {', '.join(WEIGHTS)}.")
    loaded = open_plan(path, ahead, verify=verify)
    try:
        check_decoder(loaded.plan)
        loaded.trusted, loaded.trust_reason = (True, "trust=True was given") if trust else trust_digest(loaded.digest, loaded.root)
        limit = step_limit(loaded.plan, max_step_tokens)
        caches = cache_spec(loaded.plan, max_sequences, kv_tokens)
        fallbacks = Fallbacks(len(loaded.plan.regions), strict)
        options = DeviceOptions(threads=threads, isa=isa, profile=profile, allow_cpu_fallback=allow_cpu_fallback)
        loader = RegionLoader(loaded, caches, device, options, fallbacks)
        regions = loader.load_all()
        executor = Executor(loaded.plan, regions, loader.replace)
        try:
            # Nothing has been computed with the weights yet: from here on they are known to be what the manifest says.
            loaded.finish()
        except BaseException:
            executor.close()
            raise
    except BaseException:
        loaded.close()
        raise
    return Model(loaded, executor, PagedCache(caches), loader.placements, limit, perf_counter() - started, fallbacks)
