"""What `mixplan targets` shows: records of this machine's devices, and for each target whether it compiles and runs here, and why not."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from mixplan.runtime.devices.registry import create_device, device_names, shadowed_devices
from mixplan.runtime.errors import MixplanError
from mixplan.runtime.hal import DeviceOptions
from mixplan.runtime.hardware import Sample, devices, samples
from mixplan.targets.registry import get_target, shadowed_targets, target_names

__all__ = ["summary"]


def summary() -> dict[str, Any]:
    """`hardware`: a record of each device, with a `sample` of what changes. `targets`: name, compiles, runs, reason, levels, formats,
    activations, notes of each. `ignored`: plugins that are never used, and why.
    """
    names = dict.fromkeys((*target_names(), *device_names()))
    ignored = [
        f"The {plugin.kind} {plugin.name!r} of the package {plugin.package} is not used: the built-in one has that name."
        for plugin in (*shadowed_targets(), *shadowed_devices())
    ]
    now = samples()
    records = [{**asdict(one), "sample": asdict(now.get(one.device, Sample()))} for one in devices()]
    return {"hardware": records, "targets": [_row(name) for name in names], "ignored": ignored}


def _row(name: str) -> dict[str, Any]:
    row: dict[str, Any] = {"name": name, "compiles": False, "runs": False, "levels": [], "formats": [], "activations": [], "notes": {}}
    reasons = []
    try:
        able = get_target(name).capabilities()
        row |= {
            "compiles": able.available.ok,
            "levels": list(able.levels),
            "formats": list(able.formats),
            "activations": list(able.activations),
            "notes": dict(able.notes),
        }
        if able.available.reason:
            reasons.append(f"compile: {able.available.reason}")
    except Exception as error:  # a list of targets is most needed where one of them is broken
        reasons.append(f"compile: {_words(error)}")
    try:
        support = create_device(name, DeviceOptions()).supported()
        row["runs"] = support.ok
        if support.reason:
            reasons.append(f"run: {support.reason}")
    except Exception as error:
        reasons.append(f"run: {_words(error)}")
    return row | {"reason": "; ".join(reasons)}


def _words(error: Exception) -> str:
    if isinstance(error, MixplanError):
        return str(error).replace("\n", " ")
    if isinstance(error, ImportError):
        return f"{error}; pip install 'mixplan[compile]'"
    return f"{type(error).__name__}: {error}"
