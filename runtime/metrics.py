"""What a loaded model has done and what it holds."""

from __future__ import annotations

import resource
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mixplan.runtime.fallbacks import Fallback

__all__ = ["Metrics", "OpTime", "peak_rss_bytes"]


@dataclass(frozen=True)
class Metrics:
    """Counts since the model was loaded. Times in seconds, sizes in bytes."""

    steps: int
    tokens: int
    seconds: float
    """Wall time spent inside steps."""
    load_seconds: float
    regions: dict[str, dict[str, float]]
    """By region: `seconds` inside it, `calls`, and what its device reports."""
    sequences: int
    kv_pages: int
    kv_pages_used: int
    kv_bytes_per_token: int
    weight_bytes: int
    peak_rss_bytes: int
    """Of the whole process since it started."""
    fallbacks: tuple[Fallback, ...] = ()
    """Kernels and devices that failed, and what runs in their place."""

    def to_dict(self) -> dict[str, Any]:
        """As plain data, for JSON."""
        return asdict(self)


@dataclass(frozen=True)
class OpTime:
    """Seconds spent in one op since the model was loaded. `region` and `node` are indices into the plan's.

    A node that is missing needed no op, or its work is done by the op of a node beside it. Node -1 is all of a region that keeps no times.
    """

    region: int
    node: int
    seconds: float


def peak_rss_bytes() -> int:
    """The process's largest resident set so far. Mapped weights count once they are touched."""
    try:
        for line in Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass  # no /proc: a system other than Linux
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
