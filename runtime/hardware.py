"""This machine's hardware, as one record of normalised facts that cost models, `mixplan targets` and `mixplan bench` read."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from mixplan.runtime.devices.cpu_info import allowed_cores, cpu_flags

__all__ = ["CacheLevel", "Hardware", "hardware"]


@dataclass(frozen=True)
class CacheLevel:
    """One cache as a core sees it: level 1..4, kind "data" or "unified", bytes, and how many of the machine's CPUs share it."""

    level: int
    kind: str
    size: int
    shared_by: int


@dataclass(frozen=True)
class Hardware:
    """arch as in uname; cores that this process may use (affinity and cgroup quota counted in); memory in bytes."""

    arch: str
    model: str
    cores: int
    machine_cores: int
    flags: tuple[str, ...]
    caches: tuple[CacheLevel, ...]
    memory: int
    memory_limit: int


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def _size(text: str) -> int:
    units = {"K": 1024, "M": 1024**2, "G": 1024**3}
    if not text:
        return 0
    return int(text[:-1]) * units[text[-1]] if text[-1] in units else int(text)


def _count(cpus: str) -> int:
    """How many CPUs a sysfs list such as "0-3,8" names."""
    total = 0
    for part in filter(None, cpus.split(",")):
        first, _, last = part.partition("-")
        total += int(last or first) - int(first) + 1
    return total


def _caches() -> tuple[CacheLevel, ...]:
    found = []
    for index in range(8):
        base = f"/sys/devices/system/cpu/cpu0/cache/index{index}"
        kind, level = _read(f"{base}/type").lower(), _read(f"{base}/level")
        if kind in ("data", "unified") and level.isdigit():
            found.append(CacheLevel(int(level), kind, _size(_read(f"{base}/size")), _count(_read(f"{base}/shared_cpu_list")) or 1))
    return tuple(found)


def _model() -> str:
    for line in _read("/proc/cpuinfo").splitlines():
        if line.lower().startswith(("model name", "hardware")):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _memory_limit(total: int) -> int:
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        text = _read(path)
        if text.isdigit():
            return min(int(text), total)
    return total


@cache
def hardware() -> Hardware:
    """Read the record; cached for the process."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return Hardware(
        arch=platform.machine(),
        model=_model(),
        cores=allowed_cores(),
        machine_cores=os.cpu_count() or 1,
        flags=cpu_flags(),
        caches=_caches(),
        memory=total,
        memory_limit=_memory_limit(total),
    )
