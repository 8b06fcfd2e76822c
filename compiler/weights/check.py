"""The check that every read goes through."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from mixplan.runtime.errors import CheckpointError

__all__ = ["check_finite"]


def check_finite(name: str, values: NDArray[Any], source: str) -> None:
    """CheckpointError where `values` of tensor `name` hold NaN or Inf, with their number."""
    # A sum is finite where all terms are (float64 cannot overflow from float32 terms): one pass, no mask in the common case.
    if np.isfinite(np.sum(values, dtype=np.float64)):
        return
    nan, inf = int(np.isnan(values).sum()), int(np.isinf(values).sum())
    if nan or inf:
        raise CheckpointError(
            f"tensor {name!r} of {source} holds {nan} NaN and {inf} Inf among {values.size} values",
            hint="The checkpoint is damaged or was saved from a diverged run: fetch or save it again.",
        )
