"""All ceilings in one call."""

from __future__ import annotations

from collections.abc import Sequence

from mixplan.runtime.devices.cpu_info import allowed_cores
from mixplan.runtime.errors import OptionError
from mixplan.targets.cpu.ceilings.probe import Probe
from mixplan.targets.cpu.ceilings.record import Ceilings, PeakRate, ReadRate

__all__ = ["DEFAULT_SIZES", "measure"]

DEFAULT_SIZES = tuple(1 << power for power in range(20, 31))  # 1 MiB .. 1 GiB


def measure(
    *,
    sizes: Sequence[int] = DEFAULT_SIZES,
    threads: Sequence[int] | None = None,
    pages: Sequence[bool] | None = None,
    rounds: int = 7,
    peaks: bool = True,
) -> Ceilings:
    """Read rates at each working-set size (bytes), with each number of threads, and the peak of each unit this CPU has.

    threads: None is 1 and all allowed cores. pages: huge pages (True) and small ones (False); None is both where the system gives huge
    pages. The default takes some 10 s and 1 GiB; `sizes=(weight_bytes,)` takes a fraction of a second. From launch to launch bandwidth may
    differ, so measure it in the run that quotes it.
    """
    probe = Probe()
    threads = tuple(dict.fromkeys((1, allowed_cores()))) if threads is None else tuple(threads)
    pages = ((True, False) if probe.huge_pages() else (False,)) if pages is None else tuple(pages)
    for name, values in (("sizes", sizes), ("threads", threads), ("rounds", (rounds,))):
        if any(value < 1 for value in values):
            raise OptionError(f"{name} holds {min(values)}; each must be at least 1.")
    reads: list[ReadRate] = []
    if sizes:
        for huge in pages:
            with probe.buffer(max(sizes), huge=huge) as buffer:
                reads += [probe.read(buffer, count, size=size, rounds=rounds) for size in sizes for count in threads]
    found: list[PeakRate] = []
    if peaks:
        found = [probe.peak(kind, unit, count, rounds=rounds) for kind, unit in probe.units() for count in threads]
    return Ceilings(tuple(reads), tuple(found))
