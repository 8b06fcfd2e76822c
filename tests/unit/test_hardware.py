"""The hardware record: from fake trees of /proc and /sys, a fake management library, a fake onnxruntime; whole, odd and missing."""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mixplan.runtime.cgroup import CgroupLimits, cgroup_limits
from mixplan.runtime.cost import Cost, limit_seconds, record_limits
from mixplan.runtime.errors import OutputError, UnsupportedError
from mixplan.runtime.hardware import Hardware, Sample, devices, hardware, onnx, samples
from mixplan.runtime.hardware.amdgpu import AmdGpu, find_amd
from mixplan.runtime.hardware.cpu import CpuSource, cpu_record
from mixplan.runtime.hardware.measured import measured_path, read_measured, write_measured
from mixplan.runtime.hardware.nvml import Nvml, open_nvml
from mixplan.runtime.hardware.sampler import LEAST_PERIOD, Sampler
from mixplan.runtime.system_text import count_cpus, number, size
from mixplan.targets.summary import summary

GIB = 1 << 30

CPU0 = "sys/devices/system/cpu/cpu0"
MACHINE = {
    "proc/cpuinfo": "processor : 0\nmodel name\t: Any CPU @ 3 GHz\ncpu MHz\t\t: 1200.5\n",
    "proc/meminfo": "MemTotal:       33554432 kB\nMemAvailable:   16777216 kB\n",
    "proc/self/cgroup": "0::/outer/inner\n",
    f"{CPU0}/cache/index0/type": "Data",
    f"{CPU0}/cache/index0/level": "1",
    f"{CPU0}/cache/index0/size": "48K",
    f"{CPU0}/cache/index0/shared_cpu_list": "0,4",
    f"{CPU0}/cache/index1/type": "Instruction",
    f"{CPU0}/cache/index1/level": "1",
    f"{CPU0}/cache/index1/size": "32K",
    f"{CPU0}/cpufreq/cpuinfo_max_freq": "3500000",
    f"{CPU0}/cpufreq/scaling_cur_freq": "2100000",
    "sys/class/thermal/thermal_zone0/type": "acpitz",
    "sys/class/thermal/thermal_zone0/temp": "16800",
    "sys/class/thermal/thermal_zone1/type": "x86_pkg_temp",
    "sys/class/thermal/thermal_zone1/temp": "61500",
    "sys/class/powercap/intel-rapl:0/energy_uj": "1000000",
    "sys/class/powercap/intel-rapl:0:0/energy_uj": "500000",
}


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def tree(tmp_path: Path) -> Callable[[dict[str, str]], Path]:
    def make(files: dict[str, str]) -> Path:
        for name, text in files.items():
            path = tmp_path / "root" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return tmp_path / "root"

    return make


def test_a_whole_tree(tree: Any) -> None:
    root = tree(MACHINE | {"sys/fs/cgroup/outer/memory.max": str(8 * GIB), "sys/fs/cgroup/outer/memory.current": str(GIB)})
    record = cpu_record(root)
    assert (record.device, record.model, record.clock) == ("cpu", "Any CPU @ 3 GHz", 3.5e9)
    assert [asdict(cache) for cache in record.caches] == [{"level": 1, "kind": "data", "size": 48 << 10, "shared_by": 2}]
    assert (record.memory, record.memory_limit) == (32 * GIB, 8 * GIB)
    source = CpuSource(root)
    assert source() == Sample(free=7 * GIB, temperature=61.5, power=None, clock=2.1e9)
    tree({"sys/class/powercap/intel-rapl:0/energy_uj": "3000000"})
    time.sleep(0.01)
    power = source().power
    assert power is not None and 0 < power <= 2 / 0.01
    tree({"sys/class/powercap/intel-rapl:0/energy_uj": "5"})  # wrapped around
    assert source().power is None


@pytest.mark.parametrize("odd", ["", "\x00\xff", "max", "-", "99999999999999999999999", "0-", "Data", "12.5", "-7"])
def test_odd_and_missing_files_give_null(tree: Any, odd: str) -> None:
    names = [name for name in MACHINE if not name.endswith("/type")]
    cgroups = ["memory.max", "memory.current", "memory.stat", "cpu.max", "memory/memory.limit_in_bytes", "cpu/cpu.cfs_quota_us"]
    root = tree(dict.fromkeys((*names, *(f"sys/fs/cgroup/{name}" for name in cgroups)), odd))
    record, sample = cpu_record(root), CpuSource(root)()
    assert record.caches == () and record.clock is None and record.memory is None and record.bandwidth is None
    assert sample.power is None and sample.free is None and sample.temperature is None
    assert cgroup_limits(root) == CgroupLimits()


