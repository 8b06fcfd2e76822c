"""Progress of long work: a bar on a terminal, nothing in a pipe."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic
from typing import TypeAlias

__all__ = ["Progress", "terminal_progress"]

Progress: TypeAlias = Callable[[str, float], None]
"""Called with a stage's name and its done fraction, 0 to 1."""


@contextmanager
def terminal_progress(*, remaining: bool = False, per_second: float = 10) -> Iterator[Progress | None]:
    """A callback that draws on stderr, or None where that is not a terminal.

    remaining: show the time that is left, not the time that has passed. per_second: how often it draws, at most.
    """
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars

    time = TimeRemainingColumn(elapsed_when_finished=True) if remaining else TimeElapsedColumn()
    columns = (TextColumn("{task.description:<20}"), BarColumn(), TextColumn("{task.percentage:>3.0f}%"), time)
    with Bars(*columns, console=Console(stderr=True), refresh_per_second=per_second) as bars:
        tasks: dict[str, int] = {}
        shown: dict[str, float] = {}

        def show(stage: str, fraction: float) -> None:
            if stage not in tasks:
                tasks[stage] = bars.add_task(stage, total=1.0)
            elif fraction < 1 and monotonic() - shown[stage] < 1 / per_second:
                return
            shown[stage] = monotonic()
            bars.update(tasks[stage], completed=fraction)  # type: ignore[arg-type]

        yield show
