"""The measured ceilings as a record, and the questions that reports ask of it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from mixplan.runtime.errors import OptionError

__all__ = ["Ceilings", "PeakRate", "ReadRate"]


@dataclass(frozen=True)
class ReadRate:
    """Reading `bytes` again and again. gb_per_s is the median of the rounds (1e9 bytes), best their maximum; huge: in huge pages."""

    bytes: int
    threads: int
    huge: bool
    gb_per_s: float
    best: float
    manner: str


@dataclass(frozen=True)
class PeakRate:
    """Multiply-adds of one unit from registers, two operations each. kind: int8, bf16 or fp32; unit: e.g. vnni, avx512, amx, avx2."""

    kind: str
    unit: str
    threads: int
    gop_per_s: float
    best: float

    @property
    def name(self) -> str:
        """The kind and unit in one word, as reports print it."""
        return f"{self.kind}_{self.unit}"


@dataclass(frozen=True)
class Ceilings:
    """What `measure` found in this process. Rates are of all threads together."""

    reads: tuple[ReadRate, ...]
    peaks: tuple[PeakRate, ...]

    def bandwidth(self, size: int, threads: int | None = None, *, huge: bool | None = None) -> float:
        """GB/s of reading a working set of `size` bytes: between the measured sizes linear in log(size), beyond them the nearest one.

        threads: None is the most that were measured. huge: None is the better of both kinds of pages.
        """
        rows = [r for r in self.reads if (threads is None or r.threads == threads) and (huge is None or r.huge == huge)]
        if threads is None and rows:
            most = max(r.threads for r in rows)
            rows = [r for r in rows if r.threads == most]
        if not rows:
            raise OptionError(f"no read rate was measured for {threads} threads, huge={huge}.", hint="Measure with these.")
        curves = [sorted((r.bytes, r.gb_per_s) for r in rows if r.huge == kind) for kind in {r.huge for r in rows}]
        return max(_interpolate(curve, size) for curve in curves)

    def peak(self, kind: str, threads: int | None = None, *, unit: str | None = None) -> float:
        """GOP/s of a kind: of one unit, or of the fastest. 0.0 where no unit of that kind is here."""
        rows = [p for p in self.peaks if p.kind == kind and (unit is None or p.unit == unit) and (threads is None or p.threads == threads)]
        return max((p.gop_per_s for p in rows), default=0.0)

    def to_json(self) -> dict[str, Any]:
        """Plain lists and numbers, for json.dumps."""
        return {"reads": [asdict(r) for r in self.reads], "peaks": [asdict(p) for p in self.peaks]}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Ceilings:
        """The reverse of to_json."""
        return cls(tuple(ReadRate(**r) for r in data["reads"]), tuple(PeakRate(**p) for p in data["peaks"]))


def _interpolate(curve: list[tuple[int, float]], size: int) -> float:
    if size <= curve[0][0]:
        return curve[0][1]
    for (low, slow), (high, fast) in itertools.pairwise(curve):
        if size <= high:
            part = (math.log(size) - math.log(low)) / (math.log(high) - math.log(low))
            return slow + part * (fast - slow)
    return curve[-1][1]
