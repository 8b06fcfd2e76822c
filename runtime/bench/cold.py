"""Cold start: a fresh process for every launch, from its start to the first token."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from time import perf_counter

from mixplan.runtime.bench.stats import Figure, repeated
from mixplan.runtime.errors import UnsupportedError

__all__ = ["cold_start"]

_SCRIPT = Path(__file__).with_name("launch.py")
_TIMEOUT = 3600.0  # seconds
# Tokens after the first, for the memory that decoding takes.
_TOKENS = 16


def cold_start(
    plan: Path,
    prompt: Sequence[int],
    *,
    launches: int,
    device: str = "auto",
    threads: int | None = None,
    trust: bool = False,
    isa: str | None = None,
    strict: bool = False,
    progress: Callable[[float], None] | None = None,
) -> dict[str, Figure]:
    """Medians over `launches` processes, after one that is not counted and brings the files into memory.

    Raises UnsupportedError with the process's own words where it fails.
    """
    settings = [str(plan), device, str(threads or ""), "trust" if trust else "", isa or "", "strict" if strict else "", str(_TOKENS)]
    rows = []
    for number in range(launches + 1):
        row = _launch(settings, prompt)
        if number > 0:
            rows.append(row)
        if progress is not None:
            progress((number + 1) / (launches + 1))
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    return {name: repeated(values, "bytes" if name.endswith("bytes") else "s") for name, values in columns.items()}


def _launch(settings: Sequence[str], prompt: Sequence[int]) -> dict[str, float]:
    command = [sys.executable, "-P", str(_SCRIPT), *settings]
    # The monotonic clock is one for all processes.
    begun = perf_counter()
    try:
        done = subprocess.run(command, input=" ".join(map(str, prompt)), capture_output=True, text=True, timeout=_TIMEOUT, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UnsupportedError(f"A process for a cold start cannot be run: {error}.") from error
    words = done.stdout.split()
    if done.returncode != 0 or len(words) != 7:
        said = " ".join(done.stderr.split())[-600:] or f"exit code {done.returncode}"
        raise UnsupportedError(f"A process for a cold start failed: {said}", hint="Leave it out: --phases steady,stress.")
    started, imported, loaded, first, first_rss, peak_rss, weights = map(float, words)
    return {
        "interpreter_seconds": started - begun,
        "import_seconds": imported - started,
        "load_seconds": loaded - imported,
        "prefill_seconds": first - loaded,
        "first_token_seconds": first - begun,
        "peak_rss_first_token_bytes": first_rss,
        "peak_rss_bytes": peak_rss,
        "peak_rss_above_weights_bytes": peak_rss - weights,
    }
