"""How much of a wanted value is left in another: the figures that nodes are compared by."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Signal", "compare"]


@dataclass(frozen=True)
class Signal:
    """max_abs: the largest difference. snr: power of the wanted value over that of the difference, dB: infinite where they are equal, minus
    infinity where the other is not finite and the wanted one is. cosine: of the angle between them."""

    max_abs: float
    snr: float
    cosine: float


def compare(got: NDArray[Any], wanted: NDArray[Any]) -> Signal:
    """Of two arrays of one shape. Where the wanted value is not finite (masked elements), nothing is compared."""
    a, b = got.astype(np.float64), wanted.astype(np.float64)
    finite = np.isfinite(b)
    if not np.isfinite(a[finite]).all():
        return Signal(float("inf"), float("-inf"), float("nan"))
    a, b = np.where(finite, a, 0.0), np.where(finite, b, 0.0)
    noise = a - b
    power, signal = float(np.square(noise).sum()), float(np.square(b).sum())
    snr = float("inf") if power == 0 else 10 * float(np.log10(max(signal, 1e-300) / power))
    lengths = float(np.sqrt(np.square(a).sum() * signal))
    cosine = float((a * b).sum()) / lengths if lengths > 0 else (1.0 if power == 0 else 0.0)
    return Signal(float(np.abs(noise).max(initial=0.0)), snr, min(cosine, 1.0))
