"""The stacks that are compared: what runs them, on which form of the checkpoint, with which settings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["STACKS", "Stack", "chosen"]


@dataclass(frozen=True)
class Stack:
    """name as reports print it. family: whose it is. width: of the weights, in bits. model: its path below the work folder.

    worker: a module of benchmarks/compare/workers, or a script's path. activations: what the products multiply by ("int8", "bf16" or
    "fp32"), which says the peak that counts. skip: measures that it cannot do. slow: only run where asked for. compile: a plan's options.
    """

    name: str
    family: str
    width: int
    activations: str
    worker: str
    model: str
    config: Mapping[str, Any] = field(default_factory=dict)
    skip: tuple[str, ...] = ()
    slow: bool = False
    compile: tuple[str, ...] = ()


def _torch(name: str, config: Mapping[str, Any], width: int, activations: str, *, slow: bool = False, skip: tuple[str, ...] = ()) -> Stack:
    return Stack(f"torch {name}", "torch", width, activations, "torch_eager", "checkpoint", config, skip, slow)


STACKS = (
    Stack("mixplan W4A8", "mixplan", 4, "int8", "mixplan", "mixplan/W4A8.plan", compile=("--scheme", "W4A8")),
    Stack("llama.cpp Q4_0", "llama.cpp", 4, "int8", "llama", "llama/Q4_0.gguf"),
    Stack("OpenVINO int4", "OpenVINO", 4, "int8", "openvino", "openvino/int4"),
    Stack("mixplan W8A8", "mixplan", 8, "int8", "mixplan", "mixplan/W8A8.plan", compile=("--scheme", "W8A8")),
    Stack("llama.cpp Q8_0", "llama.cpp", 8, "int8", "llama", "llama/Q8_0.gguf"),
    Stack("OpenVINO int8", "OpenVINO", 8, "int8", "openvino", "openvino/int8"),
    Stack("mixplan BF16", "mixplan", 16, "bf16", "mixplan", "mixplan/BF16.plan", compile=("--scheme", "BF16")),
    Stack("llama.cpp bf16", "llama.cpp", 16, "bf16", "llama", "llama/BF16.gguf"),
    _torch("eager bf16", {"dtype": "bf16"}, 16, "bf16"),
    _torch("eager fp32", {"dtype": "fp32"}, 32, "fp32"),
    _torch("ao int8", {"dtype": "bf16", "weights": "int8"}, 8, "bf16"),
    _torch("compiled bf16", {"dtype": "bf16", "compile": "prefill"}, 16, "bf16", slow=True, skip=("batch_16", "batch_32", "cold_start")),
    Stack("mixplan W4A16", "mixplan", 4, "fp32", "mixplan", "mixplan/W4A16.plan", slow=True, compile=("--scheme", "W4A16")),
)


def chosen(names: Iterable[str], *, slow: bool = False) -> tuple[Stack, ...]:
    """The stacks whose name contains one of `names` (all of them for none), the slow ones only where asked or named."""
    wanted = [name.lower() for name in names]
    found = tuple(s for s in STACKS if any(n in s.name.lower() for n in wanted) or (not wanted and (slow or not s.slow)))
    unknown = [name for name in wanted if not any(name in s.name.lower() for s in STACKS)]
    if unknown:
        raise SystemExit(f"no stack is called {', '.join(unknown)}; there are: {', '.join(s.name for s in STACKS)}")
    return found
