"""What a lowering is, and checks that several of them share. Nothing here needs onnx: what can be lowered is asked without it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from mixplan.runtime.dtypes import DType
from mixplan.runtime.ops import op_spec
from mixplan.runtime.plan import Node, Value
from mixplan.targets.npu.lower.floats8 import floats8_reason
from mixplan.targets.npu.providers.base import ProviderRules

if TYPE_CHECKING:
    from mixplan.targets.npu.graph import Graph

__all__ = ["ARITHMETIC", "Check", "Emit", "Lowering", "attrs_of", "float_check", "no_check", "only_dtypes", "static_axes"]

Emit: TypeAlias = "Callable[[Graph, Node], None]"
Check: TypeAlias = Callable[[Node, Sequence[Value], ProviderRules], str]

ARITHMETIC = (DType.f32, DType.i64, DType.i32)
"""What ONNX operators compute with; smaller integers are only held and cast."""


def no_check(node: Node, values: Sequence[Value], rules: ProviderRules) -> str:
    """Every node of the op can be lowered."""
    return ""


@dataclass(frozen=True)
class Lowering:
    """`emit` adds an op's node to a graph; `check` says why it could not, "" where it can."""

    emit: Emit
    check: Check = no_check


def attrs_of(node: Node) -> dict[str, Any]:
    """A node's attributes with the op's defaults."""
    return {**op_spec(node.op).signature.defaults, **node.attrs}


def float_check(node: Node, values: Sequence[Value], rules: ProviderRules) -> str:
    """What stands against a product of floats."""
    if attrs_of(node)["activation_dtype"] == "e4m3":
        return floats8_reason(rules)
    return ""


def only_dtypes(*dtypes: DType) -> Check:
    """A check that all inputs are of these dtypes."""

    def check(node: Node, values: Sequence[Value], rules: ProviderRules) -> str:
        for index in node.inputs:
            if index >= 0 and values[index].dtype not in dtypes:
                return f"{node.op} of {values[index].dtype.value}; the NPU takes {', '.join(dtype.value for dtype in dtypes)}"
        return ""

    return check


def static_axes(values: Sequence[Value], index: int, axes: Sequence[int]) -> str:
    """Why an op cannot work along these axes: the tokens of a step are padded to a bucket, so one that mixes them would see the padding."""
    shape = values[index].shape
    if any(not isinstance(shape[axis], int) for axis in axes):
        return (
            "it works along the step's tokens, of which there are more on the NPU: they are padded to a bucket; give it another target, "
            "as in --target cpu+npu"
        )
    return ""
