"""Devices by name: those that come with mixplan, and those that other packages bring by the entry-point group `mixplan.devices`."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from functools import cache
from typing import TYPE_CHECKING

from mixplan.runtime.errors import OptionError, UnsupportedError
from mixplan.runtime.hal import Device, DeviceFactory, DeviceOptions

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

__all__ = ["BUILTIN", "ENTRY_POINT_GROUP", "create_device", "device_table"]

ENTRY_POINT_GROUP = "mixplan.devices"
BUILTIN: tuple[tuple[str, str], ...] = (
    ("cpu", "mixplan.runtime.devices.cpu:CpuDevice"),
    ("reference", "mixplan.runtime.devices.reference:ReferenceDevice"),
    ("null", "mixplan.runtime.devices.null:NullDevice"),
)


def device_table(found: Iterable[EntryPoint]) -> dict[str, str]:
    """Name to "module:attribute". OptionError where two packages claim one name."""
    table = dict(BUILTIN)
    for point in found:
        if point.name in table:
            raise OptionError(
                f"Two devices are called {point.name!r}: {table[point.name]} and {point.value}.",
                hint="Uninstall one of the packages, or rename its entry point.",
            )
        table[point.name] = point.value
    return table


def create_device(name: str, options: DeviceOptions) -> Device:
    """The device called `name`; UnsupportedError where there is none or its package cannot be imported."""
    # Other packages are looked at only where they are asked for: that takes longer than anything else here.
    table = dict(BUILTIN)
    if name not in table:
        table = _installed()
    if name not in table:
        raise UnsupportedError(f"There is no device {name!r}; there are {', '.join(table)}.")
    module, _, attribute = table[name].partition(":")
    try:
        factory: DeviceFactory = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise UnsupportedError(f"The device {name!r} ({table[name]}) cannot be imported: {error}.") from error
    return factory(options)


@cache
def _installed() -> dict[str, str]:
    from importlib.metadata import entry_points

    return device_table(entry_points(group=ENTRY_POINT_GROUP))
