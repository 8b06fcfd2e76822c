"""Compiles the kernel templates that a test module names and calls them through ctypes, at each ISA level that this machine has.

A module lists its instantiations in `KERNELS`, for example `"linear<Weight<Fmt::F32>, 5, Act::F32>"`; they are compiled together, once for
each level.
The argument structs are read from args.h, so the tests can't drift from it. The library is kept by hash of its sources.
"""

from __future__ import annotations

import ctypes
import hashlib
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mixplan
from mixplan.runtime.devices.cpu_info import level_refusal
from mixplan.runtime.ops import OPS, StepContext
from mixplan.targets.conformance.weights import random_weight

HEADERS = Path(mixplan.__file__).parent / "targets" / "cpu" / "templates" / "kernels"
LEVELS = {
    "portable": ("x86_64", ()),
    "avx2": ("x86_64_v3", ("avx2", "fma", "f16c")),
    "vnni": ("x86_64_v4+avx512vnni", ("avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512_vnni")),
    "bf16": ("x86_64_v4+avx512vnni+avx512bf16", ("avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512_vnni", "avx512_bf16")),
    "amx": ("x86_64_v4+avx512vnni+avx512bf16+amx_tile+amx_int8+amx_bf16", ("avx512_bf16", "amx_tile", "amx_int8", "amx_bf16")),
}
CTYPES: dict[str, Any] = {"int64_t": ctypes.c_int64, "int32_t": ctypes.c_int32, "float": ctypes.c_float}
GUARD = 64  # bytes checked after each buffer of scratch

PRELUDE = """
#include <pthread.h>
#include "all.h"
using namespace mp;
struct Job { void (*run)(const void*, int, int); const void* args; int tid, nt; };
static void* thread_main(void* p) { Job* j = (Job*)p; j->run(j->args, j->tid, j->nt); return nullptr; }
extern "C" void run_threads(void (*run)(const void*, int, int), const void* args, int nt) {
  Job jobs[64]; pthread_t ids[64];
  for (int i = 0; i < nt; i++) jobs[i] = Job{run, args, i, nt};
  for (int i = 1; i < nt; i++) pthread_create(&ids[i], nullptr, thread_main, &jobs[i]);
  thread_main(&jobs[0]);
  for (int i = 1; i < nt; i++) pthread_join(ids[i], nullptr);
}
"""


def _structs() -> dict[str, type[ctypes.Structure]]:
    text = re.sub(r"//[^\n]*", "", (HEADERS / "args.h").read_text())
    out: dict[str, type[ctypes.Structure]] = {}
    for name, body in re.findall(r"struct (\w+Args) \{(.*?)\};", text, re.S):
        fields: list[tuple[str, Any]] = []
        for declaration in filter(None, (d.strip() for d in body.split(";"))):
            kind, names = re.fullmatch(r"((?:const )?\w+\*?) (.*)", declaration, re.S).groups()  # type: ignore[union-attr]
            ctype = ctypes.c_void_p if kind.endswith("*") else CTYPES[kind]
            fields += [(n.strip(), ctype) for n in names.split(",")]
        out[name] = type(name, (ctypes.Structure,), {"_fields_": fields})
    return out


STRUCTS = _structs()


def _struct_of(kernel: str) -> str:
    base = kernel.split("<")[0]
    table = {"linear": "LinearArgs", "gated_linear": "LinearArgs", "linear_q": "LinearQArgs", "gated_linear_q": "LinearQArgs"}
    table |= {"grouped_linear": "GroupedLinearArgs", "embedding": "EmbeddingArgs", "rms_norm": "NormArgs", "layer_norm": "NormArgs"}
    table |= {"rope": "RopeArgs", "attention": "AttentionArgs", "attention_append": "AttentionArgs"}
    return table.get(base, "QuantizeArgs")


class Native:
    """A compiled list of kernels at one ISA level."""

    def __init__(self, library: ctypes.CDLL, kernels: list[str], level: str) -> None:
        self.library, self.kernels, self.level = library, kernels, level

    def call(self, kernel: str, *, threads: int = 1, **fields: Any) -> None:
        """Run a kernel; arrays are passed by address, None as null. Names and values are those of its argument struct."""
        struct = STRUCTS[_struct_of(kernel)]()
        for name, value in fields.items():
            if isinstance(value, np.ndarray):
                value = value.ctypes.data
            assert hasattr(struct, name), name
            setattr(struct, name, value)
        run = getattr(self.library, f"kernel_{self.kernels.index(kernel)}")
        self.library.run_threads(run, ctypes.byref(struct), threads)

    def number(self, kernel: str, *values: int) -> int:
        """A size that the headers compute, of an entry in the module's SIZES."""
        function = getattr(self.library, kernel)
        function.restype = ctypes.c_int64
        return int(function(*(ctypes.c_int64(v) for v in values)))


