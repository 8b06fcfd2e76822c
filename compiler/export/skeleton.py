"""A copy of a module that holds shapes where the module holds weights.

Parameters become FakeTensors on the CPU: they take no memory, and every node's device is the CPU, so the graph has no device moves.
Buffers stay real float32 or integer tensors with their values, whatever device or half precision the module holds them in.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

__all__ = ["meta_parameters", "skeleton"]

M = TypeVar("M", bound=nn.Module)


@contextmanager
def meta_parameters() -> Iterator[None]:
    """Modules built inside get meta parameters but real buffers, so that values computed by constructors (inv_freq, ...) are kept."""
    original: Callable[..., Any] = nn.Module.register_parameter

    def register(self: nn.Module, name: str, param: nn.Parameter | None) -> None:
        if param is not None and param.device.type != "meta":
            param = nn.Parameter(param.detach().to("meta"), requires_grad=False)
        original(self, name, param)

    nn.Module.register_parameter = register
    try:
        yield
    finally:
        nn.Module.register_parameter = original


def skeleton(module: M) -> M:
    """Copy `module` in eval mode with fake float32 CPU parameters; the module itself is left as it is."""
    fake_mode = FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True)
    memo: dict[int, Any] = {}
    with fake_mode:
        for parameter in module.parameters():
            dtype = torch.float32 if parameter.is_floating_point() else parameter.dtype
            memo[id(parameter)] = nn.Parameter(torch.empty(parameter.shape, dtype=dtype, device="cpu"), requires_grad=False)
    for buffer in module.buffers():
        value = buffer.detach().to("cpu")
        memo[id(buffer)] = value.float() if value.is_floating_point() else value.clone()
    return copy.deepcopy(module, memo).eval()