def test_an_empty_tree(tmp_path: Path) -> None:
    record = cpu_record(tmp_path / "nothing")
    assert record.memory is record.memory_limit is record.clock is None
    assert CpuSource(tmp_path / "nothing")() == Sample()


def test_sizes_numbers_and_lists() -> None:
    assert (size("480M"), size("32K"), size("12"), size(""), size("K"), size("-1K")) == (480 << 20, 32768, 12, None, None, None)
    assert (count_cpus("0-3,8"), count_cpus(""), count_cpus("3-1"), count_cpus("x")) == (5, None, None, None)
    assert (number(" 7\n"), number("٣"), number("1e3")) == (7, None, None)


def test_cgroups_of_version_2_and_those_above(tree: Any) -> None:
    root = tree(
        {
            "proc/self/cgroup": "0::/a/b\n",
            "sys/fs/cgroup/a/b/cpu.max": "max 100000",
            "sys/fs/cgroup/a/cpu.max": "250000 100000",
            "sys/fs/cgroup/a/b/memory.max": str(4 * GIB),
            "sys/fs/cgroup/a/b/memory.current": str(3 * GIB),
            "sys/fs/cgroup/a/b/memory.stat": f"anon 5\ninactive_file {GIB}\n",
            "sys/fs/cgroup/a/memory.max": str(6 * GIB),
            "sys/fs/cgroup/a/memory.current": str(5 * GIB),
        }
    )
    assert cgroup_limits(root) == CgroupLimits(2.5, 4 * GIB, GIB)


def test_cgroups_of_version_1(tree: Any) -> None:
    root = tree(
        {
            "proc/self/cgroup": "5:memory:/docker/x\n3:cpu,cpuacct:/docker/x\n",
            "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1",
            "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000",
            "sys/fs/cgroup/cpu/docker/x/cpu.cfs_quota_us": "150000",
            "sys/fs/cgroup/cpu/docker/x/cpu.cfs_period_us": "100000",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712",
            "sys/fs/cgroup/memory/docker/x/memory.limit_in_bytes": str(2 * GIB),
            "sys/fs/cgroup/memory/docker/x/memory.usage_in_bytes": str(GIB),
            "sys/fs/cgroup/memory/docker/x/memory.stat": f"total_inactive_file {GIB // 2}\n",
        }
    )
    assert cgroup_limits(root) == CgroupLimits(1.5, 2 * GIB, GIB + GIB // 2)


def test_figures_are_kept_for_this_machine_alone(tmp_path: Path) -> None:
    record = Hardware("cpu", "Any CPU", "x86_64", cores=4)
    assert read_measured(record) == record
    kept = write_measured(record, [(1 << 28, 1e10), (1 << 20, 1e11)], {"f32": 2e11, "int8": 8e11, "bf16": 0.0})
    assert kept.bandwidth == ((1 << 20, 1e11), (1 << 28, 1e10)) and kept.peaks == {"f32": 2e11, "int8": 8e11}
    assert kept.read_rate(1) == 1e11 and kept.read_rate(1 << 40) == 1e10 and kept.read_rate(1 << 24) == pytest.approx(5.5e10)
    assert read_measured(Hardware("cpu", "Any CPU", "x86_64", cores=2)).bandwidth is None
    limits = record_limits(kept)
    assert limits is not None and (limits.int8, limits.bf16, limits.f32) == (8e11, 2e11, 2e11)
    assert limit_seconds(Cost(weight_bytes=1 << 28), limits) == pytest.approx((1 << 28) / 1e10)
    with pytest.raises(UnsupportedError, match="Nothing was measured on cpu"):
        record_limits(record)


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data.pop("peaks"),
        lambda data: data.update(schema="other"),
        lambda data: data.update(bandwidth=[[1 << 20, -1.0]]),
        lambda data: data.update(bandwidth=[[1 << 20, 1.0], [1 << 19, 1.0]]),
        lambda data: data.update(bandwidth="x", peaks=[]),
        lambda data: data.update(peaks={"f32": float("inf")}),
        lambda data: data.update(bandwidth=[]),
    ],
)
def test_broken_figures_are_no_figures(change: Any) -> None:
    record = Hardware("cpu", "Any CPU")
    write_measured(record, [(1 << 20, 1e11)], {"f32": 1e11})
    data = json.loads(measured_path(record).read_text())
    change(data)
    measured_path(record).write_text(json.dumps(data))
    assert read_measured(record) == record
    measured_path(record).write_bytes(b"\xff{")
    assert read_measured(record) == record


