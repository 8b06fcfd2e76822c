"""Turns what a caller asks of a step into a checked, ordered one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from mixplan.runtime.errors import CapacityError, RequestError
from mixplan.runtime.kv_cache import Span

__all__ = ["Ints", "Logits", "Request", "Rows", "parse_request"]

Ints: TypeAlias = Sequence[int] | NDArray[np.integer[Any]]
Rows: TypeAlias = Literal["last", "all", "none"]
Logits: TypeAlias = Rows | Ints


class Request(msgspec.Struct, frozen=True):
    """A step of T tokens whose sequences stand one after the other, in order of first appearance."""

    token_ids: NDArray[np.int32]
    """[T]"""
    positions: NDArray[np.int32]
    """[T]"""
    logit_rows: NDArray[np.int32]
    """[R], into the tokens in this order; the rows come in the order that the caller asked for."""
    spans: tuple[Span, ...]
    """One for each sequence."""
    counts: NDArray[np.int64]
    """Tokens of each sequence."""


def parse_request(
    token_ids: Ints, positions: Ints, sequences: Ints, logits: Logits, *, vocab_size: int, context_length: int, max_step_tokens: int
) -> Request:
    """Check all of it (RequestError, or CapacityError for too many tokens) and order the tokens by sequence."""
    ids = _vector(token_ids, "token_ids")
    places = _vector(positions, "positions")
    owners = _vector(sequences, "sequences")
    tokens = len(ids)
    if not tokens == len(places) == len(owners):
        raise RequestError(f"A step needs as many positions and sequences as tokens; got {tokens} token_ids, {len(places)}, {len(owners)}.")
    if tokens == 0:
        raise RequestError("A step needs at least one token.")
    if tokens > max_step_tokens:
        raise CapacityError(
            f"The step has {tokens} tokens; this model was loaded with max_step_tokens={max_step_tokens}.",
            hint="Split it into several steps (Model.prefill does that), or compile the plan with a larger --max-step-tokens.",
        )
    _check_range(ids, "token id", vocab_size, f"vocab_size is {vocab_size}")
    _check_range(places, "position", context_length, f"context_length is {context_length}")
    rows = _rows(logits, tokens, max_step_tokens)

    starts = _run_starts(owners)
    if len(starts) > 1:
        _, first, inverse = np.unique(owners, return_index=True, return_inverse=True)
        if len(first) < len(starts):
            # Sequences alternate: put each one's tokens together, and keep the rows pointing at the same tokens.
            order = np.argsort(first[inverse], kind="stable")
            ids, places, owners = ids[order], places[order], owners[order]
            back = np.empty(tokens, np.int64)
            back[order] = np.arange(tokens)
            rows = None if rows is None else back[rows]
            starts = _run_starts(owners)
    ends = np.append(starts[1:], tokens)
    _check_consecutive(places, owners, starts)
    spans = tuple(
        Span(int(owner), int(start), int(last) + 1)
        for owner, start, last in zip(owners[starts], places[starts], places[ends - 1], strict=True)
    )
    return Request(
        token_ids=ids.astype(np.int32),
        positions=places.astype(np.int32),
        logit_rows=(ends - 1 if rows is None else rows).astype(np.int32),
        spans=spans,
        counts=ends - starts,
    )


def _vector(given: Ints, name: str) -> NDArray[np.int64]:
    try:
        array = np.asarray(given)
    except (ValueError, OverflowError):
        raise RequestError(f"{name} must be a flat list of integers; got one whose items differ in length.") from None
    if array.ndim != 1 or (array.dtype.kind not in "iu" and array.size):
        raise RequestError(f"{name} must be a flat list of integers (64 bit); got {array.dtype} of shape {list(array.shape)}.")
    if array.dtype == np.uint64 and array.size and int(array.max()) >= 1 << 63:
        raise RequestError(f"{name} has {int(array.max())}; at most 63 bits are allowed.")
    return array.astype(np.int64)


def _check_range(array: NDArray[np.int64], what: str, limit: int, because: str) -> None:
    low, high = int(array.min()), int(array.max())
    if low < 0 or high >= limit:
        bad = low if low < 0 else high
        raise RequestError(
            f"The step has {what} {bad} (at index {int(np.argmax(array == bad))}); allowed are 0 to {limit - 1}, since {because}."
        )


def _rows(logits: Logits, tokens: int, max_step_tokens: int) -> NDArray[np.int64] | None:
    """Indices of the caller's tokens, None for each sequence's last."""
    if isinstance(logits, str):
        if logits == "last":
            return None
        if logits == "all":
            return np.arange(tokens)
        if logits == "none":
            return np.empty(0, np.int64)
        raise RequestError(f"logits is {logits!r}; allowed are 'last', 'all', 'none' and a list of token indices.")
    rows = _vector(logits, "logits")
    if len(rows) > max_step_tokens:
        raise CapacityError(f"The step asks for {len(rows)} rows of logits; max_step_tokens is {max_step_tokens}.")
    if len(rows):
        _check_range(rows, "logits row", tokens, f"the step has {tokens} tokens")
    return rows


def _run_starts(owners: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.concatenate(([0], np.flatnonzero(owners[1:] != owners[:-1]) + 1))


def _check_consecutive(places: NDArray[np.int64], owners: NDArray[np.int64], starts: NDArray[np.int64]) -> None:
    jumps = np.diff(places) != 1
    jumps[starts[1:] - 1] = False
    if jumps.any():
        at = int(np.argmax(jumps))
        raise RequestError(
            f"Sequence {int(owners[at])} has position {int(places[at])} followed by {int(places[at + 1])}; "
            "the positions of a sequence in a step must be consecutive."
        )
