"""The probes as a library: our own source, compiled once by the compiler that plans are compiled with, and kept in the kernel cache."""

from __future__ import annotations

import ctypes
import platform
import statistics
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from mixplan.runtime.devices.cpu_info import cpu_flags
from mixplan.runtime.errors import InternalError, OptionError
from mixplan.targets.cpu.cache import cached_kernel, kernel_key
from mixplan.targets.cpu.ceilings.record import PeakRate, ReadRate
from mixplan.targets.cpu.toolchain import find_compiler

__all__ = ["Buffer", "Probe"]

_SOURCES = Path(__file__).parent.parent / "templates" / "ceilings"
# Streams and prefetching: the first is what a plain loop does, the others are what hardware that needs help is fastest with.
_MANNERS = {"plain": 0, "prefetch": 8, "2 streams": 1, "4 streams, prefetch": 3 + 8}
# Bytes read in one round, so that a barrier and the clock weigh nothing.
_ROUND_BYTES = 64 << 20
_ROUND_SECONDS = 0.004
# (kind, unit) -> the flags of /proc/cpuinfo that it needs.
_UNITS: dict[tuple[str, str], tuple[str, ...]] = {
    ("fp32", "sse"): ("sse2",),
    ("fp32", "avx2"): ("avx2", "fma"),
    ("fp32", "avx512"): ("avx512f",),
    ("fp32", "simd"): ("asimd",),
    ("int8", "avx2"): ("avx2",),
    ("int8", "vnni"): ("avx512f", "avx512_vnni"),
    ("int8", "amx"): ("amx_tile", "amx_int8"),
    ("bf16", "avx512"): ("avx512f", "avx512_bf16"),
    ("bf16", "amx"): ("amx_tile", "amx_bf16"),
}


def _source() -> str:
    texts = [(_SOURCES / name).read_text(encoding="utf-8") for name in ("frame.h", "read.h", "peaks.h")]
    lines = [line for text in texts for line in text.splitlines() if line.strip() not in ("#pragma once", '#include "frame.h"')]
    return "\n".join(lines) + "\n"


@cache
def _library() -> ctypes.CDLL:
    """Compiled for the least level of this architecture: each probe names its own instruction set."""
    compiler, source = find_compiler(), _source()
    level = "arm64" if platform.machine() == "aarch64" else "portable"
    key = kernel_key(source, compiler.flags(level), compiler.identity)
    library = ctypes.CDLL(str(cached_kernel(key, lambda: compiler.compile(source, level))))
    pointer, i32, i64 = ctypes.c_void_p, ctypes.c_int, ctypes.c_int64
    library.ceilings_map.restype = pointer
    library.ceilings_map.argtypes = (i64, i32)
    library.ceilings_unmap.argtypes = (pointer, i64)
    library.ceilings_read.argtypes = (pointer, i64, i32, i32, i32, i32, i32, pointer)
    library.ceilings_peak.argtypes = (ctypes.c_char_p, i64, i32, i32, pointer, pointer)
    return library


@cache
def _amx_allowed() -> bool:
    return int(_library().ceilings_allow_amx()) == 0


def _vector_width() -> int:
    flags = cpu_flags()
    return 64 if "avx512f" in flags else 32 if "avx2" in flags else 16


class Buffer:
    """Memory to read, from `Probe.buffer`; only valid inside its `with`."""

    def __init__(self, address: int, size: int, huge: bool) -> None:
        self.address, self.size, self.huge = address, size, huge


class Probe:
    """Measures one figure at a time, so that a benchmark can put them between its own launches. Compiled on first use, then cached."""

    def __init__(self) -> None:
        self._library = _library()

    def units(self) -> tuple[tuple[str, str], ...]:
        """The (kind, unit) pairs that this CPU has and the system lets us use."""
        have = set(cpu_flags())
        return tuple(k for k, needs in _UNITS.items() if have.issuperset(needs) and (k[1] != "amx" or _amx_allowed()))

    def huge_pages(self) -> bool:
        """Whether the system gives transparent huge pages to who asks for them."""
        try:
            return "[never]" not in Path("/sys/kernel/mm/transparent_hugepage/enabled").read_text(encoding="utf-8")
        except OSError:
            return False

    @contextmanager
    def buffer(self, size: int, *, huge: bool) -> Iterator[Buffer]:
        """`size` bytes of touched memory, rounded up to 2 MB."""
        size = -(-size // (2 << 20)) * (2 << 20)
        address = self._library.ceilings_map(size, int(huge))
        if not address:
            raise OptionError(f"{size} bytes to measure the memory's bandwidth with cannot be had.", hint="Measure smaller working sets.")
        try:
            yield Buffer(address, size, huge)
        finally:
            self._library.ceilings_unmap(address, size)

    def read(self, buffer: Buffer, threads: int, *, size: int | None = None, rounds: int = 7) -> ReadRate:
        """The read rate over the first `size` bytes of the buffer, in the manner that is fastest here."""
        size = buffer.size if size is None else size
        if not 0 < size <= buffer.size:
            raise OptionError(f"size is {size}, and the buffer holds {buffer.size} bytes.")
        passes = max(1, _ROUND_BYTES // size)
        rounds = min(rounds, max(3, rounds * 2 * _ROUND_BYTES // size))  # fewer where a round is long
        seconds: dict[str, list[float]] = {}
        times = (ctypes.c_double * (rounds + 1))()
        for name, code in _MANNERS.items():
            self._check(
                self._library.ceilings_read(
                    buffer.address, size, threads, code, _vector_width(), passes, rounds + 1, ctypes.addressof(times)
                )
            )
            seconds[name] = list(times)[1:]  # the first round warms the caches
        manner = min(seconds, key=lambda name: statistics.median(seconds[name]))
        moved = size * passes / 1e9
        return ReadRate(size, threads, buffer.huge, moved / statistics.median(seconds[manner]), moved / min(seconds[manner]), manner)

    def peak(self, kind: str, unit: str, threads: int, *, rounds: int = 7) -> PeakRate:
        """Operations per second of one unit, from registers."""
        if (kind, unit) not in self.units():
            raise OptionError(f"this CPU has no unit {kind}_{unit}.", hint=f"Units: {', '.join('_'.join(u) for u in self.units())}.")
        operations = ctypes.c_double()
        times = (ctypes.c_double * max(rounds + 1, 3))()

        def run(loops: int, count: int) -> list[float]:
            name = f"{kind}_{unit}".encode()
            self._check(self._library.ceilings_peak(name, loops, threads, count, ctypes.addressof(times), ctypes.addressof(operations)))
            return list(times)[:count]

        loops = 1000
        loops = max(1, int(loops * _ROUND_SECONDS / min(run(loops, 3))))
        seconds = run(loops, rounds + 1)[1:]
        done = operations.value * threads / 1e9
        return PeakRate(kind, unit, threads, done / statistics.median(seconds), done / min(seconds))

    def _check(self, code: int) -> None:
        if code == 1:
            raise OptionError("the threads to measure with cannot be made.", hint="Measure with fewer threads.")
        if code:
            raise InternalError(f"a ceiling probe returned {code}.")
