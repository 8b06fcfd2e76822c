"""The CPU's record, from /proc and /sys."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from time import monotonic

from mixplan.runtime.cgroup import cgroup_limits
from mixplan.runtime.devices.cpu_info import allowed_cores, cpu_flags
from mixplan.runtime.hardware.measured import read_measured
from mixplan.runtime.hardware.record import CacheLevel, Hardware, Sample
from mixplan.runtime.system_text import count_cpus, number, read, size

__all__ = ["CpuSource", "cpu_record"]

_ROOT = Path("/")
# Kinds of thermal zones and sensors that are a processor's, best first.
_THERMAL = ("x86_pkg_temp", "coretemp", "k10temp", "zenpower", "cpu_thermal", "cpu-thermal", "soc_thermal")


def cpu_record(root: Path = _ROOT) -> Hardware:
    """The record. root: where /proc and /sys are."""
    total = _memory(root)
    limit = cgroup_limits(root).memory
    record = Hardware(
        device="cpu",
        model=_model(root),
        arch=platform.machine() or None,
        flags=cpu_flags(),
        cores=allowed_cores(),
        machine_cores=os.cpu_count(),
        clock=_clock(root, "cpuinfo_max_freq"),
        caches=_caches(root),
        memory=total,
        memory_limit=limit if total is None else min(total, limit or total),
    )
    return read_measured(record)


def _model(root: Path) -> str | None:
    for line in read(root / "proc/cpuinfo").splitlines():
        if line.lower().startswith(("model name", "hardware")):
            return line.partition(":")[2].strip() or None
    return platform.processor() or None


def _caches(root: Path) -> tuple[CacheLevel, ...]:
    found = []
    for index in range(8):
        base = root / f"sys/devices/system/cpu/cpu0/cache/index{index}"
        kind, level, bytes_ = read(base / "type").lower(), number(read(base / "level")), size(read(base / "size"))
        if kind in ("data", "unified") and level and bytes_:
            found.append(CacheLevel(level, kind, bytes_, count_cpus(read(base / "shared_cpu_list")) or 1))
    return tuple(found)


def _memory(root: Path) -> int | None:
    return _meminfo(root, "MemTotal")


def _meminfo(root: Path, name: str) -> int | None:
    for line in read(root / "proc/meminfo").splitlines():
        key, _, value = line.partition(":")
        if key == name and value.split():
            kilobytes = number(value.split()[0])
            return None if kilobytes is None else kilobytes << 10
    return None


def _clock(root: Path, name: str) -> float | None:
    kilohertz = number(read(root / f"sys/devices/system/cpu/cpu0/cpufreq/{name}"))
    return kilohertz * 1e3 if kilohertz and kilohertz > 0 else None


class CpuSource:
    """Samples of the CPU. Power is the mean since the sample before, so the first has none."""

    def __init__(self, root: Path = _ROOT) -> None:
        self._root = root
        self._energy: tuple[float, int] | None = None

    def __call__(self) -> Sample:
        """A sample, now."""
        return Sample(self._free(), self._temperature(), self._power(), _clock(self._root, "scaling_cur_freq") or self._megahertz())

    def _free(self) -> int | None:
        both = [_meminfo(self._root, "MemAvailable"), cgroup_limits(self._root).memory_free]
        return min((one for one in both if one is not None), default=None)

    def _temperature(self) -> float | None:
        zones = {read(zone / "type"): zone / "temp" for zone in _sorted(self._root / "sys/class/thermal", "thermal_zone*")}
        sensors = {read(sensor / "name"): sensor / "temp1_input" for sensor in _sorted(self._root / "sys/class/hwmon", "hwmon*")}
        for kind in _THERMAL:
            place = zones.get(kind) or sensors.get(kind)
            thousandths = number(read(place)) if place is not None else None
            if thousandths is not None and -50_000 < thousandths < 200_000:
                return thousandths / 1e3
        return None

    def _power(self) -> float | None:
        """From the energy counters of the packages, in microjoules, which wrap around."""
        packages = [zone for zone in _sorted(self._root / "sys/class/powercap", "intel-rapl:*") if zone.name.count(":") == 1]
        counters = [number(read(zone / "energy_uj")) for zone in packages]
        before, self._energy = self._energy, None
        if not counters or any(one is None for one in counters):
            return None
        now, energy = monotonic(), sum(one or 0 for one in counters)
        self._energy = (now, energy)
        if before is None or now <= before[0] or energy < before[1]:
            return None
        return (energy - before[1]) / 1e6 / (now - before[0])

    def _megahertz(self) -> float | None:
        for line in read(self._root / "proc/cpuinfo").splitlines():
            if line.startswith("cpu MHz"):
                try:
                    return float(line.partition(":")[2]) * 1e6
                except ValueError:
                    return None
        return None


def _sorted(folder: Path, pattern: str) -> list[Path]:
    try:
        return sorted(folder.glob(pattern))
    except OSError:
        return []
