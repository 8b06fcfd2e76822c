"""The reference device's KV storage: a pool of pages per attention layer, read and written through the step's block tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mixplan.runtime.dtypes import DType, bf16_to_f32, f32_to_bf16
from mixplan.runtime.errors import CapacityError, InternalError
from mixplan.runtime.float8 import decode, encode
from mixplan.runtime.hal import Array, CacheSpec
from mixplan.runtime.kv_format import KvCodes, KvFloats, dequantize, quantize
from mixplan.runtime.ops import StepContext
from mixplan.runtime.plan import AttentionLayer

__all__ = ["ReferenceCache"]


class ReferenceCache:
    """Keys and values of the layers given, each [pages, page_size, kv_heads, dim], in their heads' formats; read back as float32."""

    def __init__(self, layers: Mapping[int, AttentionLayer], spec: CacheSpec) -> None:
        self._page_size = spec.page_size
        self._tables: NDArray[np.int32] | None = None
        self._pools: dict[int, tuple[_Pool, _Pool]] = {}
        rows = (spec.pages, spec.page_size)
        try:
            for number, layer in layers.items():
                formats = [held for held, count in layer.runs for _ in range(count)]
                self._pools[number] = (
                    _Pool([held.keys for held in formats], rows, layer.k_dim),
                    _Pool([held.values for held in formats], rows, layer.v_dim),
                )
        except MemoryError:
            raise CapacityError(
                f"There is no memory for {spec.pages * spec.page_size} tokens in the KV cache.", hint="Load with a smaller kv_tokens."
            ) from None

    @property
    def nbytes(self) -> int:
        """Bytes set aside; here every code has a byte."""
        return sum(pool.nbytes for pair in self._pools.values() for pool in pair)

    def shapes(self, layer: int) -> tuple[tuple[int, int], tuple[int, int]]:
        """Heads and size of a layer's keys, and of its values."""
        keys, values = self._pools[layer]
        return keys.shape, values.shape

    def begin(self, block_tables: NDArray[np.int32]) -> None:
        """Use these block tables until the next step."""
        self._tables = block_tables

    def append(self, layer: int, k: Array, v: Array, step: StepContext) -> None:
        """Store keys [T, kv_heads, k_dim] and values [T, kv_heads, v_dim] at each token's (sequence, position)."""
        keys, values = self._pools[layer]
        pages = self._table()[step.sequences, step.positions // self._page_size]
        if pages.size and int(pages.min()) < 0:
            raise InternalError(f"Attention layer {layer} was asked to store a token that has no page.")
        rows = step.positions % self._page_size
        keys.store(k, pages, rows)
        values.store(v, pages, rows)

    def read(self, layer: int, sequence: int, length: int) -> tuple[Array, Array]:
        """Keys [length, kv_heads, k_dim] and values [length, kv_heads, v_dim] of slot `sequence`, float32."""
        keys, values = self._pools[layer]
        pages = self._table()[sequence, : -(-length // self._page_size)]
        return keys.read(pages, length), values.read(pages, length)

    def close(self) -> None:
        """Release the storage."""
        self._pools.clear()

    def _table(self) -> NDArray[np.int32]:
        if self._tables is None:
            raise InternalError("The KV cache was used outside of a step.")
        return self._tables


class _Pool:
    """Keys or values of a layer: for each format, its heads and arrays [pages, page_size, heads, ...]."""

    def __init__(self, heads: Sequence[DType | KvCodes | KvFloats], rows: tuple[int, int], dim: int) -> None:
        self.shape = (len(heads), dim)
        self._parts: list[tuple[DType | KvCodes | KvFloats, NDArray[np.intp], tuple[NDArray[Any], ...]]] = []
        for held in dict.fromkeys(heads):
            of = np.flatnonzero([one == held for one in heads])
            lead = (*rows, len(of))
            arrays: tuple[NDArray[Any], ...]
            if isinstance(held, KvCodes):
                parameters = (*lead, held.groups(dim))
                arrays = (np.zeros((*lead, dim), np.uint8), np.zeros(parameters, np.float16), np.zeros(parameters, np.float16))
            else:
                arrays = (np.zeros((*lead, dim), np.uint8 if isinstance(held, KvFloats) else held.numpy),)
            self._parts.append((held, of, arrays))

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for _, _, arrays in self._parts for array in arrays)

    def store(self, x: Array, pages: NDArray[np.int32], rows: NDArray[np.int32]) -> None:
        for held, of, arrays in self._parts:
            for array, part in zip(arrays, _narrow(x[:, of], held), strict=True):
                array[pages, rows] = part

    def read(self, pages: NDArray[np.int32], length: int) -> Array:
        out = np.empty((length, *self.shape), np.float32)
        for held, of, arrays in self._parts:
            out[:, of] = _widen([array[pages].reshape(-1, *array.shape[2:])[:length] for array in arrays], held)
        return out


def _narrow(x: Array, held: DType | KvCodes | KvFloats) -> tuple[NDArray[Any], ...]:
    if isinstance(held, KvCodes):
        return quantize(x, held)
    if isinstance(held, KvFloats):
        return (encode(x),)
    with np.errstate(over="ignore"):
        return (f32_to_bf16(x) if held is DType.bf16 else x.astype(held.numpy),)


def _widen(parts: Sequence[NDArray[Any]], held: DType | KvCodes | KvFloats) -> Array:
    if isinstance(held, KvCodes):
        return dequantize(parts[0], parts[1], parts[2], held)
    if isinstance(held, KvFloats):
        return decode(parts[0])
    return bf16_to_f32(parts[0]) if held is DType.bf16 else parts[0].astype(np.float32, copy=False)