def test_a_cache_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(OutputError, match=r"cannot be kept in .*\nSet XDG_CACHE_HOME"):
        write_measured(Hardware("cpu"), [(1, 1.0)], {})


class FakeNvml:
    """One GPU of 80 GB; `lacks` are functions that this driver does not offer."""

    NVML_CLOCK_SM, NVML_TEMPERATURE_GPU, nvmlMemory_v2 = 1, 0, 0x2000028  # noqa: N815

    def __init__(self, lacks: tuple[str, ...] = ()) -> None:
        answers: dict[str, Any] = {
            "Count": 1,
            "HandleByIndex": "handle",
            "Name": b"Any GPU",
            "CudaComputeCapability": (9, 0),
            "NumGpuCores": 132 * 128,
            "MemoryInfo": SimpleNamespace(total=80 * GIB, reserved=GIB, used=9 * GIB, free=70 * GIB),
            "MaxClockInfo": 1980,
            "ClockInfo": 345,
            "MaxPcieLinkGeneration": 5,
            "MaxPcieLinkWidth": 16,
            "MemoryBusWidth": 5120,
            "Temperature": 31,
            "PowerUsage": 71500,
        }
        for name, value in answers.items():
            setattr(self, f"nvmlDeviceGet{name}", self._answer(value, name in lacks))

    @staticmethod
    def _answer(value: Any, fails: bool) -> Any:
        def answer(*arguments: Any) -> Any:
            if fails:
                raise RuntimeError("Not Supported")
            return value

        return answer


def test_a_gpu() -> None:
    library = Nvml(FakeNvml())
    (record,) = library.records()
    assert (record.device, record.model, record.arch, record.cores, record.clock) == ("gpu:0", "Any GPU", "sm_90", 132, 1.98e9)
    assert (record.memory, record.memory_limit) == (80 * GIB, 79 * GIB)
    assert record.link == pytest.approx(63e9, rel=0.001)
    assert record.memory_rate == 2 * 1980e6 * 5120 / 8
    assert library.source(0)() == Sample(free=70 * GIB, temperature=31.0, power=71.5, clock=345e6)


def test_a_gpu_that_tells_nothing() -> None:
    lacks = ("Name", "CudaComputeCapability", "NumGpuCores", "MemoryInfo", "MaxClockInfo", "ClockInfo", "Temperature", "PowerUsage")
    library = Nvml(FakeNvml((*lacks, "MaxPcieLinkGeneration")))
    assert library.records() == [Hardware("gpu:0")]
    assert library.source(0)() == Sample()


AMD = {
    "sys/class/drm/card1/device/vendor": "0x1002",
    "sys/class/drm/card1/device/mem_info_vram_total": str(192 * GIB),
    "sys/class/drm/card1/device/mem_info_vram_used": str(12 * GIB),
    "sys/class/drm/card1/device/max_link_speed": "32.0 GT/s PCIe",
    "sys/class/drm/card1/device/max_link_width": "16",
    "sys/class/drm/card1/device/product_name": "AMD Instinct Any",
    "sys/class/drm/card1/device/pp_dpm_sclk": "0: 132Mhz *\n1: 2100Mhz",
    "sys/class/drm/card1/device/hwmon/hwmon3/temp1_input": "41000",
    "sys/class/drm/card1/device/hwmon/hwmon3/power1_input": "750000000",
    "sys/class/drm/card1/device/hwmon/hwmon3/freq1_input": "132000000",
    "sys/class/drm/card1-DP-1/status": "connected",
    "sys/class/drm/card0/device/vendor": "0x1a03",
    "sys/class/kfd/kfd/topology/nodes/0/properties": "cpu_cores_count 96\nsimd_count 0\ngfx_target_version 0\nlocation_id 0",
    "sys/class/kfd/kfd/topology/nodes/1/properties": "simd_count 1216\nsimd_per_cu 4\ngfx_target_version 90402\nlocation_id 49408",
    "sys/class/kfd/kfd/topology/nodes/2/properties": "simd_count 64\nsimd_per_cu 2\ngfx_target_version 110001\nlocation_id 768\ndomain 0",
}


def _amd_tree(root: Path) -> AmdGpu:
    """The card's folder becomes a link to one named by the PCI address c1:00.0, as it is in a real tree."""
    device, address = root / "sys/class/drm/card1/device", root / "sys/devices/0000:c1:00.0"
    address.parent.mkdir(parents=True)
    device.rename(address)
    device.symlink_to(address)
    (found,) = find_amd(root)
    return found


