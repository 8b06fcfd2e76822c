"""Windows of text, and the batches in which they go through a graph."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from mixplan.compiler.frontends.base import Captured
from mixplan.runtime.errors import RequestError

__all__ = ["Batch", "batches", "text_windows"]


@dataclass(frozen=True)
class Batch:
    """Whole windows, laid one after the other into one step. `indices` are the windows' numbers, `lengths` their tokens."""

    indices: tuple[int, ...]
    lengths: tuple[int, ...]
    ids: Tensor

    @property
    def tokens(self) -> int:
        """T: tokens of the step."""
        return int(self.ids.numel())

    @cached_property
    def inputs(self) -> dict[str, Tensor]:
        """The graph's placeholders: every window starts at position 0; logits are wanted of every token."""
        positions = torch.cat([torch.arange(length) for length in self.lengths])
        lengths = torch.cat([torch.full((length,), length) for length in self.lengths])
        return {
            "token_ids": self.ids[None],
            "position_ids": positions[None],
            "sequence_lengths": lengths[None],
            "logit_rows": torch.arange(self.tokens),
        }


def batches(windows: Sequence[Sequence[int]] | Tensor, batch_tokens: int, vocab_size: int | None = None) -> list[Batch]:
    """Consecutive windows of one length together, as many as `batch_tokens` allow, at least one.

    RequestError for no windows, empty ones, and, where the vocabulary is known, for ids outside it.
    """
    rows = [torch.as_tensor(window, dtype=torch.long).reshape(-1) for window in windows]
    if not rows or any(row.numel() == 0 for row in rows):
        raise RequestError(
            f"{len(rows)} windows were given, of which {sum(row.numel() == 0 for row in rows)} are empty; at least one token."
        )
    least, most = min(int(row.min()) for row in rows), max(int(row.max()) for row in rows)
    if least < 0 or (vocab_size is not None and most >= vocab_size):
        raise RequestError(f"Token ids run from {least} to {most}; allowed are 0 to {'...' if vocab_size is None else vocab_size - 1}.")
    return list(_grouped(rows, batch_tokens))


def _grouped(rows: Sequence[Tensor], batch_tokens: int) -> Iterator[Batch]:
    start = 0
    while start < len(rows):
        length = rows[start].numel()
        stop = start + 1
        while stop < len(rows) and rows[stop].numel() == length and (stop + 1 - start) * length <= batch_tokens:
            stop += 1
        yield Batch(tuple(range(start, stop)), (length,) * (stop - start), torch.cat(list(rows[start:stop])))
        start = stop


def text_windows(captured: Captured, text: str, *, tokens: int, length: int) -> Tensor:
    """The first `tokens` tokens of a text as windows i64 [W, length] without overlap; a text shorter than one window is a shorter one.

    The text is tokenized once, as it stands (no special tokens are added). RequestError where the model has no tokenizer, where windows are
    longer than its context, and for a text of fewer than two tokens.
    """
    from tokenizers import Tokenizer

    context = captured.model.context_length
    if not 2 <= length <= context:
        raise RequestError(f"Windows of {length} tokens were asked for; allowed are 2 to {context}, the model's context.")
    if "tokenizer.json" not in captured.files:
        raise RequestError("The model has no tokenizer, so a text cannot be used.", hint="Give token ids from Python.")
    ids = Tokenizer.from_str(captured.files["tokenizer.json"].decode()).encode(text, add_special_tokens=False).ids
    if len(ids) < 2:
        raise RequestError(f"The text has {len(ids)} tokens; at least 2 are needed.")
    length = min(length, len(ids))
    count = max(min(tokens, len(ids)) // length, 1)
    return torch.tensor(ids[: count * length]).reshape(count, length)