def tolerances(native: Native, rows: int, rounded: bool) -> tuple[float, float]:
    """Relative and absolute (times the largest result) tolerance of a product. With AMX many rows are multiplied in bf16: each factor is
    off by up to 2^-9 where the reference has not `rounded` both alike."""
    return (1e-5, 2e-6) if native.level != "amx" or rows < 5 or rounded else (2**-7, 2**-7)


def scratch(size: int) -> np.ndarray:
    """Scratch memory of at least `size` bytes, 64-byte aligned, full of NaN patterns, with a guard that `check_scratch` looks at."""
    raw = np.full(size + GUARD + 64, 0xFF, np.uint8)
    start = -raw.ctypes.data % 64
    block = raw[start : start + size + GUARD]
    block[size:] = 0x5A
    return block


def check_scratch(block: np.ndarray) -> None:
    """Nothing was written beyond the size."""
    assert (block[-GUARD:] == 0x5A).all(), "scratch overrun"


def _cpu_flags() -> set[str]:
    info = Path("/proc/cpuinfo")
    match = re.search(r"^flags\s*:(.*)$", info.read_text(), re.M) if info.exists() else None
    return set(match.group(1).split()) if match else set()


def build(kernels: list[str], level: str, folder: Path, extra: str = "") -> ctypes.CDLL:
    """Compile wrappers for `kernels`, with `extra` C++ text, for an ISA level."""
    body = [PRELUDE, extra]
    for i, kernel in enumerate(kernels):
        struct = _struct_of(kernel)
        body.append(f'extern "C" void kernel_{i}(const void* a, int tid, int nt) {{ {kernel}(*(const {struct}*)a, tid, nt); }}')
    text = "\n".join(body)
    headers = b"".join(p.read_bytes() for p in sorted(HEADERS.glob("*.h")))
    digest = hashlib.sha256(text.encode() + headers + LEVELS[level][0].encode()).hexdigest()[:20]
    library = folder / f"kernels-{level}-{digest}.so"
    if not library.exists():
        source = folder / f"kernels-{level}-{digest}.cpp"
        source.write_text(text)
        command = [sys.executable, "-m", "ziglang", "c++", "-std=c++17", "-O3", "-g0", "-fno-exceptions", "-fno-rtti", "-shared", "-fPIC"]
        command += ["-nostdlib++", "-Wall", "-Wextra", "-Werror", "-Wno-unused-function", f"-mcpu={LEVELS[level][0]}", f"-I{HEADERS}"]
        done = subprocess.run([*command, str(source), "-o", str(library)], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[:4000]
    return ctypes.CDLL(str(library))


@pytest.fixture(scope="module", params=list(LEVELS))
def native(request: pytest.FixtureRequest) -> Native:
    level = request.param
    missing = set(LEVELS[level][1]) - _cpu_flags()
    if missing and level != "amx":
        pytest.skip(f"this CPU lacks {', '.join(sorted(missing))}")
    folder = Path(request.config.cache.mkdir("kernels"))  # type: ignore[union-attr]
    kernels = list(dict.fromkeys(request.module.KERNELS))
    library = build(kernels, level, folder, getattr(request.module, "EXTRA", ""))
    # Few machines have AMX, so what can be checked elsewhere is that its code compiles.
    if missing:
        pytest.skip(f"compiled, not run: this CPU lacks {', '.join(sorted(missing))}")
    if level == "amx" and (refusal := level_refusal("x86-64-v4-amx")):
        pytest.skip(f"compiled, not run: {refusal}")
    return Native(library, kernels, level)


@pytest.fixture(scope="session")
def tolerance() -> Any:
    return tolerances


@pytest.fixture(scope="session")
def make_scratch() -> Any:
    return scratch


@pytest.fixture(scope="session")
def scratch_intact() -> Any:
    return check_scratch


@pytest.fixture(scope="session")
def make_weight() -> Any:
    return random_weight


@pytest.fixture(scope="session")
def reference() -> Callable[..., Sequence[np.ndarray]]:
    """reference(op, attrs, inputs, context=None): the op's numpy reference."""

    def run(op: str, attrs: dict[str, Any], inputs: Sequence[Any], context: StepContext | None = None) -> Sequence[np.ndarray]:
        if context is None:
            context = StepContext(np.zeros(1, np.int32), np.zeros(1, np.int32))
        return OPS[op].reference(context, OPS[op].signature.defaults | attrs, inputs)

    return run