def test_an_amd_gpu(tree: Any) -> None:
    gpu = _amd_tree(tree(AMD))
    record = gpu.record(2)
    assert (record.device, record.model, record.arch, record.cores, record.clock) == ("gpu:2", "AMD Instinct Any", "gfx942", 304, 2.1e9)
    assert (record.memory, record.link) == (192 * GIB, pytest.approx(63e9, rel=0.001))
    assert gpu.source()() == Sample(free=180 * GIB, temperature=41.0, power=750.0, clock=132e6)


def test_an_amd_gpu_that_tells_little(tree: Any) -> None:
    names = ("total", "used", "speed", "sclk", "temp1_input", "power1_input", "freq1_input", "nodes/1", "product_name")
    odd = {name: ("" if name.endswith("product_name") else "N/A") for name in AMD if any(part in name for part in names)}
    gpu = _amd_tree(tree({**AMD, **odd}))
    assert gpu.record(0) == Hardware("gpu:0")
    assert gpu.source()() == Sample()


def test_another_amd_gpu(tree: Any) -> None:
    # A card of another kind, with two hexadecimal digits at the end; an average is preferred to a moment's power.
    other = {"sys/class/kfd/kfd/topology/nodes/1/properties": "simd_count 208\nsimd_per_cu 2\ngfx_target_version 90010\nlocation_id 49408"}
    other["sys/class/drm/card1/device/hwmon/hwmon3/power1_average"] = "5000000"
    gpu = _amd_tree(tree({**AMD, **other}))
    assert (gpu.record(0).arch, gpu.record(0).cores) == ("gfx90a", 104)
    assert gpu.source()().power == 5.0


def test_without_the_library_or_the_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    for broken in (None, SimpleNamespace(nvmlInit=FakeNvml._answer(0, True)), SimpleNamespace()):
        monkeypatch.setitem(__import__("sys").modules, "pynvml", broken)
        assert open_nvml() is None


def test_onnxruntime(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx.importlib.util, "find_spec", lambda name: object())
    quiet: list[bool] = []
    names = ["QNNExecutionProvider", "CPUExecutionProvider"]
    fake = SimpleNamespace(get_available_providers=lambda: names, disable_telemetry_events=lambda: quiet.append(True))
    monkeypatch.setattr(onnx.importlib, "import_module", lambda name: fake)
    assert [record.device for record in onnx.onnx_records()] == ["npu:qnn", "npu:cpu"]
    assert quiet == [True]
    monkeypatch.setattr(onnx.importlib, "import_module", lambda name: SimpleNamespace())
    assert onnx.onnx_records() == []
    monkeypatch.setattr(onnx.importlib.util, "find_spec", lambda name: None)
    assert onnx.onnx_records() == []


def test_one_thread_samples_for_all_and_seldom() -> None:
    times: list[float] = []
    threads: set[str] = set()

    def source() -> Sample:
        times.append(time.monotonic())
        threads.add(threading.current_thread().name)
        return Sample(free=len(times))

    def broken() -> Sample:
        raise RuntimeError("lost")

    sampler = Sampler({"a": source, "b": broken}, period=0.0, idle=0.15)
    end = time.monotonic() + 0.35
    while time.monotonic() < end:
        found = sampler.latest()
        assert found["a"].free and found["b"] == Sample()
        time.sleep(0.005)
    assert 2 <= len(times) <= 5
    assert min(b - a for a, b in itertools.pairwise(times)) >= LEAST_PERIOD * 0.95
    assert threads == {"mixplan-hardware"}
    time.sleep(0.4)
    count = len(times)
    time.sleep(0.15)
    assert len(times) == count and sampler._thread is None  # nobody asks
    assert sampler.latest()["a"].free == count + 1


def test_this_machine_and_its_summary() -> None:
    record = hardware()
    assert record.cores is not None and record.machine_cores is not None and 1 <= record.cores <= record.machine_cores
    assert record.memory and record.memory_limit and record.memory_limit <= record.memory
    assert list(record.flags) == sorted(record.flags)
    assert devices()[0] == record
    assert samples()["cpu"].free
    rows = summary()["hardware"]
    assert set(rows[0]) == {field.name for field in fields(Hardware)} | {"sample"}
    assert all(set(row["sample"]) == {"free", "temperature", "power", "clock"} for row in rows)
