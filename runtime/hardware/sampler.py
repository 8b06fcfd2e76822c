"""What changes about devices, sampled by one thread for all who ask."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping
from time import monotonic

from mixplan.runtime.hardware.record import Sample

__all__ = ["LEAST_PERIOD", "Sampler"]

LEAST_PERIOD = 0.1
"""Seconds between two samples of a device, at least: drivers take locks to answer."""

_IDLE = 2.0
_PATIENCE = 1.0


class Sampler:
    """Asks each source once a period, as long as somebody wants to know; a few seconds after the last question the thread ends."""

    def __init__(self, sources: Mapping[str, Callable[[], Sample]], period: float = LEAST_PERIOD, idle: float = _IDLE) -> None:
        """sources: by device. period: seconds, raised to LEAST_PERIOD. idle: seconds without a question after which the thread ends."""
        self._sources = dict(sources)
        self._period = max(period, LEAST_PERIOD)
        self._idle = idle
        self._changed = threading.Condition()
        self._samples: dict[str, Sample] = {}
        self._asked = 0.0
        self._thread: threading.Thread | None = None
        self._process = 0

    def latest(self) -> dict[str, Sample]:
        """The newest sample of each device, a period old at most. One whose driver takes longer than a second to answer is missing."""
        with self._changed:
            self._asked = monotonic()
            # A fork leaves threads behind.
            if self._thread is None or self._process != os.getpid():
                self._samples = {}
                self._process = os.getpid()
                self._thread = threading.Thread(target=self._run, name="mixplan-hardware", daemon=True)
                self._thread.start()
            self._changed.wait_for(lambda: len(self._samples) == len(self._sources), _PATIENCE)
            return dict(self._samples)

    def _run(self) -> None:
        while True:
            started = monotonic()
            for device, source in self._sources.items():
                try:
                    sample = source()
                except Exception:  # whatever a driver's binding raises: then nothing is known
                    sample = Sample()
                with self._changed:
                    self._samples[device] = sample
                    self._changed.notify_all()
            with self._changed:
                if monotonic() - self._asked > self._idle:
                    self._thread = None
                    return
            time.sleep(max(0.0, started + self._period - monotonic()))
