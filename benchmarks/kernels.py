"""Speed of the CPU's matrix products at SmolLM2-135M's shapes, one at a time: `python benchmarks/kernels.py [--level vnni] [--json]`.
Attention has attention.py.

Each weight shape cycles through enough copies to exceed the caches that a decode step would find cold (64 MB), as the layers of a model do.
Medians over all calls of several rounds. GB/s count the packed weights' bytes once; GOP/s count two operations a multiply-add.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from math import prod
from pathlib import Path

import mixplan
from mixplan.passes.precision.schemes import parse_scheme
from mixplan.runtime.devices.cpu_amx import amx_refusal
from mixplan.runtime.packing import packed_layout
from mixplan.targets.cpu.codegen.ops.linear import weight_type

HEADERS = Path(mixplan.__file__).parent / "targets" / "cpu" / "templates" / "kernels"
LEVELS = {
    "portable": "x86_64",
    "avx2": "x86_64_v3",
    "vnni": "x86_64_v4+avx512vnni",
    "bf16": "x86_64_v4+avx512vnni+avx512bf16",
    "amx": "x86_64_v4+avx512vnni+avx512bf16+amx_tile+amx_int8+amx_bf16",
}
SHAPES = {"qkv": (960, 576), "o": (576, 576), "gate_up": (3072, 576), "down": (576, 1536), "head": (49152, 576)}
# The usual schemes; `--schemes` takes any other spelling.
SCHEMES = ("FP32", "BF16", "W8A16", "W8A8", "W4A16:g32", "W4A8:g32", "W4A16:g32,nl,s8", "W4A8:g32,nl,s8")

SOURCE = """
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include "all.h"
using namespace mp;
typedef void (*Kernel)(const void*, int, int);
static double seconds_now() {
  timespec a;
  clock_gettime(CLOCK_MONOTONIC, &a);
  return (double)a.tv_sec + 1e-9 * (double)a.tv_nsec;
}
// `released` is when the last thread reached the barrier: a call lasts from one release to the next, whichever thread is late.
struct Team { int nt; Kernel kernel; const char* args; int64_t stride, count; int arrived, generation; double released; };
static void barrier(Team* t) {
  int g = __atomic_load_n(&t->generation, __ATOMIC_ACQUIRE);
  if (__atomic_add_fetch(&t->arrived, 1, __ATOMIC_ACQ_REL) == t->nt) {
    t->released = seconds_now();
    __atomic_store_n(&t->arrived, 0, __ATOMIC_RELAXED);
    __atomic_add_fetch(&t->generation, 1, __ATOMIC_ACQ_REL);
    return;
  }
  for (int spins = 0; __atomic_load_n(&t->generation, __ATOMIC_ACQUIRE) == g; spins++) if (spins > 100000) sched_yield();
}
struct Member { Team* team; int tid; };
static void* work(void* p) {
  Member* m = (Member*)p; Team* t = m->team;
  barrier(t);
  for (int64_t i = 0; i < t->count; i++) { t->kernel(t->args + i * t->stride, m->tid, t->nt); barrier(t); }
  return nullptr;
}
static int by_value(const void* a, const void* b) { return *(const double*)a < *(const double*)b ? -1 : 1; }
static double quantile = 0.5;
extern "C" void set_quantile(double q) { quantile = q; }
struct Times { double* at; int64_t count; };
// Calls the kernel with each of `count` argument structs, `stride` bytes apart, a barrier after each; appends each call's time.
static void measure(Kernel kernel, const void* args, int64_t stride, int64_t count, int nt, Times* times) {
  Team team = {nt, kernel, (const char*)args, stride, count, 0, 0, 0.0};
  Member members[64]; pthread_t ids[64];
  for (int i = 1; i < nt; i++) { members[i] = Member{&team, i}; pthread_create(&ids[i], nullptr, work, &members[i]); }
  barrier(&team);
  for (int64_t i = 0; i < count; i++) {
    double start = team.released;
    kernel((const char*)args + i * stride, 0, nt);
    barrier(&team);
    times->at[times->count++] = team.released - start;
  }
  for (int i = 1; i < nt; i++) pthread_join(ids[i], nullptr);
}
static double result(Times* times) {
  qsort(times->at, (size_t)times->count, 8, by_value);
  double r = times->at[(int64_t)(quantile * (double)(times->count - 1))];
  free(times->at);
  return r;
}
static char* memory(int64_t bytes, int fill) {
  char* p = (char*)aligned_alloc(1 << 21, (size_t)round_up(bytes, 1 << 21));
  madvise(p, (size_t)round_up(bytes, 1 << 21), MADV_HUGEPAGE);
  memset(p, fill, (size_t)round_up(bytes, 1 << 21));
  return p;
}
// One product, `copies` times over different weights. Weights are a constant pattern: the time does not depend on the values.
template <class Args>
static double product(Kernel kernel, int64_t m, int64_t n, int64_t k, int64_t weight_bytes, int64_t scale_bytes,
                      int64_t zero_bytes, int64_t copies, int nt, int rounds, int gated) {
  const int64_t bytes = weight_bytes + scale_bytes + zero_bytes;
  char* w = memory(bytes * copies, 0x31);
  const int64_t kp = round_up(k, 128);
  float* x = (float*)memory(m * kp * 4, 0);
  for (int64_t i = 0; i < m * kp; i++) x[i] = 0.001f * (float)(i % 17);
  float* extra = (float*)memory(m * kp * 4, 0);
  for (int64_t i = 0; i < m * kp / 16; i++) extra[i] = 1.0f;
  float* y = (float*)memory(m * n * 4, 0);
  void* scratch = memory(linear_scratch(nt, k), 0);
  Args* args = (Args*)calloc((size_t)copies, sizeof(Args));
  for (int64_t i = 0; i < copies; i++) {
    Args& a = args[i];
    if constexpr (sizeof(Args) == sizeof(LinearQArgs)) { a.q = (int8_t*)x; a.ldq = kp; a.q_scales = extra; a.q_sums = extra; a.ldg = 16; }
    else { a.x = x; a.ldx = k; }
    a.w = w + i * bytes; a.scales = w + i * bytes + weight_bytes;
    a.zeros = zero_bytes ? w + i * bytes + weight_bytes + scale_bytes : nullptr;
    a.y = y; a.ldy = n; a.m = m; a.n = gated ? n / 2 : n; a.scratch = scratch;
  }
  Times times = {(double*)calloc((size_t)(copies * (rounds + 1)), 8), 0};
  measure(kernel, args, sizeof(Args), copies, nt, &times);
  times.count = 0;
  for (int r = 0; r < rounds; r++) measure(kernel, args, sizeof(Args), copies, nt, &times);
  free(w); free(x); free(extra); free(y); free(scratch); free(args);
  return result(&times);
}
"""


@dataclass(frozen=True)
class Line:
    """One measurement: seconds a call, and what they mean."""

    kernel: str
    scheme: str
    rows: int
    threads: int
    microseconds: float
    gb_per_s: float
    gop_per_s: float


def _source(schemes: list[str]) -> str:
    parts = [SOURCE]
    for scheme in schemes:
        parsed = parse_scheme(scheme)
        quantized = parsed.activation == "i8"
        args = "LinearQArgs" if quantized else "LinearArgs"
        for shape, (_, columns) in SHAPES.items():
            gated = shape == "gate_up"
            name = ("gated_" if gated else "") + ("linear_q" if quantized else "linear")
            consts = f"{weight_type(parsed.weight)}, {columns}" + ("" if quantized else f", Act::{parsed.activation.upper()}")
            consts += ", Fn::Silu" if gated else ""
            label = _label(scheme, shape)
            parts.append(f"static void k_{label}(const void* a, int t, int n) {{ {name}<{consts}>(*(const {args}*)a, t, n); }}")
            parts.append(
                f'extern "C" double {label}(int64_t m, int64_t n, int64_t k, int64_t wb, int64_t sb, int64_t zb, int64_t copies, int nt, '
                "int rounds) "
                f"{{ return product<{args}>(k_{label}, m, n, k, wb, sb, zb, copies, nt, rounds, {int(gated)}); }}"
            )
    return "\n".join(parts)


def _label(scheme: str, shape: str) -> str:
    """A C name."""
    return re.sub(r"\W", "_", f"{scheme}_{shape}")


def _build(level: str, schemes: list[str], folder: Path) -> ctypes.CDLL:
    source, library = folder / "bench.cpp", folder / "bench.so"
    source.write_text(_source(schemes))
    command = [
        sys.executable,
        "-m",
        "ziglang",
        "c++",
        "-std=c++17",
        "-O3",
        "-g0",
        "-fno-exceptions",
        "-fno-rtti",
        "-shared",
        "-fPIC",
        "-nostdlib++",
    ]
    subprocess.run([*command, f"-mcpu={LEVELS[level]}", f"-I{HEADERS}", str(source), "-o", str(library)], check=True)
    return ctypes.CDLL(str(library))


def _products(
    library: ctypes.CDLL, schemes: list[str], shapes: list[str], rows: list[int], threads: list[int], rounds: int, cached: bool
) -> list[Line]:
    lines = []
    for scheme in schemes:
        fmt = parse_scheme(scheme).weight
        for shape in shapes:
            n, k = SHAPES[shape]
            function = getattr(library, _label(scheme, shape))
            function.restype = ctypes.c_double
            layout = packed_layout(fmt, n, k)
            weight_bytes, scale_bytes, zero_bytes = (
                prod(layout[role][1]) * layout[role][0].itemsize if role in layout else 0 for role in ("weight", "scales", "zeros")
            )
            for m in rows:
                copies = max(2, (64 << 20) // weight_bytes) if m <= 32 and not cached else 2
                for nt in threads:
                    args = [ctypes.c_int64(v) for v in (m, n, k, weight_bytes, scale_bytes, zero_bytes, copies)]
                    seconds = function(*args, nt, rounds)
                    moved = weight_bytes + scale_bytes + zero_bytes
                    lines.append(Line(shape, scheme, m, nt, seconds * 1e6, moved / seconds / 1e9, 2 * m * n * k / seconds / 1e9))
    return lines


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--level", choices=list(LEVELS), default="bf16", help="ISA level to compile for")
    parser.add_argument("--schemes", nargs="*", default=list(SCHEMES), help="schemes, spelled as for a compile")
    parser.add_argument("--rows", nargs="*", type=int, default=[1, 4, 16, 512])
    parser.add_argument("--threads", nargs="*", type=int, default=[1, 2])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quantile", type=float, default=0.5, help="of the calls' times; less than 0.5 only on a busy machine")
    parser.add_argument("--shapes", nargs="*", choices=list(SHAPES), default=list(SHAPES))
    parser.add_argument(
        "--cached", action="store_true", help="two copies of each weight only: what the kernel does where memory does not limit it"
    )
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        library = _build(options.level, options.schemes, Path(folder))
    if options.level == "amx" and (refusal := amx_refusal()):
        parser.error(refusal)
    library.set_quantile(ctypes.c_double(options.quantile))
    lines = _products(library, options.schemes, options.shapes, options.rows, options.threads, options.rounds, options.cached)
    if options.json:
        print(json.dumps([vars(line) for line in lines]))
        return
    print(f"{'kernel':16}{'scheme':>18}{'rows':>6}{'threads':>8}{'us':>11}{'GB/s':>8}{'GOP/s':>9}")
    for line in lines:
        print(
            f"{line.kernel:16}{line.scheme:>18}{line.rows:>6}{line.threads:>8}{line.microseconds:>11.1f}{line.gb_per_s:>8.1f}{line.gop_per_s:>9.1f}"
        )
    for scheme in options.schemes if set(options.shapes) == set(SHAPES) else []:
        for m in options.rows:
            for nt in options.threads:
                part = {x.kernel: x.microseconds for x in lines if (x.scheme, x.rows, x.threads) == (scheme, m, nt) and x.kernel in SHAPES}
                step = 30 * sum(v for k, v in part.items() if k != "head") + (part["head"] if m <= 32 else 0)
                print(
                    f"{scheme}: a step of {m} rows on {nt} threads spends {step / 1e3:.2f} ms in products ({m / step * 1e6:.0f} tokens/s)"
                )


if __name__ == "__main__":
    main()
