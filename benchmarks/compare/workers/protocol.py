"""The worker's side of the comparison: one process runs one stack, and answers requests in JSON lines.

A worker is started as `python -m benchmarks.compare.workers.NAME CONFIG`, where CONFIG is a JSON object: `model` (path), `threads`, and
what the stack wants besides. Requests come on stdin, one a line; each is answered by one line on stdout:

    {"do": "first", "ids": [..]}                -> {"token": n}                   prefill a fresh sequence and take the most likely token
    {"do": "prefill", "ids": [..], "times": n}  -> {"seconds": [..]}              the same n times, timed
    {"do": "decode", "ids": [..], "steps": n}   -> {"seconds": [..]}              prefill (not timed), then n greedy steps, each timed
    {"do": "batch", "prompts": [[..]..], "steps": n} -> {"seconds": [..]}         the same, a step being one token of each
    {"do": "nll", "windows": [[..]..]}          -> {"nll": [..], "tokens": [..]}  sum of -log p of its tokens but the first
    {"do": "memory"}                            -> {"peak_rss": bytes}
    {"do": "facts"}                             -> {..}                           what the stack says of itself: version, units used
    {"do": "tune", "options": {..}}             -> {}                             settings of the stack for the requests that follow

mixplan's worker also knows "ceilings" (the machine's, measured in that process) and "overhead" (the share of a step outside native code).
A failure is answered by {"error": "..."}; the end of stdin ends the worker. Nothing here imports mixplan: peers have an environment of
their own.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TextIO

__all__ = ["Engine", "Worker", "answer", "main", "negative_log_likelihood", "peak_rss_bytes", "serve", "timed"]


class Engine(Protocol):
    """What a worker must know how to do. Token ids are plain ints; every decode step is greedy and counts the choice of its token."""

    def first(self, ids: Sequence[int]) -> int:
        """Run a fresh sequence and give the most likely next token."""

    def decode(self, ids: Sequence[int], steps: int) -> list[float]:
        """Seconds of each of `steps` steps after the prompt."""

    def batch(self, prompts: Sequence[Sequence[int]], steps: int) -> list[float]:
        """Seconds of each step of all sequences together."""

    def logits(self, ids: Sequence[int]) -> Any:
        """float32 [len(ids), vocab_size] of a fresh sequence."""

    def facts(self) -> Mapping[str, Any]:
        """Version and settings, for the report."""

    def tune(self, options: Mapping[str, Any]) -> None:
        """Use these settings, and its own for the rest, from now on."""

    def other(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """The reply to a request that only this stack knows."""


def timed(steps: int, step: Callable[[], None]) -> list[float]:
    """Seconds of each of `steps` calls."""
    seconds = []
    for _ in range(steps):
        started = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - started)
    return seconds


def negative_log_likelihood(logits: Any, ids: Sequence[int]) -> float:
    """Sum of -log p(ids[i + 1]) under logits[i], in float64."""
    import numpy as np

    rows = np.asarray(logits, np.float32)[: len(ids) - 1].astype(np.float64)
    peak = rows.max(axis=-1)
    total = np.log(np.exp(rows - peak[:, None]).sum(axis=-1)) + peak
    return float((total - rows[np.arange(len(ids) - 1), np.asarray(ids[1:])]).sum())


def peak_rss_bytes() -> int:
    """The most memory this process ever held, 0 where the system does not say."""
    try:
        with Path("/proc/self/status").open(encoding="utf-8") as status:
            return next((int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM:")), 0)
    except OSError:
        return 0


def answer(engine: Engine, request: Mapping[str, Any]) -> dict[str, Any]:
    """The reply to one request."""
    what = request.get("do")
    if what == "first":
        return {"token": int(engine.first(request["ids"]))}
    if what == "prefill":
        return {"seconds": timed(request["times"], lambda: engine.first(request["ids"]) and None)}
    if what == "decode":
        return {"seconds": engine.decode(request["ids"], request["steps"])}
    if what == "batch":
        return {"seconds": engine.batch(request["prompts"], request["steps"])}
    if what == "nll":
        return {
            "nll": [negative_log_likelihood(engine.logits(ids), ids) for ids in request["windows"]],
            "tokens": [len(ids) - 1 for ids in request["windows"]],
        }
    if what == "memory":
        return {"peak_rss": peak_rss_bytes()}
    if what == "facts":
        return dict(engine.facts())
    if what == "tune":
        engine.tune(request["options"])
        return {}
    return engine.other(request)


class Worker:
    """What workers share: settings that can be changed for some requests."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.given = dict(config)
        self.config = dict(config)

    def tune(self, options: Mapping[str, Any]) -> None:
        """See Engine.tune."""
        self.config = {**self.given, **options}

    def other(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """See Engine.other."""
        return {"error": f"unknown request {request.get('do')!r}"}


def serve(engine: Engine, lines: Iterable[str], out: TextIO) -> None:
    """Answers until the lines end."""
    for line in lines:
        try:
            reply = answer(engine, json.loads(line))
        except Exception as error:
            reply = {"error": f"{type(error).__name__}: {error}"}
        out.write(json.dumps(reply) + "\n")
        out.flush()


def main(make: Callable[[Mapping[str, Any]], Engine]) -> None:
    """Runs a worker: stdout is kept for the protocol, and what a stack prints goes to stderr."""
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    serve(make(json.loads(sys.argv[1])), sys.stdin, out)
