"""Which device each region gets, and why."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from mixplan.runtime.devices.registry import create_device
from mixplan.runtime.errors import CapacityError, InternalError, MissingExtraError, MixplanError, OptionError, UnsupportedError
from mixplan.runtime.fallbacks import FALLBACK, Fallback, Fallbacks
from mixplan.runtime.hal import CacheSpec, Device, DeviceOptions, Fault, LoadedRegion, Support
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
        """device "auto": the one that the plan names; where it cannot run a region, the CPU; where that cannot, the reference. Any other
        name: that device for all.
        """
        self._plan = plan
        self._caches = caches
        self._device = device
        self._options = options
        self._fallbacks = fallbacks
        self._devices: dict[str, Device] = {}
        self.placements: list[Placement] = []
        """Where each region that was loaded runs now."""

    def load_all(self) -> list[LoadedRegion]:
        """Every region, in order. UnsupportedError where a device that the caller named cannot run one; FallbackError under strict."""
        loaded: list[LoadedRegion] = []
        found: list[Fallback] = []
        try:
            for index in range(len(self._plan.plan.regions)):
                region, placement, faults = self._load(index)
                loaded.append(region)
                self.placements.append(placement)
                taken = _taken(region, placement.device)
                found += [Fallback(placement.region, fault.implementation, taken, fault.reason) for fault in faults]
            self._fallbacks.add(found)
        except BaseException:
            for one in loaded:
                one.close()
            raise
        return loaded

    def replace(self, index: int, reason: str) -> LoadedRegion | None:
        """The region on the next device, since its own failed in a step; None where there is no other."""
        region, before = self._plan.plan.regions[index], self.placements[index]
        names, failed = self._names(index), before.device
        others = names[names.index(failed) + 1 :]
        if not others:
            return None
        if self._fallbacks.strict:
            self._fallbacks.add([Fallback(region.name, f"the {failed} device", f"the {others[0]} device", reason)])
        done, name, faults = self._first(index, others)
        faults = (Fault(f"the {failed} device", reason), *faults)
        self._fallbacks.add([Fallback(region.name, one.implementation, _taken(done, name), one.reason) for one in faults])
        self.placements[index] = msgspec.structs.replace(before, device=name, isa=done.isa, reason=f"{failed} failed in a step: {reason}")
        return done

    def _names(self, index: int) -> list[str]:
        """The devices to try for a region, best first."""
        # A level that the caller forces is part of the request: anything else instead of it would not be what was asked for.
        if self._device != "auto" or self._options.isa is not None:
            return [self._plan.plan.regions[index].device if self._device == "auto" else self._device]
        name = self._plan.plan.regions[index].device
        return list(dict.fromkeys((name, "cpu", FALLBACK))) if name != FALLBACK else [name]

    def _first(self, index: int, names: Sequence[str]) -> tuple[LoadedRegion, str, tuple[Fault, ...]]:
        """The region on the first device that can, which device it is, and what failed before."""
        faults: tuple[Fault, ...] = ()
        errors: list[MixplanError] = []
        for name in names:
            try:
                done = self._on(index, name)
            except (UnsupportedError, MissingExtraError, InternalError, CapacityError) as error:
                errors.append(error)
                faults += (Fault(f"the {name} device", error.message),)
            else:
                return done, name, faults + tuple(getattr(done, "faults", ()))
        # What the plan's own device said is the better advice; but where memory is short, that is what can be mended.
        raise next((error for error in errors if isinstance(error, CapacityError)), errors[0])

    def _load(self, index: int) -> tuple[LoadedRegion, Placement, tuple[Fault, ...]]:
        region = self._plan.plan.regions[index]
        auto = self._device == "auto"
        names = self._names(index)
        done, name, faults = self._first(index, names)
        if name != names[0]:
            reason = faults[0].reason
        elif auto and name != FALLBACK:
            # A device may say where its native code came from (the plan, or compiled here).
            reason = "; ".join(filter(None, [region.reason, str(getattr(done, "origin", ""))])) or "as the plan says"
        else:
            reason = (region.reason or "as the plan says") if auto else "as the caller asked"
        return done, Placement(region.name, region.stop - region.start, region.device, name, done.isa, reason), faults

    def _on(self, index: int, name: str) -> LoadedRegion:
        """Region `index` on a device. Whatever keeps another package's device from loading it is an UnsupportedError."""
        region = self._plan.plan.regions[index]
        if name not in self._devices:
            self._devices[name] = create_device(name, self._options)
        device = self._devices[name]
        try:
            support = device.supported()
            if not isinstance(support, Support):
                raise UnsupportedError(
                    f"The device {name!r} says {support!r:.60} of whether it can work here; supported() gives a Support."
                )
            if not support.ok:
                raise UnsupportedError(f"The device {name!r} cannot work on this machine: {support.reason}.")
            loaded = device.load(self._plan, index, self._caches)
            if type(device).__module__.startswith("mixplan."):
                return loaded
            # Imported here: most plans need no device of another package.
            from mixplan.runtime.guarded import GuardedRegion

            return GuardedRegion(self._plan.plan, region, name, loaded)
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


def _taken(region: LoadedRegion, device: str) -> str:
    return str(getattr(region, "implementation", "")) or f"the {device} device"


def check_options(device: str, threads: int | None) -> None:
    """OptionError for values that no device could take."""
    if not device:
        raise OptionError("device is empty; give 'auto', 'cpu', 'reference' or another device's name.")
    if threads is not None and not (isinstance(threads, int) and 1 <= threads <= 1024):
        raise OptionError(f"threads is {threads!r}; allowed are 1 to 1024.")
