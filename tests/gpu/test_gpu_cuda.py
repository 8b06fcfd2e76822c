"""The CUDA back end against a driver that keeps its memory in this process and writes down what it is asked to launch."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from mixplan.runtime.devices import gpu
from mixplan.runtime.devices.gpu_cuda import CudaBackend
from mixplan.runtime.devices.gpu_driver import Driver
from mixplan.runtime.devices.gpu_program import Kernel, Program
from mixplan.runtime.errors import CapacityError, InternalError, UnsupportedError
from mixplan.runtime.hal import CacheSpec, DeviceOptions, Fault


def _program(shared: int) -> Program:
    kernel = Kernel("rope", ("*fp32", "", "*fp32", "i32"), {}, 4, 3, "rope", shared, 128, 32, 0, 1, 4)
    return Program(1, "sm_90", "triton", 7, 512, 32, 64, 128, {}, (kernel,), ())


def test_memory_launches_and_graphs(fake_cuda: Any) -> None:
    library = fake_cuda()
    backend = CudaBackend(Driver(library))
    assert backend.arch == "sm_90"
    memory = backend.allocate(64, "a test")
    into = np.full(4, 9, np.int32)
    backend.download(memory, 16, into)
    np.testing.assert_array_equal(into, 0)  # memory comes as zeros
    backend.upload(memory, 16, np.arange(4, dtype=np.int32))
    backend.download(memory, 12, into)
    np.testing.assert_array_equal(into, [0, 0, 1, 2])
    with pytest.raises(InternalError, match="does not fit"):
        backend.upload(memory, 60, into)
    program = _program(50 * 1024)
    (function,) = backend.load(program, memoryview(b"?cubin"))
    assert ("attribute", 1000 + ord("r"), 8, 50 * 1024) in library.log
    library.widths = [ctypes.c_uint64, ctypes.c_uint64, ctypes.c_int32, ctypes.c_uint64, ctypes.c_uint64]
    ready = backend.prepare(function, program.kernels[0], (3, 2, 1), [(memory, 32), None, (memory, 0), -7])
    wanted = (1000 + ord("r"), (3, 2, 1), (128, 1, 1), 50 * 1024, 77, [memory.address + 32, memory.address, -7, 0, 0], None)
    ready()
    assert library.log[-1] == wanted  # the pointer that is left out is no parameter; two null pointers for scratch end the list
    graph = backend.graph([ready, ready])
    assert graph is not None
    assert library.captured == [wanted, wanted]
    before = library.log.count(wanted)
    graph()
    assert library.log.count(wanted) == before + 2
    backend.close()
    assert not library.memory
    assert library.log.count("cuModuleUnload") == 1


def test_little_shared_memory_needs_no_leave(fake_cuda: Any) -> None:
    library = fake_cuda()
    CudaBackend(Driver(library)).load(_program(1024), memoryview(b"?cubin"))
    assert not [entry for entry in library.log if entry[0] == "attribute"]


def test_errors_say_what_to_do(fake_cuda: Any) -> None:
    backend = CudaBackend(Driver(fake_cuda()))
    with pytest.raises(CapacityError, match="no 100000 bytes for a KV cache"):
        backend.allocate(100_000, "a KV cache")
    with pytest.raises(UnsupportedError, match=r"rope does not load: .*invalid image \(200\)"):
        backend.load(_program(0), memoryview(b"?bad"))
    with pytest.raises(UnsupportedError, match=r"12\.0 is not one of those"):
        CudaBackend(Driver(fake_cuda((12, 0))))
    assert Driver(fake_cuda((8, 6))).arch == "sm_80"
    assert Driver(fake_cuda((10, 3))).arch == ""


def test_torch_takes_over_from_a_driver_that_cannot(fake_cuda: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fault is told; an `isa` leaves no other way."""
    region = SimpleNamespace(implementation="", faults=())

    def loaded(plan: Any, index: int, caches: Any, backend: str) -> Any:
        if backend != "torch":
            raise UnsupportedError("no such kernels")
        return region

    monkeypatch.setattr(gpu, "find_driver", lambda: (Driver(fake_cuda()), ""))
    monkeypatch.setattr(gpu, "_gpu_of_torch", lambda: "Fake GPU")
    monkeypatch.setattr(gpu, "CudaBackend", lambda driver: "driver")
    monkeypatch.setattr(gpu, "_torch_backend", lambda interpret: "torch")
    monkeypatch.setattr(gpu, "_loaded", loaded)
    caches = CacheSpec(1, 32, 1, 1)
    assert gpu.GpuDevice(DeviceOptions()).load(None, 0, caches) is region  # type: ignore[arg-type]
    assert region.implementation == "torch on the GPU"
    assert region.faults == (Fault("the CUDA driver", "no such kernels"),)
    with pytest.raises(UnsupportedError, match="no such kernels"):
        gpu.GpuDevice(DeviceOptions(isa="sm_90")).load(None, 0, caches)  # type: ignore[arg-type]
    with pytest.raises(UnsupportedError, match="'sm_80', but the GPU here runs 'sm_90'"):
        gpu.GpuDevice(DeviceOptions(isa="sm_80")).load(None, 0, caches)  # type: ignore[arg-type]
