"""Statistics of tensors that are seen part by part: every record is made of one part by `of` and joined by `merge`."""

from __future__ import annotations

from mixplan.passes.profiling.channels import OUTLIER_RATIO, Channels
from mixplan.passes.profiling.heads import HeadRanges
from mixplan.passes.profiling.histogram import LogHistogram
from mixplan.passes.profiling.moments import Moments
from mixplan.passes.profiling.rounding import rounding_snr
from mixplan.passes.profiling.runs import LONG_RUN, ZeroRuns
from mixplan.passes.profiling.tensor_stats import TensorStats

__all__ = ["LONG_RUN", "OUTLIER_RATIO", "Channels", "HeadRanges", "LogHistogram", "Moments", "TensorStats", "ZeroRuns", "rounding_snr"]
