"""Bytes and operations of a step, for the shares of the machine's ceilings."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from benchmarks.compare.stacks import Stack

__all__ = ["Shape", "read_shape", "step_bytes"]

# Bits a weight of a linear layer, scales counted in, as each stack stores it: (layers, head).
_BITS = {
    "mixplan W4A8": (4.5, 8.0),
    "mixplan W4A16": (4.5, 8.0),
    "mixplan W8A8": (8.0, 8.0),
    "mixplan BF16": (16.0, 16.0),
    "llama.cpp Q4_0": (4.5, 8.5),
    "llama.cpp Q8_0": (8.5, 8.5),
    "llama.cpp bf16": (16.0, 16.0),
    "OpenVINO int4": (4.375, 8.0),
    "OpenVINO int8": (8.0, 8.0),
    "torch eager bf16": (16.0, 16.0),
    "torch compiled bf16": (16.0, 16.0),
    "torch eager fp32": (32.0, 32.0),
    "torch ao int8": (8.0, 8.0),
}


@dataclass(frozen=True)
class Shape:
    """What a Llama-shaped model multiplies: weights of the layers' linears, of the head; keys and values of a token and layer."""

    layers: int
    layer_weights: int
    head_weights: int
    kv_values: int
    query_values: int

    @property
    def operations_per_token(self) -> float:
        """Of a prompt, attention and the head (one row of it) left out: two per weight."""
        return 2.0 * self.layer_weights


def read_shape(checkpoint: Path) -> Shape:
    """From config.json."""
    config = json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))
    hidden, inner, heads = config["hidden_size"], config["intermediate_size"], config["num_attention_heads"]
    head_size = config.get("head_dim") or hidden // heads
    query, kv = heads * head_size, config["num_key_value_heads"] * head_size
    one = hidden * (query + 2 * kv) + query * hidden + 3 * hidden * inner
    layers = config["num_hidden_layers"]
    return Shape(layers, layers * one, hidden * config["vocab_size"], 2 * kv, query)


def step_bytes(stack: Stack, shape: Shape, context: int = 0, kv_bytes: int = 2) -> float:
    """Bytes that one decode step of one sequence must read: every weight of the layers and the head once, and the keys and values."""
    layer_bits, head_bits = _BITS[stack.name]
    weights = (shape.layer_weights * layer_bits + shape.head_weights * head_bits) / 8
    return weights + context * shape.kv_values * kv_bytes * shape.layers
