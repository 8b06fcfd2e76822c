"""Error compensation: a column's rounding error is made good, as far as can be, by the columns that are not yet rounded.

Frantar, Ashkboos, Hoefler, Alistarh: GPTQ, 2022 (after Hassibi and Stork's Optimal Brain Surgeon, 1993). With H = E[x x^T] and U the upper
Cholesky factor of its inverse, rounding column i of a row w to q changes each later column by -(w_i - q) / U_ii * U_i,later. Each group's
scale is chosen when its turn comes, for the row as it then is; the row scale of two-level formats comes from the row as it was.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from mixplan.compiler.scales import columns_weights, decode, encode, row_scales_of, search
from mixplan.runtime.formats import WeightFormat

__all__ = ["compensated"]

# Columns whose errors reach the later ones together.
_COLUMNS = 128


def compensated(fmt: WeightFormat, grouped: Tensor, factors: Sequence[Tensor], moments: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Codes [n, G, group], scales and zeros [n, G] of a weight's groups f32 [n, G, group] (padded columns at the end are 0).

    factors: see InputStatistics.factors; together they have as many columns as the weight, without padding. moments: f32 [K].
    """
    count, groups, group = grouped.shape
    weights = columns_weights(moments, group)
    rows = row_scales_of(fmt, grouped, weights)
    rest = grouped.reshape(count, groups * group).clone()
    scales, zeros = torch.empty(count, groups), torch.empty(count, groups)
    width = min(group, _COLUMNS)
    at = 0
    for factor in factors:
        stop = at + len(factor)
        for start in range(at, stop, width):
            end = min(start + width, stop)
            g = start // group
            block = rest[:, start:end].clone()
            if start % group == 0:
                found = search(fmt, rest[:, None, start : start + group], weights[:, g : g + 1], rows=rows, finer=True)
                scales[:, g : g + 1], zeros[:, g : g + 1] = found
            scale, zero = scales[:, g : g + 1], zeros[:, g : g + 1]
            inner = factor[start - at : end - at, start - at : end - at]
            errors = torch.empty(count, end - start)
            for i in range(end - start):
                column = block[:, i].reshape(count, 1, 1)
                error = (column - decode(fmt, column, scale, zero)).reshape(count) / inner[i, i]
                errors[:, i] = error
                block[:, i + 1 :].addr_(error, inner[i, i + 1 :], alpha=-1.0)
            # Each column as it was when its turn came.
            rest[:, start:end] = block
            if end < stop:
                rest[:, end:stop] -= errors @ factor[start - at : end - at, end - at :]
        at = stop
    whole = rest.reshape(count, groups, group)
    return encode(fmt, whole, scales, zeros), scales, zeros
