"""What control groups leave this process, of CPU time and of memory: version 2, or version 1 with its controllers.

A limit of any group above ours holds as well, so all of them are asked.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from mixplan.runtime.system_text import number, read

__all__ = ["CgroupLimits", "cgroup_limits"]


@dataclass(frozen=True)
class CgroupLimits:
    """cpus: CPUs' worth of time. memory: bytes. memory_free: bytes below the tightest limit, what the kernel can drop counted as free.

    None is no limit.
    """

    cpus: float | None = None
    memory: int | None = None
    memory_free: int | None = None


def cgroup_limits(root: Path = Path("/")) -> CgroupLimits:
    """The limits in force. root: where /proc and /sys are."""
    mount = root / "sys/fs/cgroup"
    cpus: list[float] = []
    memory: list[int] = []
    free: list[int] = []
    for folder in _folders(root, mount, ""):
        quota, _, period = read(folder / "cpu.max").partition(" ")
        _add_quota(cpus, number(quota), number(period or "100000"))
        _add_memory(memory, free, folder, "memory.max", "memory.current", "inactive_file")
    for controller in ("cpu", "cpu,cpuacct"):
        for folder in _folders(root, mount / controller, "cpu"):
            _add_quota(cpus, number(read(folder / "cpu.cfs_quota_us")), number(read(folder / "cpu.cfs_period_us")))
    for folder in _folders(root, mount / "memory", "memory"):
        _add_memory(memory, free, folder, "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
    return CgroupLimits(min(cpus, default=None), min(memory, default=None), min(free, default=None))


def _add_quota(found: list[float], quota: int | None, period: int | None) -> None:
    if quota is not None and period is not None and quota > 0 and period > 0:
        found.append(quota / period)


def _add_memory(limits: list[int], free: list[int], folder: Path, limit: str, used: str, cached: str) -> None:
    most, now = number(read(folder / limit)), number(read(folder / used))
    # Version 1 spells "no limit" as the largest number of pages.
    if most is None or not 0 < most < 1 << 60:
        return
    limits.append(most)
    if now is not None:
        fields = dict(line.split(" ", 1) for line in read(folder / "memory.stat").splitlines() if " " in line)
        free.append(max(0, most - now + (number(fields.get(cached, "0")) or 0)))


def _folders(root: Path, mount: Path, controller: str) -> Iterator[Path]:
    """Our group's folder and those above it, as far as they can be seen: inside a container our own may not be."""
    if not mount.is_dir():
        return
    inner = PurePosixPath("/")
    for line in read(root / "proc/self/cgroup").splitlines():
        _, _, rest = line.partition(":")
        names, _, path = rest.partition(":")
        if controller in names.split(",") and path.startswith("/") and ".." not in path.split("/"):
            inner = PurePosixPath(path)
    for part in (inner, *inner.parents):
        folder = mount / str(part).lstrip("/")
        if folder.is_dir():
            yield folder
