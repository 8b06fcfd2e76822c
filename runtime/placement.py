"""Which device each region gets, and why."""

from __future__ import annotations

import msgspec

from mixplan.runtime.devices.registry import create_device
from mixplan.runtime.errors import CapacityError, InternalError, MissingExtraError, MixplanError, OptionError, UnsupportedError
from mixplan.runtime.fallbacks import FALLBACK, Fallback, Fallbacks
from mixplan.runtime.hal import CacheSpec, Device, DeviceOptions, Fault, LoadedRegion
from mixplan.runtime.plan_io import LoadedPlan

__all__ = ["FALLBACK", "Placement", "RegionLoader", "check_options"]


class Placement(msgspec.Struct, frozen=True):
    """Where one region runs. `requested` is the device that the plan names, `reason` why it runs where it does."""

    region: str
    nodes: int
    requested: str
    device: str
    isa: str
    reason: str


class RegionLoader:
    """Loads a plan's regions, each by the first implementation that can, and tells `fallbacks` of those that could not."""

    def __init__(self, plan: LoadedPlan, caches: CacheSpec, device: str, options: DeviceOptions, fallbacks: Fallbacks) -> None:
        """device "auto": the one that the plan names; where it cannot run a region, the reference. Any other name: that device for all."""
        self._plan = plan
        self._caches = caches
        self._device = device
        self._options = options
        self._fallbacks = fallbacks
        self._devices: dict[str, Device] = {}

    def load_all(self) -> tuple[list[LoadedRegion], tuple[Placement, ...]]:
        """Every region, in order. UnsupportedError where a device that the caller named cannot run one; FallbackError under strict."""
        loaded: list[LoadedRegion] = []
        placements: list[Placement] = []
        found: list[Fallback] = []
        try:
            for index in range(len(self._plan.plan.regions)):
                region, placement, faults = self._load(index)
                loaded.append(region)
                placements.append(placement)
                taken = str(getattr(region, "implementation", "")) or f"the {placement.device} device"
                found += [Fallback(placement.region, fault.implementation, taken, fault.reason) for fault in faults]
            self._fallbacks.add(found)
        except BaseException:
            for one in loaded:
                one.close()
            raise
        return loaded, tuple(placements)

    def replace(self, index: int, reason: str) -> LoadedRegion | None:
        """The region on the reference device, since its own failed in a step; None where there is no other than it."""
        region = self._plan.plan.regions[index]
        failed = region.device if self._device == "auto" else self._device
        if self._device != "auto" or self._options.isa is not None or failed == FALLBACK:
            return None
        self._fallbacks.add([Fallback(region.name, f"the {failed} device", f"the {FALLBACK} device", reason)])
        return self._on(index, FALLBACK)

    def _load(self, index: int) -> tuple[LoadedRegion, Placement, tuple[Fault, ...]]:
        region = self._plan.plan.regions[index]
        auto = self._device == "auto"
        name, reason = (region.device, region.reason or "as the plan says") if auto else (self._device, "as the caller asked")
        faults: tuple[Fault, ...] = ()
        try:
            done = self._on(index, name)
        except (UnsupportedError, MissingExtraError, InternalError, CapacityError) as error:
            # A level that the caller forces is part of the request: numpy instead of it would not be what was asked for.
            if not auto or name == FALLBACK or self._options.isa is not None:
                raise
            faults = (Fault(f"the {name} device", error.message),)
            reason, name = error.message, FALLBACK
            try:
                done = self._on(index, FALLBACK)
            except CapacityError as other:
                # Nothing has room for it: what the plan's own device said is the better advice.
                raise (error if isinstance(error, CapacityError) else other) from None
        faults += tuple(getattr(done, "faults", ()))
        if auto and name != FALLBACK:
            # A device may say where its native code came from (the plan, or compiled here).
            reason = "; ".join(filter(None, [region.reason, _origin(done)])) or reason
        return done, Placement(region.name, region.stop - region.start, region.device, name, done.isa, reason), faults

    def _on(self, index: int, name: str) -> LoadedRegion:
        """Region `index` on a device. Whatever keeps another package's device from loading it is an UnsupportedError."""
        region = self._plan.plan.regions[index]
        if name not in self._devices:
            self._devices[name] = create_device(name, self._options)
        device = self._devices[name]
        try:
            support = device.supported()
            if not support.ok:
                raise UnsupportedError(f"The device {name!r} cannot work on this machine: {support.reason}.")
            return device.load(self._plan, index, self._caches)
        except MixplanError:
            raise
        except MemoryError as error:
            raise CapacityError(f"The device {name!r} has no memory for region {region.name!r}: {error or 'out of memory'}.") from error
        except OSError as error:
            raise UnsupportedError(f"The device {name!r} could not load region {region.name!r}: {error}.") from error
        except Exception as error:
            if type(device).__module__.startswith("mixplan."):
                raise
            words = f"{type(error).__name__}: {error}"
            raise UnsupportedError(f"The device {name!r} could not load region {region.name!r}: {words}.") from error


def _origin(region: LoadedRegion) -> str:
    return str(getattr(region, "origin", ""))


def check_options(device: str, threads: int | None) -> None:
    """OptionError for values that no device could take."""
    if not device:
        raise OptionError("device is empty; give 'auto', 'cpu', 'reference' or another device's name.")
    if threads is not None and not (isinstance(threads, int) and 1 <= threads <= 1024):
        raise OptionError(f"threads is {threads!r}; allowed are 1 to 1024.")
