"""What onnxruntime can reach: one record for each of its execution providers. It tells their names, and no figures."""

from __future__ import annotations

import importlib
import importlib.util

from mixplan.runtime.hardware.record import Hardware

__all__ = ["onnx_records"]


def onnx_records() -> list[Hardware]:
    """Providers in onnxruntime's own order, most preferred first; [] where it is not installed or cannot be imported."""
    try:
        if importlib.util.find_spec("onnxruntime") is None:
            return []
        library = importlib.import_module("onnxruntime")
        # A list of devices is no reason to report to anybody.
        getattr(library, "disable_telemetry_events", lambda: None)()
        names = [str(name) for name in library.get_available_providers()]
    except Exception:  # a broken installation must not hide the other devices
        return []
    return [Hardware(device=f"npu:{name.removesuffix('ExecutionProvider').lower()}", model=f"onnxruntime {name}") for name in names]
