"""The record of an NVIDIA GPU by its driver alone, where the management library is not installed: less than that tells, and no samples."""

from __future__ import annotations

from collections.abc import Callable

from mixplan.runtime.devices.gpu_api import CUDA
from mixplan.runtime.devices.gpu_driver import Driver, find_driver
from mixplan.runtime.errors import InternalError
from mixplan.runtime.hardware.measured import read_measured
from mixplan.runtime.hardware.record import Hardware

__all__ = ["driver_record", "find_cuda"]

# CU_DEVICE_ATTRIBUTE_: CLOCK_RATE and MEMORY_CLOCK_RATE in kHz, GLOBAL_MEMORY_BUS_WIDTH in bits.
_CLOCK, _MULTIPROCESSORS, _MEMORY_CLOCK, _MEMORY_WIDTH = 13, 16, 36, 37


def find_cuda() -> list[Hardware]:
    """The first GPU of the driver; none where there is no driver of NVIDIA's, or no GPU."""
    driver, _ = find_driver()
    return [driver_record(driver)] if driver is not None and driver.api is CUDA else []


def driver_record(driver: Driver) -> Hardware:
    """As GPU 0."""
    units, clock, memory_clock, width = (_asked(driver, number) for number in (_MULTIPROCESSORS, _CLOCK, _MEMORY_CLOCK, _MEMORY_WIDTH))
    record = Hardware(
        device="gpu:0",
        model=driver.gpu or None,
        arch=driver.real_arch,
        cores=units,
        machine_cores=units,
        clock=None if clock is None else clock * 1e3,
        memory=_told(driver.total_memory),
        memory_rate=None if memory_clock is None or width is None else 2 * memory_clock * 1e3 * width / 8,
    )
    return read_measured(record)


def _asked(driver: Driver, number: int) -> int | None:
    """An attribute, None for one that is given as 0."""
    return _told(lambda: driver.attribute(number)) or None


def _told(ask: Callable[[], int | None]) -> int | None:
    """The answer, None where the driver has none."""
    try:
        return ask()
    except (InternalError, MemoryError):
        return None
