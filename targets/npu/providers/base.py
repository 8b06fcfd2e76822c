"""The record of what an execution provider takes."""

from __future__ import annotations

from dataclasses import dataclass

from mixplan.runtime.devices.npu_forms import WeightRules
from mixplan.runtime.devices.npu_providers import PROVIDERS

__all__ = ["ACTIVATIONS", "Activation", "ProviderRules"]

_WEIGHTS = {one.name: one.weights for one in PROVIDERS}


@dataclass(frozen=True)
class Activation:
    """An integer type of activations: its element type, and whether 0 is in the middle of its range."""

    kind: str
    low: int
    high: int
    symmetric: bool


ACTIVATIONS: dict[str, Activation] = {
    "uint8": Activation("u8", 0, 255, False),
    "int8": Activation("i8", -127, 127, True),
    "uint16": Activation("u16", 0, 65535, False),
    "int16": Activation("i16", -32767, 32767, True),
}
"""The integer types that activations may have, by the name that users give."""


@dataclass(frozen=True)
class ProviderRules:
    """What a provider's documentation says that it takes.

    opset: the version of the ONNX operators. activations: the integer types, the first of them if nothing is said.
    quantized_outputs: whether a product counts as quantized only where its result is, too. source: where this stands.
    power_of_two: element types of activations whose scales must be powers of two. rough_sigmoid: its Sigmoid is off by more than rounding,
    so that SiLU is better made of Exp. integer_products: it multiplies integers by MatMulInteger.

    What it takes for weights, the device has to know too: see `weights`.
    """

    name: str
    opset: int
    activations: tuple[str, ...]
    quantized_outputs: bool
    source: str
    power_of_two: tuple[str, ...] = ()
    note: str = ""
    rough_sigmoid: bool = False
    integer_products: bool = False

    @property
    def weights(self) -> WeightRules:
        """What it takes for quantized weights."""
        return _WEIGHTS[self.name]
