"""Runs programs with torch and triton: on a GPU that no driver back end knows, or, without one, in Triton's interpreter on the CPU.

The interpreter is for tests: it computes what the kernels compute, thousands of times slower.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np

from mixplan.runtime.devices.gpu_backend import Pointer, Ready
from mixplan.runtime.devices.gpu_program import Kernel, Program
from mixplan.runtime.errors import CapacityError, MissingExtraError, UnsupportedError
from mixplan.runtime.hal import Array
from mixplan.targets.gpu.arch import JIT

__all__ = ["TorchBackend", "gpu_of_torch"]

_ROUNDS = 15
_TYPES = {
    "*fp32": "float32",
    "*fp64": "float64",
    "*fp16": "float16",
    "*i64": "int64",
    "*i32": "int32",
    "*i16": "int16",
    "*i8": "int8",
    "*u8": "uint8",
}


def gpu_of_torch() -> str:
    """The name of the GPU that torch would use, "" where there is none or no torch or triton."""
    try:
        torch: Any = importlib.import_module("torch")
        importlib.import_module("triton")
        return str(torch.cuda.get_device_name()) if torch.cuda.is_available() else ""
    except (ImportError, RuntimeError):
        return ""


class TorchBackend:
    """See Backend. interpret: run the kernels in Triton's interpreter, in this process's memory."""

    arch = JIT

    def __init__(self, interpret: bool) -> None:
        if interpret:
            if "triton" in sys.modules and not os.environ.get("TRITON_INTERPRET"):
                raise UnsupportedError(
                    "Triton was imported by this process to compile, so it cannot interpret any more.", hint="Set TRITON_INTERPRET=1."
                )
            os.environ["TRITON_INTERPRET"] = "1"
        try:
            self._torch: Any = importlib.import_module("torch")
            importlib.import_module("triton")
        except ImportError as error:
            raise MissingExtraError(f"Running GPU kernels by torch ({error})", "gpu") from error
        self._interpret = interpret
        self._device = "cpu" if interpret else "cuda"
        self.name = "triton's interpreter" if interpret else f"torch on {self._torch.cuda.get_device_name()}"

    def allocate(self, nbytes: int, what: str) -> Pointer:
        """See Backend.allocate."""
        try:
            pointer: Pointer = self._torch.zeros(-(-nbytes // 8) * 8, dtype=self._torch.uint8, device=self._device)
        except RuntimeError as error:
            raise CapacityError(f"The GPU has no {nbytes} bytes for {what}.", hint="Load with a smaller kv_tokens.") from error
        return pointer

    def upload(self, to: Any, offset: int, array: Array) -> None:
        """See Backend.upload."""
        if array.nbytes:
            data = self._torch.frombuffer(bytearray(array.tobytes()), dtype=self._torch.uint8)
            to[offset : offset + array.nbytes].copy_(data)

    def download(self, source: Any, offset: int, into: Array) -> None:
        """See Backend.download."""
        data = source[offset : offset + into.nbytes].cpu().numpy()
        into[...] = np.frombuffer(data.tobytes(), into.dtype).reshape(into.shape)

    def load(self, program: Program, binaries: memoryview) -> list[Any]:
        """The kernels' Python functions."""
        out = []
        for kernel in program.kernels:
            module, _, function = kernel.name.partition(":")
            out.append(getattr(importlib.import_module(f"mixplan.targets.gpu.kernels.{module}"), function or module))
        return out

    def prepare(self, loaded: Any, kernel: Kernel, grid: tuple[int, int, int], arguments: Sequence[tuple[Any, int] | int | None]) -> Ready:
        """See Backend.prepare."""
        given = [
            self._typed(argument, kind) if isinstance(argument, tuple) else argument
            for argument, kind in zip(arguments, kernel.types, strict=True)
        ]
        options: dict[str, Any] = dict(kernel.constants)
        if self._interpret:
            # The interpreter has no bfloat16 products; see kernels/common.py.
            if options.get("DOT") == "bf16":
                options["DOT"] = "bf16i"
        else:
            options |= {"num_warps": kernel.warps, "num_stages": kernel.stages, "enable_fp_fusion": True}
        return partial(loaded[grid], *given, **options)

    def _typed(self, argument: tuple[Any, int], kind: str) -> Any:
        memory, offset = argument
        dtype = getattr(self._torch, _TYPES[kind.removesuffix("!")])
        size = (memory.nbytes - offset) // dtype.itemsize * dtype.itemsize
        return memory[offset : offset + size].view(dtype)

    def graph(self, launches: Sequence[Ready]) -> Ready | None:
        """None: launches go through Triton's own launcher."""
        return None

    def seconds(self, launches: Sequence[Ready]) -> float:
        """See Backend.seconds; by the host's clock."""
        times = []
        for _ in range(1 if self._interpret else _ROUNDS):
            started = perf_counter()
            for launch in launches:
                launch()
            if not self._interpret:
                self._torch.cuda.synchronize()
            times.append(perf_counter() - started)
        return float(np.median(times))

    def close(self) -> None:
        """Memory goes with the last tensor."""
