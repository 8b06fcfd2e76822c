"""The two drivers that GPUs are reached by, as tables: what each step is called there and what it takes.

NVIDIA's driver (libcuda) and AMD's HIP (libamdhip64) offer the same steps under other names, so one back end serves both. Prototypes are
those of cuda.h and hip_runtime_api.h; ctypes would pass a Python number without one as 32 bits.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from ctypes import POINTER, c_char_p, c_float, c_int, c_size_t, c_ubyte, c_uint, c_uint64, c_ulonglong, c_void_p
from dataclasses import dataclass, field
from typing import Any, TypeAlias

__all__ = ["CUDA", "DRIVERS", "HIP", "Api"]

_Function: TypeAlias = tuple[str, tuple[Any, ...]]

_HANDLE = POINTER(c_void_p)  # where a new handle goes
_LAUNCH = (c_void_p, *[c_uint] * 7, c_void_p, POINTER(c_void_p), POINTER(c_void_p))


@dataclass(frozen=True)
class Api:
    """title: for people. libraries: file names, the first that loads is taken. functions: by step, the name and the types of the arguments;
    all give a status, 0 where nothing is wrong. absent: what a machine lacks where no library is found. context: whether a thread is bound
    to a context that must be given back, and not to a device. ordinary_shared: bytes of shared memory that a launch may have without
    asking. out_of_memory: the status that says so.
    """

    title: str
    libraries: tuple[str, ...]
    functions: Mapping[str, _Function] = field(hash=False)
    absent: str
    context: bool
    ordinary_shared: int
    out_of_memory: int = 2

    def open(self) -> ctypes.CDLL | None:
        """The library, None where it is not installed."""
        for name in self.libraries:
            try:
                return ctypes.CDLL(name)
            except OSError:
                continue
        return None


CUDA = Api(
    title="the CUDA driver",
    libraries=("libcuda.so.1",),
    functions={
        "init": ("cuInit", (c_uint,)),
        "count": ("cuDeviceGetCount", (POINTER(c_int),)),
        "device": ("cuDeviceGet", (POINTER(c_int), c_int)),
        "name": ("cuDeviceGetName", (c_char_p, c_int, c_int)),
        "attribute": ("cuDeviceGetAttribute", (POINTER(c_int), c_int, c_int)),
        "total_memory": ("cuDeviceTotalMem_v2", (POINTER(c_size_t), c_int)),
        "error": ("cuGetErrorString", (c_int, POINTER(c_char_p))),
        "retain": ("cuDevicePrimaryCtxRetain", (_HANDLE, c_int)),
        "release": ("cuDevicePrimaryCtxRelease_v2", (c_int,)),
        "bind": ("cuCtxSetCurrent", (c_void_p,)),
        "stream": ("cuStreamCreate", (_HANDLE, c_uint)),
        "synchronize": ("cuStreamSynchronize", (c_void_p,)),
        "end_stream": ("cuStreamDestroy_v2", (c_void_p,)),
        "allocate": ("cuMemAlloc_v2", (POINTER(c_uint64), c_size_t)),
        "free": ("cuMemFree_v2", (c_uint64,)),
        "fill": ("cuMemsetD8Async", (c_uint64, c_ubyte, c_size_t, c_void_p)),
        "upload": ("cuMemcpyHtoDAsync_v2", (c_uint64, c_void_p, c_size_t, c_void_p)),
        "download": ("cuMemcpyDtoHAsync_v2", (c_void_p, c_uint64, c_size_t, c_void_p)),
        "load": ("cuModuleLoadData", (_HANDLE, c_char_p)),
        "function": ("cuModuleGetFunction", (_HANDLE, c_void_p, c_char_p)),
        "unload": ("cuModuleUnload", (c_void_p,)),
        "set": ("cuFuncSetAttribute", (c_void_p, c_int, c_int)),
        "launch": ("cuLaunchKernel", _LAUNCH),
        "capture": ("cuStreamBeginCapture_v2", (c_void_p, c_int)),
        "end_capture": ("cuStreamEndCapture", (c_void_p, _HANDLE)),
        "instantiate": ("cuGraphInstantiateWithFlags", (_HANDLE, c_void_p, c_ulonglong)),
        "replay": ("cuGraphLaunch", (c_void_p, c_void_p)),
        "end_graph": ("cuGraphDestroy", (c_void_p,)),
        "end_executable": ("cuGraphExecDestroy", (c_void_p,)),
        "event": ("cuEventCreate", (_HANDLE, c_uint)),
        "record": ("cuEventRecord", (c_void_p, c_void_p)),
        "await": ("cuEventSynchronize", (c_void_p,)),
        "elapsed": ("cuEventElapsedTime", (POINTER(c_float), c_void_p, c_void_p)),
        "end_event": ("cuEventDestroy_v2", (c_void_p,)),
    },
    absent="libcuda.so.1 is not found, so there is no NVIDIA driver",
    context=True,
    ordinary_shared=48 * 1024,
)

HIP = Api(
    title="AMD's HIP",
    libraries=("libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so", "/opt/rocm/lib/libamdhip64.so"),
    functions={
        "init": ("hipInit", (c_uint,)),
        "count": ("hipGetDeviceCount", (POINTER(c_int),)),
        "device": ("hipDeviceGet", (POINTER(c_int), c_int)),
        "name": ("hipDeviceGetName", (c_char_p, c_int, c_int)),
        # The function for the struct of HIP 6 and later: the symbol's name pins the layout.
        "properties": ("hipGetDevicePropertiesR0600", (c_void_p, c_int)),
        "error": ("hipDrvGetErrorString", (c_int, POINTER(c_char_p))),
        "bind": ("hipSetDevice", (c_int,)),
        "stream": ("hipStreamCreateWithFlags", (_HANDLE, c_uint)),
        "synchronize": ("hipStreamSynchronize", (c_void_p,)),
        "end_stream": ("hipStreamDestroy", (c_void_p,)),
        "allocate": ("hipMalloc", (POINTER(c_uint64), c_size_t)),
        "free": ("hipFree", (c_uint64,)),
        "fill": ("hipMemsetD8Async", (c_uint64, c_ubyte, c_size_t, c_void_p)),
        "upload": ("hipMemcpyHtoDAsync", (c_uint64, c_void_p, c_size_t, c_void_p)),
        "download": ("hipMemcpyDtoHAsync", (c_void_p, c_uint64, c_size_t, c_void_p)),
        "load": ("hipModuleLoadData", (_HANDLE, c_char_p)),
        "function": ("hipModuleGetFunction", (_HANDLE, c_void_p, c_char_p)),
        "unload": ("hipModuleUnload", (c_void_p,)),
        "launch": ("hipModuleLaunchKernel", _LAUNCH),
        "capture": ("hipStreamBeginCapture", (c_void_p, c_int)),
        "end_capture": ("hipStreamEndCapture", (c_void_p, _HANDLE)),
        "instantiate": ("hipGraphInstantiateWithFlags", (_HANDLE, c_void_p, c_ulonglong)),
        "replay": ("hipGraphLaunch", (c_void_p, c_void_p)),
        "end_graph": ("hipGraphDestroy", (c_void_p,)),
        "end_executable": ("hipGraphExecDestroy", (c_void_p,)),
        "event": ("hipEventCreateWithFlags", (_HANDLE, c_uint)),
        "record": ("hipEventRecord", (c_void_p, c_void_p)),
        "await": ("hipEventSynchronize", (c_void_p,)),
        "elapsed": ("hipEventElapsedTime", (POINTER(c_float), c_void_p, c_void_p)),
        "end_event": ("hipEventDestroy", (c_void_p,)),
    },
    absent="libamdhip64.so is not found, so there is no ROCm",
    context=False,
    ordinary_shared=64 * 1024,
)

DRIVERS = (CUDA, HIP)
"""In the order in which they are tried."""
