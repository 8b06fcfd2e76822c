"""What `mixplan targets` shows: this machine's hardware record, and for each target whether it compiles and runs here, and why not."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from mixplan.runtime.devices.registry import create_device
from mixplan.runtime.errors import MixplanError
from mixplan.runtime.hal import DeviceOptions
from mixplan.runtime.hardware import hardware
from mixplan.targets.registry import get_target, target_names

__all__ = ["summary"]


def summary() -> dict[str, Any]:
    """`hardware`: the record. `targets`: name, compiles, runs, reason, levels, formats, activations, notes of each."""
    return {"hardware": asdict(hardware()), "targets": [_row(name) for name in target_names()]}


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
    except (ImportError, MixplanError) as error:
        reasons.append(f"compile: {error}; pip install 'mixplan[compile]'" if isinstance(error, ImportError) else f"compile: {error}")
    try:
        support = create_device(name, DeviceOptions()).supported()
        row["runs"] = support.ok
        if support.reason:
            reasons.append(f"run: {support.reason}")
    except MixplanError as error:
        reasons.append(f"run: {error}")
    return row | {"reason": "; ".join(reasons)}
