"""What the attention of a region's ONNX model is given: past keys and values, and a bias that says which of them each query sees."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mixplan.runtime.devices.npu_buckets import Bucket
from mixplan.runtime.devices.npu_names import DISTANCE, Mask, layer_names
from mixplan.runtime.devices.reference_kv import ReferenceCache
from mixplan.runtime.hal import Array, Step

__all__ = ["HIDDEN", "Past", "attention_inputs", "past_of"]

HIDDEN = -30000.0
"""Added to the score of a key that a query does not see. Within fp16; exp of it is 0."""


@dataclass(frozen=True)
class Past:
    """For each sequence of a step: its slot, and the tokens that it had before it."""

    slots: tuple[int, ...]
    lengths: tuple[int, ...]

    @property
    def tokens(self) -> int:
        """L, of all sequences."""
        return sum(self.lengths)


def past_of(step: Step) -> Past:
    """A sequence's tokens stand together in a step, and the first one's position is how many it had before."""
    slots, first = np.unique(step.sequences, return_index=True)
    return Past(tuple(slots.tolist()), tuple(step.positions[first].tolist()))


def attention_inputs(
    step: Step,
    past: Past,
    bucket: Bucket,
    cache: ReferenceCache,
    layers: dict[int, np.dtype[np.generic]],
    masks: Sequence[Mask],
    alibi: bool,
) -> dict[str, Array]:
    """The model's inputs of these names, padded to the bucket. `layers`: the dtype of each one's keys and values."""
    inputs: dict[str, Array] = {}
    for layer, dtype in layers.items():
        pieces = [cache.read(layer, slot, length) for slot, length in zip(past.slots, past.lengths, strict=True) if length]
        for which, (name, shape) in enumerate(zip(layer_names(layer)[:2], cache.shapes(layer), strict=True)):
            inputs[name] = _together((piece[which] for piece in pieces), (bucket.past, *shape), dtype)
    owners, places = _keys(step, past, bucket)
    queries = np.full(bucket.tokens, -2, np.int64)
    queries[: step.tokens] = step.sequences
    at = np.zeros(bucket.tokens, np.int64)
    at[: step.tokens] = step.positions
    distance = at[:, None] - places[None, :]
    own = (queries[:, None] == owners[None, :]) & (distance >= 0)
    # A token that is padding sees itself alone: a row that sees nothing could become nan, and its value reach others as 0 * nan.
    spare = np.arange(step.tokens, bucket.tokens)
    for mask in masks:
        seen = own & _visible(mask, at, places, distance)
        seen[spare, bucket.past + spare] = True
        inputs[mask.name] = np.where(seen, np.float32(0), np.float32(HIDDEN))
    if alibi:
        inputs[DISTANCE] = np.where(own, distance, 0).astype(np.float32)
    return inputs


def _together(pieces: Iterable[Array], shape: tuple[int, ...], dtype: np.dtype[np.generic]) -> Array:
    out = np.zeros(shape, dtype)
    start = 0
    for piece in pieces:
        out[start : start + len(piece)] = piece
        start += len(piece)
    return out


def _keys(step: Step, past: Past, bucket: Bucket) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Slot and position of every key, [S]; slot -1 where there is only padding."""
    owners = np.full(bucket.past + bucket.tokens, -1, np.int64)
    places = np.zeros(bucket.past + bucket.tokens, np.int64)
    start = 0
    for slot, length in zip(past.slots, past.lengths, strict=True):
        owners[start : start + length] = slot
        places[start : start + length] = np.arange(length)
        start += length
    owners[bucket.past : bucket.past + step.tokens] = step.sequences
    places[bucket.past : bucket.past + step.tokens] = step.positions
    return owners, places


def _visible(mask: Mask, at: NDArray[np.int64], places: NDArray[np.int64], distance: NDArray[np.int64]) -> NDArray[np.bool_]:
    if not mask.width:
        return np.ones_like(distance, np.bool_)
    if mask.kind == "chunk":
        return np.asarray(at[:, None] // mask.width == places[None, :] // mask.width)
    return np.asarray(distance < mask.width)
