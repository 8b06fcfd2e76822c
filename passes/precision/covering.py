"""One scheme for weights that are stored as one: the narrowest that holds all of theirs without loss."""

from __future__ import annotations

from collections.abc import Sequence

from mixplan.passes.precision.schemes import Scheme, parse_scheme

__all__ = ["covering"]


def covering(schemes: Sequence[Scheme]) -> Scheme:
    """For schemes of even steps in groups of one size with f16 scales, or without scales; their activations are alike.

    A symmetric weight has minima too: minus its middle code times its scale. Codes of fewer bits are codes of more.
    """
    first = schemes[0]
    if all(scheme == first for scheme in schemes):
        return first
    if any(not scheme.weight.quantized for scheme in schemes):
        return parse_scheme("FP32")
    widest = max(schemes, key=lambda scheme: scheme.weight.bits)
    minimum = any(scheme.weight.has_minimum for scheme in schemes)
    return parse_scheme(f"{widest.name}:g{widest.group}{',min' if minimum else ''}")
