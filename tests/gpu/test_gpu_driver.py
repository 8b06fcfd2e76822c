"""The driver back end, NVIDIA's and AMD's, against a driver that checks every call, without a GPU."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from mixplan.runtime.devices import gpu
from mixplan.runtime.devices.gpu_api import CUDA, DRIVERS, HIP, Api
from mixplan.runtime.devices.gpu_driver import Driver, search
from mixplan.runtime.devices.gpu_native import DriverBackend
from mixplan.runtime.devices.gpu_program import Kernel, Program
from mixplan.runtime.errors import CapacityError, InternalError, UnsupportedError
from mixplan.runtime.hal import CacheSpec, DeviceOptions, Fault
from mixplan.runtime.hardware import cuda
from mixplan.runtime.hardware.cuda import driver_record

both = pytest.mark.parametrize("api", DRIVERS, ids=["cuda", "hip"])


def _program(arch: str, *kernels: tuple[str, tuple[int, ...]], module: Any, shared: int = 0, image: bytes = b"") -> tuple[Any, Any]:
    """A program of kernels given by entry and bytes of each parameter, and its binaries."""
    binaries, made = b"", []
    for entry, sizes in kernels:
        data = image or module.text_image(entry, sizes)
        made.append(Kernel(entry, (), {}, 4, 3, entry, shared, 256, 32, 0, len(binaries), len(data)))
        binaries += data
    return Program(1, arch, "triton", 7, 512, 32, 64, 128, {}, tuple(made), ()), memoryview(binaries)


@both
def test_the_prototypes_are_those_of_the_vendors_header(api: Api, fake_driver: Any) -> None:
    """Number, width and kind of every argument, and the width of what is pointed to."""
    numbers = {"int": 4, "unsigned int": 4, "unsigned": 4, "CUdevice": 4, "hipDevice_t": 4, "CUresult": 4, "hipError_t": 4, "size_t": 8}
    numbers |= {"unsigned long long": 8, "CUdeviceptr": 8, "unsigned char": 1, "float": 4, "char": 1, "hipStreamCaptureMode": 4}
    numbers |= {"CUdevice_attribute": 4, "CUfunction_attribute": 4, "CUstreamCaptureMode": 4}
    for step, (name, types) in api.functions.items():
        wanted = fake_driver.prototype(api, name.removesuffix("R0600"))
        assert len(wanted) == len(types), name
        for spelled, given in zip(wanted, types, strict=True):
            base, pointer = spelled.removeprefix("const ").replace(" ", ""), spelled.endswith("*")
            if not pointer and spelled in numbers:
                assert (ctypes.sizeof(given), given is ctypes.c_void_p) == (numbers[spelled], False), (step, spelled)
                continue
            assert ctypes.sizeof(given) == 8, (step, spelled)
            if hasattr(given, "_type_") and not isinstance(given._type_, str):  # a POINTER: to what the header says?
                assert ctypes.sizeof(given._type_) == numbers.get(base[:-1], 8), (step, spelled)


@both
def test_memory_launches_and_graphs(api: Api, fake_gpu: Any, fake_driver: Any) -> None:
    fake = fake_gpu(api)
    backend = DriverBackend(fake.driver())
    assert (backend.arch, backend.name) == (("sm_90", "sm_90 (Fake GPU)") if api is CUDA else ("gfx942", "gfx942 (Fake GPU)"))
    memory = backend.allocate(64, "a test")
    into = np.full(4, 9, np.int32)
    backend.download(memory, 16, into)
    np.testing.assert_array_equal(into, 0)  # memory comes as zeros
    given = np.arange(4, dtype=np.int32)
    backend.upload(memory, 16, given)
    given[:] = 77  # the driver has read it
    backend.download(memory, 12, into)
    np.testing.assert_array_equal(into, [0, 0, 1, 2])
    for use in (backend.upload, backend.download):
        with pytest.raises(InternalError, match="does not fit"):
            use(memory, 60, into)

    def add(driver: Any, grid: tuple[int, ...], values: tuple[int, ...]) -> None:
        numbers = np.frombuffer(driver.bytes_at(values[0]), np.int32)
        numbers[: grid[0]] += np.array([values[1]], np.uint32).view(np.int32)

    fake.kernels["add"] = add
    shared = 60 * 1024  # more than CUDA gives without leave, and less than HIP has
    program, binaries = _program(backend.arch, ("add", (8, 4, 8, 8)), module=fake_driver, shared=shared)
    (function,) = backend.load(program, binaries)
    ready = backend.prepare(function, program.kernels[0], (3, 2, 1), [(memory, 32), None, -7])
    ready()
    assert not fake.launches  # nothing has waited for it
    backend.download(memory, 32, into)
    np.testing.assert_array_equal(into, [-7, -7, -7, 0])
    wanted = ("add", (3, 2, 1), 256, shared, (memory.address + 32, (1 << 32) - 7, 0, 0))
    assert fake.launches == [wanted]
    graph = backend.graph([ready, ready])
    assert graph is not None
    assert fake.launches == [wanted]  # captured, not run
    graph()
    graph()
    backend.download(memory, 32, into)
    np.testing.assert_array_equal(into, [-35, -35, -35, 0])
    counts = {name: fake.get(name) for name in ("direct", "captured", "graphs", "replays", "executed")}
    assert counts == {"direct": 1, "captured": 2, "graphs": 1, "replays": 2, "executed": 5}
    ready()
    backend.close()
    backend.close()
    assert len(fake.launches) == 6 and fake.report() == ""


@both
def test_the_time_of_launches_is_the_devices(api: Api, fake_gpu: Any, fake_driver: Any) -> None:
    """As one graph, or where there is no room for one, one after the other; the driver's clock runs only while kernels do."""
    for refuse in (0, 1):
        fake = fake_gpu(api)
        fake.set("refuse", refuse)
        fake.set("room", 1 << 20)  # less than is written between rounds where there is room
        fake.milliseconds = lambda entry, grid, threads: float(grid[0])
        backend = DriverBackend(fake.driver())
        program, binaries = _program(backend.arch, ("rope", (4, 8, 8)), module=fake_driver)
        (function,) = backend.load(program, binaries)
        ready = [backend.prepare(function, program.kernels[0], (size, 1, 1), [3]) for size in (2, 5)]
        assert backend.seconds(ready) == pytest.approx(7e-3)
        assert (fake.get("replays") > 5, fake.get("direct") > 12) == (not refuse, bool(refuse))
        backend.close()
        assert fake.report() == ""


