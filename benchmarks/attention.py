"""Speed of the CPU attention kernels, alone: `python benchmarks/attention.py [--level bf16] [--case 1x1@4096 ...] [--json]`.

A case is BATCHxCHUNK@CONTEXT: so many sequences, each with so many new tokens, the last at position CONTEXT - 1. One step runs the append
and the attention of every layer, each layer with its own cache of scattered pages, as in a model. Medians over rounds.

GB/s count the keys and values of the context, as stored, once for each sequence and KV head; GFLOP/s count two operations for each
multiply-add of a query with a key or value that it sees (the causal half of a prompt).
"""

from __future__ import annotations

import argparse
import ctypes
import json
import re
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import mixplan
from mixplan.runtime.devices.cpu_amx import amx_refusal
from mixplan.runtime.kv_format import KvFormat

TEMPLATES = Path(mixplan.__file__).parent / "targets" / "cpu" / "templates"
LEVELS = {
    "portable": "x86_64",
    "avx2": "x86_64_v3",
    "vnni": "x86_64_v4+avx512vnni",
    "bf16": "x86_64_v4+avx512vnni+avx512bf16",
    "amx": "x86_64_v4+avx512vnni+avx512bf16+amx_tile+amx_int8+amx_bf16",
}
# query heads, KV heads, size of a key, size of a value, layers
SHAPES = {"135m": (9, 3, 64, 64, 30), "1b": (32, 8, 64, 64, 16), "8b": (32, 8, 128, 128, 32), "mha": (12, 12, 64, 64, 12)}
FORMATS = {"F32": KvFormat.f32, "F16": KvFormat.f16, "I8": KvFormat.i8, "K8V4": KvFormat.k8v4, "I4": KvFormat.i4}
CASES = ("1x1@128", "1x1@1024", "1x1@4096", "16x1@256", "32x1@256", "1x512@512", "1x2048@2048")


@dataclass(frozen=True)
class Line:
    """One measurement of a step: milliseconds over all layers."""

    shape: str
    kv: str
    case: str
    threads: int
    append_ms: float
    attend_ms: float
    gb_per_s: float
    gflop_per_s: float


def _build(level: str, shape: str, kv: str, folder: Path) -> ctypes.CDLL:
    hq, hkv, dk, dv, _ = SHAPES[shape]
    library = folder / f"attention-{shape}-{kv}.so"
    command = [sys.executable, "-m", "ziglang", "c++", "-std=c++17", "-O3", "-g0", "-fno-exceptions", "-fno-rtti", "-shared", "-fPIC"]
    command += ["-nostdlib++", f"-mcpu={LEVELS[level]}", f"-I{TEMPLATES}", f"-I{TEMPLATES / 'kernels'}"]
    command += ["-mprefer-vector-width=512"] if level not in ("portable", "avx2") else []
    command += [f"-DBENCH_SHAPE={hq},{hkv},{dk},{dv},Kv::{kv}"]
    subprocess.run([*command, str(Path(__file__).with_suffix(".cpp")), "-o", str(library)], check=True)
    return ctypes.CDLL(str(library))


def _measure(library: ctypes.CDLL, shape: str, kv: str, case: str, threads: int, rounds: int) -> Line:
    match = re.fullmatch(r"(\d+)x(\d+)@(\d+)", case)
    if not match:
        raise SystemExit(f"case {case!r} is not of the form BATCHxCHUNK@CONTEXT, such as 1x1@4096")
    batch, chunk, context = map(int, match.groups())
    if not 1 <= chunk <= context:
        raise SystemExit(f"case {case!r}: the chunk must be 1 to the context's {context} tokens")
    hq, hkv, dk, dv, layers = SHAPES[shape]
    # Seconds for all layers of a long prompt: fewer tell as much.
    measured = max(2, layers // 8) if chunk * context > 1 << 19 else layers
    out = (ctypes.c_double * (2 * rounds))()
    library.bench_attention(*(ctypes.c_int64(v) for v in (batch, chunk, context, measured)), threads, rounds, out)
    append, attend = (statistics.median(out[k::2]) * layers / measured for k in (0, 1))
    moved = batch * context * hkv * FORMATS[kv].token_bytes(dk, dv) * layers
    seen = batch * sum(range(context - chunk + 1, context + 1))
    return Line(
        shape, kv, case, threads, append * 1e3, attend * 1e3, moved / attend / 1e9, 2 * hq * (dk + dv) * seen * layers / attend / 1e9
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--level", choices=list(LEVELS), default="bf16", help="ISA level to compile for")
    parser.add_argument("--shape", nargs="*", choices=list(SHAPES), default=["135m"])
    parser.add_argument("--kv", nargs="*", choices=list(FORMATS), default=["F16"])
    parser.add_argument("--case", nargs="*", default=list(CASES))
    parser.add_argument("--threads", nargs="*", type=int, default=[2])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.level == "amx" and amx_refusal():
        raise SystemExit(amx_refusal())
    lines = []
    with tempfile.TemporaryDirectory() as folder:
        for shape in options.shape:
            for kv in options.kv:
                library = _build(options.level, shape, kv, Path(folder))
                lines += [
                    _measure(library, shape, kv, case, threads, options.rounds) for case in options.case for threads in options.threads
                ]
    if options.json:
        print(json.dumps([vars(line) for line in lines]))
        return
    print(f"{'shape':6}{'kv':>5}{'case':>14}{'threads':>9}{'append ms':>11}{'attend ms':>11}{'GB/s':>8}{'GFLOP/s':>9}")
    for x in lines:
        print(
            f"{x.shape:6}{x.kv:>5}{x.case:>14}{x.threads:>9}{x.append_ms:>11.3f}{x.attend_ms:>11.3f}{x.gb_per_s:>8.1f}{x.gflop_per_s:>9.1f}"
        )


if __name__ == "__main__":
    main()
