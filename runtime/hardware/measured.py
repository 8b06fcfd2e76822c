"""Bandwidth and peaks that the ceilings program measured on this machine before, kept in the user's cache.

The runtime only reads them: to measure takes a compiler. They are kept by what makes a machine another one for them.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from mixplan.runtime.errors import OutputError
from mixplan.runtime.hardware.record import Hardware

__all__ = ["measured_path", "read_measured", "write_measured"]

_SCHEMA = "mixplan.ceilings/1"


def measured_path(record: Hardware) -> Path:
    """The file of figures of a device like `record`."""
    facts = [record.device, record.arch, record.model, record.cores, record.machine_cores, record.flags, record.memory_limit]
    key = hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]
    given = os.environ.get("XDG_CACHE_HOME", "")
    root = Path(given) if given.startswith("/") else Path.home() / ".cache"
    return root / "mixplan" / "ceilings" / f"{record.device.replace(':', '-')}-{key}.json"


def read_measured(record: Hardware) -> Hardware:
    """The record with the figures, where there are sound ones."""
    try:
        data = json.loads(measured_path(record).read_bytes())
        if data["schema"] != _SCHEMA:
            return record
        bandwidth = tuple((int(size), _rate(rate)) for size, rate in data["bandwidth"])
        peaks = {str(kind): _rate(rate) for kind, rate in data["peaks"].items()}
        measured_at = str(data["measured_at"])
    except (OSError, RuntimeError, ValueError, TypeError, KeyError, AttributeError):
        return record
    if not bandwidth or any(size <= 0 for size, _ in bandwidth) or [size for size, _ in bandwidth] != sorted({s for s, _ in bandwidth}):
        return record
    return replace(record, measured_at=measured_at, bandwidth=bandwidth, peaks=peaks)


def _rate(value: Any) -> float:
    rate = float(value)
    if not math.isfinite(rate) or rate <= 0:
        raise ValueError(value)
    return rate


def write_measured(record: Hardware, bandwidth: Sequence[tuple[int, float]], peaks: Mapping[str, float]) -> Hardware:
    """Keep figures, in bytes/s and operations/s; gives the record with them. OutputError where the cache cannot be written."""
    data = {
        "schema": _SCHEMA,
        "measured_at": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "device": record.device,
        "model": record.model,
        "bandwidth": sorted(bandwidth),
        "peaks": {kind: rate for kind, rate in peaks.items() if rate > 0},
    }
    path = measured_path(record)
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        # Renamed into place, so that nobody reads half of it.
        draft = path.with_name(f"{path.name}.{os.getpid()}")
        draft.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
        draft.replace(path)
    except OSError as error:
        hint = "Set XDG_CACHE_HOME to a folder of yours."
        raise OutputError(f"The figures cannot be kept in {path}: {error.strerror}.", hint=hint) from error
    return read_measured(record)
