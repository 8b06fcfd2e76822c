"""Which device each region gets, and why."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from mixplan.runtime.devices.registry import create_device
from mixplan.runtime.errors import InternalError, MissingExtraError, MixplanError, OptionError, UnsupportedError
from mixplan.runtime.hal import CacheSpec, Device, DeviceOptions, LoadedRegion
from mixplan.runtime.plan import Region
from mixplan.runtime.plan_io import LoadedPlan

__all__ = ["FALLBACK", "Placement", "check_options", "load_regions"]

FALLBACK = "reference"
"""The device that runs everything."""


class Placement(msgspec.Struct, frozen=True):
    """Where one region runs. `requested` is the device that the plan names, `reason` why it runs where it does."""

    region: str
    nodes: int
    requested: str
    device: str
    isa: str
    reason: str


def load_regions(
    plan: LoadedPlan, caches: CacheSpec, device: str, options: DeviceOptions
) -> tuple[list[LoadedRegion], tuple[Placement, ...]]:
    """Load every region of the plan.

    device "auto": the one that the plan names; where it cannot run the region, the reference, with a warning in the log. Any other name:
    that device for all regions, and UnsupportedError where it cannot.
    """
    devices: dict[str, Device] = {}
    loaded: list[LoadedRegion] = []
    placements: list[Placement] = []
    try:
        for index, region in enumerate(plan.plan.regions):
            name, reason = (region.device, region.reason or "as the plan says") if device == "auto" else (device, "as the caller asked")
            try:
                done = _load(plan, index, caches, name, options, devices)
            except (UnsupportedError, MissingExtraError, InternalError) as error:
                # A level that the caller forces is part of the request: numpy instead of it would not be what was asked for.
                if device != "auto" or name == FALLBACK or options.isa is not None:
                    raise
                reason = error.message
                done = _load(plan, index, caches, FALLBACK, options, devices)
                name = FALLBACK
            loaded.append(done)
            if device == "auto" and name != FALLBACK:
                # A device may say where its native code came from (the plan, or compiled here).
                reason = "; ".join(filter(None, [region.reason, str(getattr(done, "origin", ""))])) or reason
            placements.append(Placement(region.name, region.stop - region.start, region.device, name, done.isa, reason))
    except BaseException:
        for region_loaded in loaded:
            region_loaded.close()
        raise
    _warn(plan.plan.regions, placements)
    return loaded, tuple(placements)


def _load(plan: LoadedPlan, index: int, caches: CacheSpec, name: str, options: DeviceOptions, devices: dict[str, Device]) -> LoadedRegion:
    if name not in devices:
        found = create_device(name, options)
        support = found.supported()
        if not support.ok:
            raise UnsupportedError(f"The device {name!r} cannot work on this machine: {support.reason}.")
        devices[name] = found
    try:
        return devices[name].load(plan, index, caches)
    except MixplanError:
        raise
    except OSError as error:
        raise UnsupportedError(f"The device {name!r} could not load region {plan.plan.regions[index].name!r}: {error}.") from error


def _warn(regions: Sequence[Region], placements: Sequence[Placement]) -> None:
    """One warning for all regions that do not run where the plan says, unless the caller asked for that."""
    moved = [
        placement
        for placement in placements
        if placement.device == FALLBACK != placement.requested and placement.reason != "as the caller asked"
    ]
    if moved:
        import logging

        reasons = "; ".join(dict.fromkeys(placement.reason for placement in moved))
        logging.getLogger("mixplan.runtime").warning(
            "%d of %d regions run on the reference device, which is slow: %s", len(moved), len(regions), reasons
        )


def check_options(device: str, threads: int | None) -> None:
    """OptionError for values that no device could take."""
    if not device:
        raise OptionError("device is empty; give 'auto', 'cpu', 'reference' or another device's name.")
    if threads is not None and not (isinstance(threads, int) and 1 <= threads <= 1024):
        raise OptionError(f"threads is {threads!r}; allowed are 1 to 1024.")
