"""What a benchmark ran on, so that two reports can be told to be of the same machine."""

from __future__ import annotations

import platform
import statistics
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

import mixplan
from mixplan.runtime.bench.meter import Meter
from mixplan.runtime.devices.cpu_info import runnable_levels
from mixplan.runtime.hardware import hardware
from mixplan.runtime.model import Model

__all__ = ["COMPARED", "differences", "fingerprint", "numpy_read_bandwidth"]

COMPARED = ("arch", "model", "cores", "machine_cores", "caches", "memory", "memory_limit", "levels", "isa", "threads")
"""Facts that make two machines, or two ways to use one, different."""

_FACTS = ("model", "arch", "cores", "machine_cores", "caches", "memory", "memory_limit")
_ROUNDS = 7


def fingerprint(model: Model, threads: int, meter: Meter | None = None) -> dict[str, Any]:
    """Facts of the machine, of the system and of what runs the plan. Sizes in bytes, rates in bytes/s.

    The rate of reading as many bytes as the weights have is measured by `meter`, or with numpy where there is none.
    """
    facts = asdict(hardware())
    record, flags = {name: facts[name] for name in _FACTS}, facts["flags"]
    weights = model.metrics().weight_bytes
    return {
        **record,
        "flags": " ".join(flag for flag in flags if flag.startswith(("avx", "amx", "fma", "f16c", "asimd", "sve", "i8mm", "bf16"))),
        "levels": list(runnable_levels()),
        "isa": sorted({place.isa for place in model.placement}),
        "devices": sorted({place.device for place in model.placement}),
        "threads": threads,
        "kernel": platform.release(),
        "huge_pages": _huge_pages(),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "mixplan": mixplan.__version__,
        "interpreter": sys.implementation.name,
        "read_bandwidth": numpy_read_bandwidth(threads) if meter is None else dict(meter.read_bandwidth(weights, threads)),
    }


def _huge_pages() -> str:
    """The mode of transparent huge pages: always, madvise or never; "" where it is not told."""
    try:
        text = Path("/sys/kernel/mm/transparent_hugepage/enabled").read_text(encoding="ascii")
    except OSError:
        return ""
    return text.partition("[")[2].partition("]")[0]


def numpy_read_bandwidth(threads: int, size_per_thread: int = 64 << 20) -> dict[str, Any]:
    """Bytes/s that `threads` threads read together with numpy, which needs no compiler: a lower bound of what the memory gives."""
    parts = [np.ones(size_per_thread // 4, np.int32) for _ in range(threads)]
    rates = []
    for number in range(_ROUNDS + 1):
        workers = [threading.Thread(target=np.maximum.reduce, args=(part,)) for part in parts]
        started = perf_counter()
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        if number > 0:
            rates.append(threads * size_per_thread / (perf_counter() - started))
    return {"bytes_per_second": statistics.median(rates), "working_set": threads * size_per_thread, "by": "numpy", "threads": threads}


def differences(ours: Mapping[str, Any], theirs: Mapping[str, Any], names: Sequence[str] = COMPARED) -> list[str]:
    """The facts that differ, in words."""
    return [
        f"{name}: {theirs.get(name)} there, {ours.get(name)} here" for name in names if _plain(ours.get(name)) != _plain(theirs.get(name))
    ]


def _plain(value: Any) -> Any:
    """Tuples and lists alike, as JSON has them."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value
