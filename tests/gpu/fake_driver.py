"""The driver of fake_driver.c, compiled against the vendors' headers (which triton's wheel has), and the binaries that it takes."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import re
import struct
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from mixplan.runtime.devices.gpu_api import CUDA, Api
from mixplan.runtime.devices.gpu_driver import Driver
from mixplan.targets.cpu.cache import cache_root
from mixplan.targets.gpu.builds import Build, BuildRequest

LAYOUT = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p, ctypes.POINTER(ctypes.c_uint))
RUN = ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_char_p, ctypes.POINTER(ctypes.c_uint), ctypes.POINTER(ctypes.c_uint64))
INVALID_IMAGE, MISSING = 200, 500


def headers(api: Api) -> tuple[Path, str]:
    """(folder of the vendor's headers, the one with the prototypes)."""
    spec = importlib.util.find_spec("triton")
    assert spec is not None and spec.origin is not None
    folder = Path(spec.origin).parent / "backends" / ("nvidia" if api is CUDA else "amd") / "include"
    return folder, "cuda.h" if api is CUDA else "hip/hip_runtime_api.h"


def build(api: Api, folder: Path) -> Path:
    """The library."""
    path = folder / f"fake_{'cuda' if api is CUDA else 'hip'}.so"
    flags = [] if api is CUDA else ["-DHIP", "-D__HIP_PLATFORM_AMD__"]
    source = Path(__file__).with_name("fake_driver.c")
    command = [sys.executable, "-m", "ziglang", "cc", "-shared", "-fPIC", "-O1", "-g0", "-std=c11", "-w", *flags]
    environment = {**os.environ, "ZIG_LOCAL_CACHE_DIR": str(folder / "zig"), "ZIG_GLOBAL_CACHE_DIR": str(cache_root() / "zig")}
    subprocess.run([*command, f"-I{headers(api)[0]}", str(source), "-o", str(path)], check=True, env=environment)
    return path


def text_image(entry: str, sizes: Sequence[int]) -> bytes:
    """A binary that only says what its one kernel takes: bytes of each parameter."""
    return f"FAKE {entry}:{','.join(map(str, sizes))}".encode() + b"\0"


def _sections(at: int) -> list[tuple[str, bytes]]:
    """Name and contents of the sections of the ELF file at an address that matter here."""
    head = ctypes.string_at(at, 64)
    start, size, count, names = (*struct.unpack_from("<Q", head, 0x28), *struct.unpack_from("<HHH", head, 0x3A))
    rows = [struct.unpack_from("<IIQQQQ", ctypes.string_at(at + start + i * size, size)) for i in range(count)]
    text = ctypes.string_at(at + rows[names][4], rows[names][5])
    wanted = [(text[row[0] :].split(b"\0")[0].decode(), row) for row in rows]
    return [(name, ctypes.string_at(at + row[4], row[5])) for name, row in wanted if name.startswith((".nv.info.", ".note"))]


def _nvidia(data: bytes) -> list[int]:
    """From a kernel's attributes: each has a form, a number, and a size or a value; number 0x17 tells of a parameter."""
    found, at = {}, 0
    while at < len(data):
        form, number, size = struct.unpack_from("<BBH", data, at)
        at += 4
        if form == 4:
            if number == 0x17:
                _, ordinal, _, facts = struct.unpack_from("<IHHI", data, at)
                found[ordinal] = facts >> 18
            at += size
    return [found[i] for i in range(len(found))]


def _amd(data: bytes, entry: str) -> list[int] | None:
    """From the note in the form of msgpack."""
    name, size, _ = struct.unpack_from("<III", data)
    start = 12 + (name + 3) // 4 * 4
    for kernel in msgspec.msgpack.decode(data[start : start + size])["amdhsa.kernels"]:
        if kernel[".name"] == entry:
            return [one[".size"] for one in kernel[".args"] if not one[".value_kind"].startswith("hidden_")]
    return None


def parameters(at: int, entry: str | None) -> list[int] | int:
    """Bytes of each parameter of a kernel in the binary at an address, or the status that refuses it. entry None: any kernel."""
    if ctypes.string_at(at, 4) == b"FAKE":
        name, _, sizes = ctypes.string_at(at).decode()[5:].partition(":")
        return [int(size) for size in sizes.split(",")] if entry in (None, name) else MISSING
    if ctypes.string_at(at, 4) != b"\x7fELF":
        return INVALID_IMAGE
    if entry is None:
        return []
    for name, data in _sections(at):
        sizes = _nvidia(data) if name == f".nv.info.{entry}" else _amd(data, entry) if name == ".note" else None
        if sizes is not None:
            return sizes
    return MISSING


class FakeDriver:
    """One run of the driver. launches: (entry, grid, threads, shared, parameters) of each that ran, in order.

    kernels: what an entry does, with its grid and parameters, where it does something. milliseconds: that a launch takes.
    """

    def __init__(self, library: Path, api: Api) -> None:
        self.api = api
        self.library = ctypes.CDLL(str(library))
        for name, result, types in (
            ("reset", None, (LAYOUT, RUN)),
            ("set", None, (ctypes.c_char_p, ctypes.c_int64)),
            ("get", ctypes.c_int64, (ctypes.c_char_p,)),
            ("arch", None, (ctypes.c_char_p,)),
            ("host", ctypes.c_void_p, (ctypes.c_uint64,)),
            ("size", ctypes.c_uint64, (ctypes.c_uint64,)),
            ("report", ctypes.c_char_p, ()),
        ):
            function = getattr(self.library, f"fake_{name}")
            function.restype, function.argtypes = result, types
        self.launches: list[tuple[str, tuple[int, ...], int, int, tuple[int, ...]]] = []
        self.kernels: dict[str, Callable[..., None]] = {}
        self.milliseconds: Callable[[str, tuple[int, ...], int], float] = lambda entry, grid, threads: 0.5
        self._counts: dict[str, int] = {}
        self._callbacks = LAYOUT(self._layout), RUN(self._run)
        self.library.fake_reset(*self._callbacks)

    def driver(self) -> Driver:
        """What the runtime makes of it."""
        return Driver(self.library, self.api)

    def set(self, name: str, value: int) -> None:
        """A setting: devices, major, minor, room (bytes), fail (the allocation that fails), refuse (1: graphs)."""
        self.library.fake_set(name.encode(), value)

    def get(self, name: str) -> int:
        """A count: live, up and down (bytes), direct and captured (launches), executed, graphs, replays, allocations, references."""
        return int(self.library.fake_get(name.encode()))

    def arch(self, name: str) -> None:
        """Of an AMD GPU."""
        self.library.fake_arch(name.encode())

    def report(self) -> str:
        """All that was wrong, and what is not given back."""
        return str(self.library.fake_report().decode())

    def bytes_at(self, address: int) -> Any:
        """The memory from a device's address to the end of its block."""
        return (ctypes.c_ubyte * self.library.fake_size(address)).from_address(self.library.fake_host(address))

    def _layout(self, image: int, entry: bytes | None, sizes: Any) -> int:
        found = parameters(image, None if entry is None else entry.decode())
        if isinstance(found, int):
            return -found
        if entry is not None:
            self._counts[entry.decode()] = len(found)
            for i, size in enumerate(found):
                sizes[i] = size
        return len(found)

    def _run(self, entry: bytes, shape: Any, values: Any) -> float:
        name, grid = entry.decode(), tuple(shape[:3])
        given = tuple(values[: self._counts[name]])
        self.launches.append((name, grid, shape[3], shape[4], given))
        if name in self.kernels:
            self.kernels[name](self, grid, given)
        return self.milliseconds(name, grid, shape[3])


class Builds:
    """In the compiler's place: binaries that only say what their kernel takes. requests: what was wanted, by entry."""

    def __init__(self) -> None:
        self.requests: dict[str, BuildRequest] = {}
        self._made: dict[tuple[str, str], Build] = {}

    def __call__(self, wanted: Sequence[tuple[str, BuildRequest]], jobs: int = 0) -> list[Build]:
        return [self._build(arch, request) for arch, request in wanted]

    def _build(self, arch: str, request: BuildRequest) -> Build:
        key = (arch, repr(request.as_json()))
        if key not in self._made:
            entry = f"{request.kernel.replace(':', '_')}_{len(self.requests)}"
            self.requests[entry] = request
            sizes = [8 if kind.startswith("*") else 4 for kind in request.types if kind] + [8, 8]
            threads = request.warps * (64 if arch == "gfx942" else 32)
            self._made[key] = Build(text_image(entry, sizes), entry, 1024, threads, 32, 0)
        return self._made[key]


def prototype(api: Api, name: str) -> list[str]:
    """The types of a function's parameters, as the vendor's header spells them."""
    folder, file = headers(api)
    text = (folder / file).read_text(errors="replace")
    # cuda.h declares a function by its first name, and defines that to be the one in the library.
    names = [name, *re.findall(rf"#\s*define\s+(\w+)\s+(?:__CUDA_API_PTSZ\()?{name}\b", text)]
    for one in names:
        found = re.search(rf"^(?:CUresult CUDAAPI|hipError_t)\s+{one}\(([^;]*)\);", text, re.M)
        if found:
            given = [part.strip() for part in re.sub(r"__dparm\(\w+\)|=\s*NULL", "", found[1]).split(",")]
            return [re.sub(r"\s*\b\w+$", "", part) if not part.endswith("*") and " " in part else part for part in given]
    raise AssertionError(f"{file} declares no {name}")