@both
def test_short_memory_and_refused_modules(api: Api, fake_gpu: Any, fake_driver: Any) -> None:
    fake = fake_gpu(api)
    fake.set("room", 1 << 16)
    backend = DriverBackend(fake.driver())
    backend.allocate(1000, "the arena")
    with pytest.raises(CapacityError, match="no 100000 bytes for a KV cache"):
        backend.allocate(100_000, "a KV cache")
    program, binaries = _program(backend.arch, ("rope", (8,)), module=fake_driver, image=b"nonsense")
    with pytest.raises(UnsupportedError, match=r"rope does not load: .*LoadData failed: invalid image \(200\)"):
        backend.load(program, binaries)
    program, binaries = _program(backend.arch, ("rope", (8,)), module=fake_driver, image=fake_driver.text_image("norm", (8,)))
    with pytest.raises(UnsupportedError, match=r"rope does not load: .*GetFunction failed: not found \(500\)"):
        backend.load(program, binaries)
    backend.close()
    assert fake.report() == ""


@both
def test_a_graph_that_does_not_fit_is_done_without(api: Api, fake_gpu: Any, fake_driver: Any) -> None:
    fake = fake_gpu(api)
    backend = DriverBackend(fake.driver())
    program, binaries = _program(backend.arch, ("rope", (4, 8, 8)), module=fake_driver)
    ready = backend.prepare(backend.load(program, binaries)[0], program.kernels[0], (1, 1, 1), [3])
    fake.set("refuse", 1)
    assert backend.graph([ready]) is None
    assert backend.graph([ready]) is None and fake.get("captured") == 1  # it is not tried again
    wrong = backend.prepare(0, program.kernels[0], (1, 1, 1), [3])
    fake.set("refuse", 0)
    backend = DriverBackend(fake.driver())
    with pytest.raises(InternalError, match="failed: refused"):
        backend.graph([wrong])
    backend.allocate(16, "what a stream that still captured would refuse")
    assert "is no function" in fake.report()


