"""Weights of a module in memory."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from mixplan.compiler.weights.check import check_finite
from mixplan.runtime.errors import CheckpointError

__all__ = ["ModuleWeights"]

_NAMES = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.float64: "F64", torch.int64: "I64", torch.int32: "I32"}


class ModuleWeights:
    """The parameters of `module` (on any device, in any floating type), converted one at a time."""

    def __init__(self, module: nn.Module) -> None:
        self._tensors: dict[str, Tensor] = {name: p.detach() for name, p in module.named_parameters()}

    def names(self) -> list[str]:
        """Parameter names, the first one of tied parameters only."""
        return list(self._tensors)

    def shape(self, name: str) -> tuple[int, ...]:
        """The tensor's shape."""
        return tuple(self._tensor(name).shape)

    def dtype(self, name: str) -> str:
        """The element type in safetensors' spelling."""
        dtype = self._tensor(name).dtype
        return _NAMES.get(dtype, str(dtype).removeprefix("torch."))

    def read(self, name: str) -> NDArray[np.float32]:
        """The whole tensor as float32."""
        return self._convert(name, self._tensor(name))

    def read_rows(self, name: str, start: int, stop: int) -> NDArray[np.float32]:
        """Rows [start, stop)."""
        return self._convert(name, self._tensor(name)[start:stop])

    def close(self) -> None:
        """Let go of the module's tensors."""
        self._tensors = {}

    def _tensor(self, name: str) -> Tensor:
        if name not in self._tensors:
            raise CheckpointError(f"the module has no parameter {name!r}")
        return self._tensors[name]

    def _convert(self, name: str, tensor: Tensor) -> NDArray[np.float32]:
        if tensor.device.type == "meta":
            raise CheckpointError(f"parameter {name!r} is on the meta device and has no values", hint="Load the weights before compiling.")
        values: NDArray[np.float32] = tensor.float().cpu().contiguous().numpy()
        check_finite(name, values, "the module in memory")
        return values
