"""The onnxruntime execution providers that the NPU device knows: their names, and the package that brings each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["PROVIDERS", "Provider"]


@dataclass(frozen=True)
class Provider:
    """`execution` is onnxruntime's name, `package` what to install, `options` what the provider is told unless the user says otherwise."""

    name: str
    execution: str
    package: str
    options: Mapping[str, str] = field(default_factory=dict)


PROVIDERS: tuple[Provider, ...] = (
    Provider("cpu", "CPUExecutionProvider", "onnxruntime"),
    Provider("qnn", "QNNExecutionProvider", "onnxruntime-qnn", {"backend_type": "htp"}),
    Provider("vitisai", "VitisAIExecutionProvider", "onnxruntime-vitisai, which comes with Ryzen AI Software"),
    Provider("cann", "CANNExecutionProvider", "onnxruntime-cann"),
    Provider("openvino", "OpenVINOExecutionProvider", "onnxruntime-openvino", {"device_type": "NPU"}),
)
