"""The onnxruntime execution providers that the NPU device knows: their names, and the package that brings each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from mixplan.runtime.devices.npu_forms import WeightRules

__all__ = ["PROVIDERS", "Provider"]

_ALL = ("i8", "u8", "i4", "u4")


@dataclass(frozen=True)
class Provider:
    """`execution` is onnxruntime's name, `package` what to install, `options` what the provider is told unless the user says otherwise.

    weights: what it takes for quantized weights; where that stands is said with the rest of its rules, in targets/npu/providers.
    """

    name: str
    execution: str
    package: str
    weights: WeightRules
    options: Mapping[str, str] = field(default_factory=dict)


PROVIDERS: tuple[Provider, ...] = (
    Provider("cpu", "CPUExecutionProvider", "onnxruntime", WeightRules(_ALL, "block")),
    Provider("qnn", "QNNExecutionProvider", "onnxruntime-qnn", WeightRules(_ALL, "block"), {"backend_type": "htp"}),
    Provider(
        "vitisai",
        "VitisAIExecutionProvider",
        "onnxruntime-vitisai, which comes with Ryzen AI Software",
        WeightRules(("i8",), "tensor", zeros=False),
    ),
    Provider("cann", "CANNExecutionProvider", "onnxruntime-cann", WeightRules(("i8",), "tensor", zeros=False)),
    Provider("openvino", "OpenVINOExecutionProvider", "onnxruntime-openvino", WeightRules(_ALL, "block"), {"device_type": "NPU"}),
)
