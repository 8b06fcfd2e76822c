"""Seconds by stage of a compile, and its progress."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

from mixplan.runtime.progress import Progress

__all__ = ["Clock"]


@dataclass
class Clock:
    """Seconds by stage; a stage that runs again adds to them."""

    progress: Progress | None
    seconds: dict[str, float] = field(default_factory=dict)
    parallel: tuple[str, ...] = ()
    stage: str = ""
    """The one that was begun last, for errors."""

    def beside(self, *stages: str) -> None:
        """Stages that run beside others."""
        self.parallel = tuple(dict.fromkeys((*self.parallel, *stages)))
        for stage in stages:
            self.seconds.setdefault(stage, 0.0)

    def run(self, stage: str, work: Callable[[], Any]) -> Any:
        """Do the work, and tell its begin and end."""
        self.stage = stage
        self.tell(stage, 0.0)
        result = self.timed(stage, work)
        self.tell(stage, 1.0)
        return result

    def timed(self, stage: str, work: Callable[[], Any]) -> Any:
        """Do the work on any thread, without telling."""
        started = perf_counter()
        result = work()
        self.add(stage, perf_counter() - started)
        return result

    def add(self, stage: str, seconds: float) -> None:
        """Seconds that a stage took."""
        self.seconds[stage] = self.seconds.get(stage, 0.0) + seconds

    def tell(self, stage: str, fraction: float) -> None:
        """Show how far a stage is."""
        if self.progress is not None:
            self.progress(stage, fraction)
