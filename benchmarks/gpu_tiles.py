"""What gpu_check.py tells of tiles and keeps of ceilings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

__all__ = ["keep_ceilings", "smoke_tiles", "tiles"]


def smoke_tiles(plan: Path) -> None:
    """Two tiles of a plan and those beside them, in the interpreter; nothing is kept."""
    from mixplan.runtime.plan_io import read_plan
    from mixplan.targets.gpu.arch import ARCHS, JIT
    from mixplan.targets.gpu.torch_backend import TorchBackend
    from mixplan.targets.gpu.tuning.bench import Rows, Sampler
    from mixplan.targets.gpu.tuning.search import search
    from mixplan.targets.gpu.tuning.work import find_work

    with read_plan(plan) as loaded:
        works = find_work(loaded.plan, loaded.plan.regions[0], ARCHS[JIT])[:2]
    sampler = Sampler(lambda: TorchBackend(True), lambda backend, launches: backend.seconds(launches), Rows(small=17))
    found = search(works, ARCHS[JIT], lambda wanted: [], sampler, ("n",))
    if set(found) != {work.key for work in works}:
        raise RuntimeError(f"Of {[work.key for work in works]} only {list(found)} were timed.")


def tiles() -> list[dict[str, Any]]:
    """One row for each tile that was ever tuned on this GPU with these kernels."""
    from mixplan.runtime.devices.gpu_driver import find_driver
    from mixplan.targets.gpu.build import compiler_identity
    from mixplan.targets.gpu.tuning.cache import TileCache

    driver, _ = find_driver()
    if driver is None or not driver.arch:
        return []
    known = TileCache(driver.arch, driver.gpu, compiler_identity()).read()
    return [
        {"tile for": key, "tile": str(one.tile), "microseconds": one.seconds * 1e6, "table_microseconds": one.table_seconds * 1e6}
        for key, one in sorted(known.items())
    ]


def keep_ceilings(top: dict[str, float]) -> None:
    """The GPU's figures for its hardware record, where NVML or the kernel's driver knows the GPU."""
    from mixplan.runtime.hardware import devices
    from mixplan.runtime.hardware.measured import write_measured

    for record in devices():
        if record.device == "gpu:0":
            write_measured(record, [(1 << 30, top["bytes_per_second"])], {"bf16": top["operations_per_second"]})
