"""The lowerings of all ops, by name."""

from __future__ import annotations

from collections.abc import Sequence

from mixplan.runtime.devices.npu_weights import node_weights
from mixplan.runtime.dtypes import DType
from mixplan.runtime.errors import OptionError
from mixplan.runtime.plan import Node, Value
from mixplan.targets.npu.lower.attention import ATTENTION
from mixplan.targets.npu.lower.base import Lowering
from mixplan.targets.npu.lower.elementwise import ELEMENTWISE
from mixplan.targets.npu.lower.embedding import EMBEDDING
from mixplan.targets.npu.lower.gated_linear import GATED_LINEAR
from mixplan.targets.npu.lower.grouped_linear import GROUPED_LINEAR
from mixplan.targets.npu.lower.indexing import INDEXING
from mixplan.targets.npu.lower.linear import LINEAR
from mixplan.targets.npu.lower.matmul import MATMUL
from mixplan.targets.npu.lower.norms import NORMS
from mixplan.targets.npu.lower.quantize import QUANTIZE
from mixplan.targets.npu.lower.reduce import REDUCE
from mixplan.targets.npu.lower.rope import ROPE
from mixplan.targets.npu.lower.shape import SHAPE
from mixplan.targets.npu.providers.base import ProviderRules

__all__ = ["LOWERINGS", "unsupported_reason"]

LOWERINGS: dict[str, Lowering] = {
    **ELEMENTWISE,
    **REDUCE,
    **SHAPE,
    **INDEXING,
    **MATMUL,
    **LINEAR,
    **GATED_LINEAR,
    **GROUPED_LINEAR,
    **EMBEDDING,
    **NORMS,
    **QUANTIZE,
    **ROPE,
    **ATTENTION,
}


def unsupported_reason(node: Node, values: Sequence[Value], rules: ProviderRules) -> str:
    """Why a node cannot be put into an ONNX model for a provider, "" where it can."""
    lowering = LOWERINGS.get(node.op)
    if lowering is None:
        return f"op {node.op!r} has no ONNX lowering"
    try:
        weights = node_weights(node, values)
    except OptionError as error:
        return f"a weight of a format that the NPU's lowering does not know: {error.message}"
    packed = {index for weight in weights for index in weight.values}
    if any(values[index].dtype is DType.bf16 for index in (*node.inputs, *node.outputs) if index >= 0 and index not in packed):
        return (
            "values of bf16, which onnxruntime does not hand over as numpy does; cast them to f32 on another target, as in --target cpu+npu"
        )
    return lowering.check(node, values, rules)
