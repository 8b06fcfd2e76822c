"""Numbers rounded to 8-bit floats, e4m3: ONNX has them as an element type from opset 19 on, and casts to nearest even, saturating."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mixplan.runtime.errors import UnsupportedError
from mixplan.targets.npu.providers.base import ProviderRules

if TYPE_CHECKING:
    from mixplan.targets.npu.graph import Graph

__all__ = ["as_floats8", "floats8_reason", "rows_as_floats8"]

_OPSET = 19
_LARGEST, _LEAST = 448.0, 2.0**-100


def floats8_reason(rules: ProviderRules) -> str:
    """Why a provider's models have no 8-bit floats, "" where they may."""
    if rules.opset >= _OPSET:
        return ""
    return f"8-bit floats, which ONNX has from opset {_OPSET} on; the provider {rules.name} takes {rules.opset} ({rules.source})"


def as_floats8(g: Graph, x: str) -> str:
    """x f32, each number rounded. UnsupportedError where the provider's opset has no such type."""
    if reason := floats8_reason(g.rules):
        raise UnsupportedError(f"A value cannot be rounded for the NPU: {reason}.", hint="Give --kv-dtype f16, i8 or i4.")
    return g.cast(g.cast(x, "f8"), "f32")


def rows_as_floats8(g: Graph, x: str, rank: int) -> str:
    """Rows x f32 [.., K], each with a scale that makes its largest number 448; see `runtime.float8.round_rows`."""
    largest = g.reduce("ReduceMax", g.op("Abs", x), [rank - 1], keepdims=True)
    scale = g.op("Where", g.op("Less", largest, g.number(_LEAST)), g.number(1.0), g.op("Div", largest, g.number(_LARGEST)))
    return g.op("Mul", as_floats8(g, g.op("Mul", x, g.op("Reciprocal", scale))), scale)
