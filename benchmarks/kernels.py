"""Speed of the CPU's matrix products at SmolLM2-135M's shapes, one at a time: `python benchmarks/kernels.py [--level vnni] [--json]`.
Attention has attention.py.

Each weight shape cycles through enough copies to exceed the caches that a decode step would find cold (64 MB), as the layers of a model do.
Medians over all calls of several rounds. GB/s count the packed weights' bytes once; GOP/s count two operations a multiply-add.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import mixplan
from mixplan.runtime.devices.cpu_amx import amx_refusal

HEADERS = Path(mixplan.__file__).parent / "targets" / "cpu" / "templates" / "kernels"
LEVELS = {
    "portable": "x86_64",
    "avx2": "x86_64_v3",
    "vnni": "x86_64_v4+avx512vnni",
    "bf16": "x86_64_v4+avx512vnni+avx512bf16",
    "amx": "x86_64_v4+avx512vnni+avx512bf16+amx_tile+amx_int8+amx_bf16",
}
SHAPES = {"qkv": (960, 576), "o": (576, 576), "gate_up": (3072, 576), "down": (576, 1536), "head": (49152, 576)}
# name -> Fmt, group, activations ("q" for int8), bits per weight with scales
SCHEMES = {
    "FP32": ("F32", 0, "F32", 32.0),
    "BF16": ("BF16", 0, "BF16", 16.0),
    "W8A16": ("I8", 0, "F32", 8.0),
    "W8A8": ("I8", 0, "q", 8.0),
    "W4A16": ("I4", 32, "F32", 4.5),
    "W4A8": ("I4", 32, "q", 4.5),
    "W4A8-128": ("I4", 128, "q", 4.125),
}

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
static double product(Kernel kernel, int64_t m, int64_t n, int64_t k, int64_t weight_bytes, int64_t scale_bytes, int64_t copies, int nt,
                      int rounds, int gated) {
  char* w = memory((weight_bytes + scale_bytes) * copies, 0x31);
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
    a.w = w + i * (weight_bytes + scale_bytes); a.scales = w + i * (weight_bytes + scale_bytes) + weight_bytes;
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
        fmt, group, act, _ = SCHEMES[scheme]
        args = "LinearQArgs" if act == "q" else "LinearArgs"
        for shape, (_, columns) in SHAPES.items():
            gated = shape == "gate_up"
            name = ("gated_" if gated else "") + ("linear_q" if act == "q" else "linear")
            consts = f"Fmt::{fmt},false,{columns},{group}" + ("" if act == "q" else f",Act::{act}") + (",Fn::Silu" if gated else "")
            label = f"{scheme}_{shape}".replace("-", "_")
            parts.append(f"static void k_{label}(const void* a, int t, int n) {{ {name}<{consts}>(*(const {args}*)a, t, n); }}")
            parts.append(
                f'extern "C" double {label}(int64_t m, int64_t n, int64_t k, int64_t wb, int64_t sb, int64_t copies, int nt, int rounds) '
                f"{{ return product<{args}>(k_{label}, m, n, k, wb, sb, copies, nt, rounds, {int(gated)}); }}"
            )
    return "\n".join(parts)


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
        _, group, _, bits = SCHEMES[scheme]
        for shape in shapes:
            n, k = SHAPES[shape]
            function = getattr(library, f"{scheme}_{shape}".replace("-", "_"))
            function.restype = ctypes.c_double
            scale_bytes = n * (k // group * 2 if group else 4)
            weight_bytes = n * k * {32.0: 4, 16.0: 2, 8.0: 1}.get(bits, 0) or n * k // 2
            for m in rows:
                copies = max(2, (64 << 20) // weight_bytes) if m <= 32 and not cached else 2
                for nt in threads:
                    args = [ctypes.c_int64(v) for v in (m, n, k, weight_bytes, scale_bytes, copies)]
                    seconds = function(*args, nt, rounds)
                    moved = weight_bytes + scale_bytes
                    lines.append(Line(shape, scheme, m, nt, seconds * 1e6, moved / seconds / 1e9, 2 * m * n * k / seconds / 1e9))
    return lines


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--level", choices=list(LEVELS), default="bf16", help="ISA level to compile for")
    parser.add_argument("--schemes", nargs="*", choices=list(SCHEMES), default=list(SCHEMES))
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
    print(f"{'kernel':16}{'scheme':>10}{'rows':>6}{'threads':>8}{'us':>11}{'GB/s':>8}{'GOP/s':>9}")
    for line in lines:
        print(
            f"{line.kernel:16}{line.scheme:>10}{line.rows:>6}{line.threads:>8}{line.microseconds:>11.1f}{line.gb_per_s:>8.1f}{line.gop_per_s:>9.1f}"
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