def test_which_gpus_have_binaries(fake_gpu: Any) -> None:
    fake = fake_gpu(CUDA)
    for (major, minor), arch in {(8, 0): "sm_80", (8, 6): "sm_80", (9, 0): "sm_90", (10, 0): "sm_100", (10, 3): "", (12, 0): ""}.items():
        fake.set("major", major)
        fake.set("minor", minor)
        assert fake.driver().arch == arch
    assert fake.driver().describe() == "Fake GPU, compute capability 12.0"
    with pytest.raises(UnsupportedError, match=r"12\.0 is not one of those"):
        DriverBackend(fake.driver())
    amd = fake_gpu(HIP)
    assert (amd.driver().arch, amd.driver().describe()) == ("gfx942", "Fake GPU, architecture gfx942")
    amd.arch("gfx90a:sramecc+")
    assert (amd.driver().arch, amd.driver().kind) == ("", "architecture gfx90a")
    amd.arch("")
    assert amd.driver().kind == "architecture unknown"
    amd.set("devices", 0)
    with pytest.raises(InternalError, match=r"AMD's HIP: hipGetDeviceCount failed: refused \(100\)"):
        amd.driver()


def test_a_record_by_the_driver_alone(fake_gpu: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    """Where NVML's package is not installed. What the driver does not know of is null; HIP is not asked."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    fake = fake_gpu(CUDA)
    fake.set("minor", 3)
    driver = fake.driver()
    record = driver_record(driver)
    assert (record.device, record.model, record.arch, record.cores, record.clock) == ("gpu:0", "Fake GPU", "sm_93", 132, 1.98e9)
    assert (record.memory, record.memory_limit, record.memory_rate) == (80 << 30, None, 2 * 2619e6 * 5120 / 8)
    fake.set("strict", 1)
    assert driver_record(driver).memory_rate is None
    for found, count in ((driver, 1), (fake_gpu(HIP).driver(), 0), (None, 0)):
        monkeypatch.setattr(cuda, "find_driver", lambda found=found: (found, ""))
        assert len(cuda.find_cuda()) == count


def test_the_first_driver_with_a_gpu_is_taken(fake_gpu: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    nvidia, amd = fake_gpu(CUDA), fake_gpu(HIP)
    libraries: dict[str, Any] = {CUDA.title: nvidia.library, HIP.title: amd.library}
    monkeypatch.setattr(Api, "open", lambda self: libraries[self.title])
    nvidia.set("devices", 0)
    found, _ = search(DRIVERS)
    assert found is not None and found.arch == "gfx942"
    libraries[HIP.title] = None
    assert search(DRIVERS) == (None, "the CUDA driver sees no GPU; libamdhip64.so is not found, so there is no ROCm")
    libraries[CUDA.title] = ctypes.CDLL(None)
    assert search((CUDA,)) == (None, "the CUDA driver has no function cuInit; a newer one is needed")


def test_torch_takes_over_from_a_driver_that_cannot(fake_gpu: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fault is told; an `isa` leaves no other way."""
    region = SimpleNamespace(implementation="", faults=())

    def loaded(plan: Any, index: int, caches: Any, backend: str) -> Any:
        if backend != "torch":
            raise UnsupportedError("no such kernels")
        return region

    driver: Driver = fake_gpu(CUDA).driver()
    monkeypatch.setattr(gpu, "find_driver", lambda: (driver, ""))
    monkeypatch.setattr(gpu, "_gpu_of_torch", lambda: "Fake GPU")
    monkeypatch.setattr(gpu, "DriverBackend", lambda driver: "driver")
    monkeypatch.setattr(gpu, "_torch_backend", lambda interpret: "torch")
    monkeypatch.setattr(gpu, "_loaded", loaded)
    caches = CacheSpec(1, 32, 1, 1)
    no_plan: Any = None  # which the stand-in for _loaded does not look at
    assert gpu.GpuDevice(DeviceOptions()).load(no_plan, 0, caches) is region
    assert region.implementation == "torch on the GPU"
    assert region.faults == (Fault("the CUDA driver", "no such kernels"),)
    with pytest.raises(UnsupportedError, match="no such kernels"):
        gpu.GpuDevice(DeviceOptions(isa="sm_90")).load(no_plan, 0, caches)
    with pytest.raises(UnsupportedError, match="'sm_80', but the GPU here runs 'sm_90'"):
        gpu.GpuDevice(DeviceOptions(isa="sm_80")).load(no_plan, 0, caches)
