"""Norms, activation quantization, rotary embeddings."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from mixplan.targets.conformance.case import Case, Filled, Given, T, Tolerance, fixed

__all__ = ["norm_cases"]

_NORM = (Tolerance(1e-5, 1e-5),)
# A row's largest element may round to a scale one unit away, and one code in a hundred to its neighbour.
_CODES = (Tolerance(step=1.0, share=0.01), Tolerance(1e-5), Tolerance(1e-3, 5e-2))
_NORMED = (Tolerance(step=1.0, share=0.02), Tolerance(2e-5), Tolerance(1e-3, 5e-2))


def norm_cases() -> Iterator[Case]:
    """Of the norms, of what quantizes activations, and of rope."""
    rng = np.random.default_rng(3)
    for columns in (20, 100, 257):
        gamma, beta = (fixed(rng.standard_normal(columns)) for _ in range(2))
        x = Given((1, T, columns))
        yield Case("rms_norm", f"{columns} columns", (x, gamma), {"eps": 1e-6}, None, _NORM)
        yield Case("layer_norm", f"{columns} columns", (x, gamma, beta), {"eps": 1e-5}, None, _NORM)
        for group in (0, 32):
            label = f"{columns} columns, " + (f"groups of {group}" if group else "whole rows")
            yield Case("quantize_act", label, (x,), {"group": group}, None, _CODES)
            yield Case("rms_norm_quant", label, (x, gamma), {"eps": 1e-5, "group": group}, None, _NORMED)
            yield Case("layer_norm_quant", label, (x, gamma, beta), {"eps": 1e-5, "group": group}, None, _NORMED)
    yield Case("quantize_act", "zeros", (Given((1, T, 64), make=lambda s, rng: np.zeros(s)),), {"group": 32}, None, _CODES)
    heads = Given((1, T, 6, 20))
    yield Case("rms_norm", "heads of 20, no weight", (heads,), {"eps": 1e-6}, None, _NORM)
    yield Case("rms_norm", "heads of 20, constant weight", (heads, Filled(2.0, (20,))), {"eps": 1e-6}, None, _NORM)
    yield Case("layer_norm", "heads of 20, no bias", (heads, fixed(rng.standard_normal(20))), {"eps": 1e-5}, None, _NORM)
    yield Case("layer_norm", "heads of 20, bare", (heads,), {"eps": 1e-5}, None, _NORM)
    for style in ("half", "interleaved"):
        for turned in (12, 20):
            angles = (Given((1, T, turned)), Given((1, T, turned)))
            label = f"{style}, {turned} of 20 dims"
            yield Case("rope", label, (heads, *angles), {"style": style}, None, (Tolerance(1e-5, 1e-6),))
