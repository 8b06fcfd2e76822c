"""A device that does nothing: every output is zeros. It shows what a step costs besides its arithmetic, and how small a device can be."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from mixplan.runtime.hal import Array, CacheSpec, DeviceOptions, LoadedRegion, Step, Support
from mixplan.runtime.plan import Region, dim_value
from mixplan.runtime.plan_io import LoadedPlan

__all__ = ["NullDevice"]


class NullDevice:
    """Runs any region, and computes nothing."""

    name = "null"

    def __init__(self, options: DeviceOptions) -> None:
        del options  # nothing to choose

    def supported(self) -> Support:
        """Everywhere."""
        return Support(True, "computes nothing")

    def load(self, plan: LoadedPlan, region_index: int, caches: CacheSpec) -> LoadedRegion:
        """No preparation, no KV storage."""
        return _NullRegion(plan, plan.plan.regions[region_index])


class _NullRegion:
    isa = "none"

    def __init__(self, plan: LoadedPlan, region: Region) -> None:
        self._outputs = [(index, plan.plan.values[index]) for index in region.outputs]

    def run(self, step: Step, inputs: Mapping[int, Array]) -> dict[int, Array]:
        """Zeros of the declared shapes."""
        return {
            index: np.zeros([dim_value(dim, tokens=step.tokens, rows=step.rows) for dim in value.shape], value.dtype.numpy)
            for index, value in self._outputs
        }

    def metrics(self) -> dict[str, float]:
        """Nothing to report."""
        return {}

    def close(self) -> None:
        """Nothing to release."""
