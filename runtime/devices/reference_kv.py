"""The reference device's KV storage: a pool of pages per attention layer, read and written through the step's block tables."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from mixplan.runtime.dtypes import DType, bf16_to_f32, f32_to_bf16
from mixplan.runtime.errors import CapacityError, InternalError
from mixplan.runtime.hal import Array, CacheSpec
from mixplan.runtime.ops import StepContext
from mixplan.runtime.plan import AttentionLayer

__all__ = ["ReferenceCache"]


class ReferenceCache:
    """Keys and values of the layers given, each [pages, page_size, kv_heads, dim], in the layer's dtype; read back as float32."""

    def __init__(self, layers: Mapping[int, AttentionLayer], spec: CacheSpec) -> None:
        self._page_size = spec.page_size
        self._tables: NDArray[np.int32] | None = None
        self._pools: dict[int, tuple[DType, Array, Array]] = {}
        try:
            for number, layer in layers.items():
                head = (spec.pages, spec.page_size, layer.kv_heads)
                keys, values = (np.zeros((*head, dim), layer.dtype.numpy) for dim in (layer.k_dim, layer.v_dim))
                self._pools[number] = (layer.dtype, keys, values)
        except MemoryError:
            raise CapacityError(
                f"There is no memory for {spec.pages * spec.page_size} tokens in the KV cache.", hint="Load with a smaller kv_tokens."
            ) from None

    @property
    def nbytes(self) -> int:
        """Bytes set aside."""
        return sum(keys.nbytes + values.nbytes for _, keys, values in self._pools.values())

    def begin(self, block_tables: NDArray[np.int32]) -> None:
        """Use these block tables until the next step."""
        self._tables = block_tables

    def append(self, layer: int, k: Array, v: Array, step: StepContext) -> None:
        """Store keys [T, kv_heads, k_dim] and values [T, kv_heads, v_dim] at each token's (sequence, position)."""
        dtype, keys, values = self._pools[layer]
        pages = self._table()[step.sequences, step.positions // self._page_size]
        if pages.size and int(pages.min()) < 0:
            raise InternalError(f"Attention layer {layer} was asked to store a token that has no page.")
        rows = step.positions % self._page_size
        keys[pages, rows] = _narrow(k, dtype)
        values[pages, rows] = _narrow(v, dtype)

    def read(self, layer: int, sequence: int, length: int) -> tuple[Array, Array]:
        """Keys [length, kv_heads, k_dim] and values [length, kv_heads, v_dim] of slot `sequence`, float32."""
        dtype, keys, values = self._pools[layer]
        pages = self._table()[sequence, : -(-length // self._page_size)]
        return _widen(_rows(keys, pages, length), dtype), _widen(_rows(values, pages, length), dtype)

    def close(self) -> None:
        """Release the storage."""
        self._pools.clear()

    def _table(self) -> NDArray[np.int32]:
        if self._tables is None:
            raise InternalError("The KV cache was used outside of a step.")
        return self._tables


def _rows(pool: Array, pages: NDArray[np.int32], length: int) -> Array:
    return pool[pages].reshape(-1, *pool.shape[2:])[:length]


def _narrow(x: Array, dtype: DType) -> Array:
    return f32_to_bf16(x) if dtype is DType.bf16 else x.astype(dtype.numpy)


def _widen(x: Array, dtype: DType) -> Array:
    return bf16_to_f32(x) if dtype is DType.bf16 else x.astype(np.float32, copy=False)
