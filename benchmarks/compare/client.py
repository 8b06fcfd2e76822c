"""The benchmark's side of a worker: a process of its own, requests out, replies in."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

__all__ = ["Client", "WorkerError"]

ROOT = Path(__file__).resolve().parents[2]


class WorkerError(Exception):
    """A worker ended, or answered with an error; the message holds its last words."""


class Client:
    """A running worker. `started` is the perf_counter of just before the process was made, so that a cold start counts all of it."""

    def __init__(
        self, command: Sequence[str], config: Mapping[str, Any], *, environment: Mapping[str, str] | None = None, log: Path | None = None
    ) -> None:
        self.log = log
        surroundings = {**os.environ, **(environment or {})}
        errors = log.open("a", encoding="utf-8") if log else None
        self.started = time.perf_counter()
        self._process = subprocess.Popen(
            [*command, json.dumps(dict(config))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors or subprocess.DEVNULL,
            text=True,
            cwd=ROOT,
            env=surroundings,
        )
        if errors:
            errors.close()

    def ask(self, do: str, **fields: Any) -> dict[str, Any]:
        """One request and its reply. WorkerError where there is none, or where it is an error."""
        assert self._process.stdin and self._process.stdout
        with contextlib.suppress(OSError):  # where it ended, the read below says so
            self._process.stdin.write(json.dumps({"do": do, **fields}) + "\n")
            self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise WorkerError(f"the worker ended with code {self._process.wait()}{self._last_words()}")
        reply: dict[str, Any] = json.loads(line)
        if "error" in reply:
            raise WorkerError(f"{do}: {reply['error']}")
        return reply

    def _last_words(self) -> str:
        if not self.log or not self.log.exists():
            return ""
        lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()[-5:]
        return ": " + " | ".join(lines) if lines else ""

    def close(self) -> None:
        """End the worker: close its input, and kill it if it stays."""
        assert self._process.stdin and self._process.stdout
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()
