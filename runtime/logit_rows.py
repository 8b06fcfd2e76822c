"""The logits of a step, as sampling looks at them: whole rows, and what the device already knows of them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from mixplan.runtime.errors import InternalError

__all__ = ["MAXIMA_BLOCK", "LogitRows", "finite_best"]

MAXIMA_BLOCK = 64
"""Columns for each of which `LogitRows.maxima` has the largest logit."""


class LogitRows:
    """Logits, float32 [R, V], and the largest of each row. The arrays are the device's own, valid until the next step."""

    __slots__ = ("_best", "maxima", "rows")

    def __init__(self, rows: NDArray[np.float32], best: Sequence[int] | None = None, maxima: NDArray[np.float32] | None = None) -> None:
        self.rows = rows
        """[R, V]"""
        self.maxima = maxima
        """[R, V/64 rounded up], the largest logit of each 64 columns; None where the device did not look for them."""
        self._best = best

    @property
    def best(self) -> Sequence[int]:
        """For each row the first column of its largest logit; -1 where that is not a finite number."""
        if self._best is None:
            columns = self.rows.argmax(axis=1)
            top = np.take_along_axis(self.rows, columns[:, None], axis=1)[:, 0]
            self._best = np.where(np.isfinite(top), columns, -1).tolist()
        return self._best


def finite_best(rows: LogitRows) -> Sequence[int]:
    """The most probable token of each row; InternalError where its logit is not a finite number."""
    for row, best in enumerate(rows.best):
        if best < 0:
            top = float(rows.rows[row].max())
            raise InternalError(f"The logits hold {top} as the largest of row {row}; a kernel of the plan computed no number.")
    return rows.best
