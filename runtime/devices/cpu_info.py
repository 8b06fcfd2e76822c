"""What the CPU device must know of the machine: cores it may use, and instruction-set flags."""

from __future__ import annotations

import math
import os
import platform
from functools import cache
from pathlib import Path

import msgspec

from mixplan.runtime.cgroup import cgroup_limits
from mixplan.runtime.devices.cpu_amx import amx_refusal

__all__ = ["ISA_LEVELS", "IsaLevel", "allowed_cores", "cpu_flags", "isa_level_names", "level_refusal", "runnable_levels"]


class IsaLevel(msgspec.Struct, frozen=True):
    """One level that kernels are built for: `arch` as in uname, and the flags of /proc/cpuinfo that a CPU must have."""

    name: str
    arch: str
    needs: tuple[str, ...] = ()


_V3 = ("avx2", "fma", "f16c", "bmi1", "bmi2", "movbe", "abm")
_V4 = (*_V3, "avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl", "avx512_vnni")
_AMX = ("amx_tile", "amx_int8", "amx_bf16")
# Worst first within an architecture.
ISA_LEVELS = (
    IsaLevel("portable", "x86_64"),
    IsaLevel("x86-64-v3", "x86_64", _V3),
    IsaLevel("x86-64-v4-vnni", "x86_64", _V4),
    IsaLevel("x86-64-v4-bf16", "x86_64", (*_V4, "avx512_bf16")),
    IsaLevel("x86-64-v4-amx", "x86_64", (*_V4, "avx512_bf16", *_AMX)),
    IsaLevel("arm64", "aarch64"),
)


def isa_level_names() -> tuple[str, ...]:
    """Names of all levels."""
    return tuple(level.name for level in ISA_LEVELS)


@cache
def cpu_flags() -> tuple[str, ...]:
    """This CPU's flags as /proc/cpuinfo names them, sorted; () where it cannot be read."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ()
    for line in text.splitlines():
        key, _, rest = line.partition(":")
        if key.strip().lower() in ("flags", "features"):
            return tuple(sorted(set(rest.split())))
    return ()


def _refusal(level: IsaLevel) -> str:
    if level.arch != platform.machine():
        return f"it is {platform.machine()}, and the level is for {level.arch}"
    lacks = [flag for flag in level.needs if flag not in cpu_flags()]
    if lacks:
        return f"it lacks {', '.join(lacks)}"
    return amx_refusal() if "amx_tile" in level.needs else ""


def level_refusal(name: str) -> str:
    """Why this machine cannot run level `name`, "" if it can. On a CPU with AMX the system is asked for leave to use it."""
    return next(_refusal(level) for level in ISA_LEVELS if level.name == name)


@cache
def _vendor() -> str:
    """The maker that /proc/cpuinfo names, "" where it names none."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in text.splitlines() if line.startswith("vendor_id")), "")


def _by_speed(names: list[str], vendor: str) -> list[str]:
    """Levels, best first: on Intel's cores vdpbf16ps has half the rate of f32 multiply-adds, so VNNI alone is faster."""
    if vendor != "GenuineIntel" or "x86-64-v4-bf16" not in names:
        return names
    without = [name for name in names if name != "x86-64-v4-bf16"]
    without.insert(without.index("x86-64-v4-vnni") + 1, "x86-64-v4-bf16")
    return without


@cache
def runnable_levels() -> tuple[str, ...]:
    """The levels that this machine can run, best first."""
    return tuple(_by_speed([level.name for level in reversed(ISA_LEVELS) if not _refusal(level)], _vendor()))


def _cgroup_quota() -> float:
    """CPUs that the cgroups' quotas allow, infinity without one."""
    limit = cgroup_limits().cpus
    return math.inf if limit is None else limit


def allowed_cores() -> int:
    """Cores this process may use at once: its affinity mask, cut to the cgroup's quota, at least 1."""
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, int(min(affinity, _cgroup_quota())))
