"""Devices by name: those that come with mixplan, and those that other packages bring by the entry-point group `mixplan.devices`."""

from __future__ import annotations

import importlib
from typing import cast

from mixplan.runtime.errors import UnsupportedError
from mixplan.runtime.hal import Device, DeviceFactory, DeviceOptions
from mixplan.runtime.plugins import Plugin, installed

__all__ = ["BUILTIN", "ENTRY_POINT_GROUP", "create_device", "device_names", "shadowed_devices"]

ENTRY_POINT_GROUP = "mixplan.devices"
BUILTIN: tuple[tuple[str, str], ...] = (
    ("cpu", "mixplan.runtime.devices.cpu:CpuDevice"),
    ("reference", "mixplan.runtime.devices.reference:ReferenceDevice"),
    ("null", "mixplan.runtime.devices.null:NullDevice"),
    ("npu", "mixplan.runtime.devices.npu:NpuDevice"),
    ("gpu", "mixplan.runtime.devices.gpu:GpuDevice"),
)
_PATHS = dict(BUILTIN)
_MEMBERS = ("name", "supported", "load")


def device_names() -> tuple[str, ...]:
    """Names of all devices, built-in ones first; those of broken packages are among them."""
    return (*_PATHS, *(name for name in installed(ENTRY_POINT_GROUP, "device") if name not in _PATHS))


def shadowed_devices() -> tuple[Plugin, ...]:
    """Devices of other packages that have the name of a built-in one, and are therefore never used."""
    return tuple(plugin for name, plugin in installed(ENTRY_POINT_GROUP, "device").items() if name in _PATHS)


def create_device(name: str, options: DeviceOptions) -> Device:
    """The device called `name`; UnsupportedError where there is none, PluginError (which is one) where its package is broken."""
    # Other packages are looked at only where they are asked for: that takes longer than anything else here.
    if name in _PATHS:
        return _builtin(name)(options)
    plugins = installed(ENTRY_POINT_GROUP, "device")
    if name not in plugins:
        raise UnsupportedError(f"There is no device {name!r}; there are {', '.join(device_names())}.")
    return cast(Device, plugins[name].make(_MEMBERS, options))


def _builtin(name: str) -> DeviceFactory:
    module, _, attribute = _PATHS[name].partition(":")
    try:
        return cast(DeviceFactory, getattr(importlib.import_module(module), attribute))
    except (ImportError, AttributeError) as error:
        raise UnsupportedError(f"The device {name!r} ({_PATHS[name]}) cannot be imported: {error}.") from error
