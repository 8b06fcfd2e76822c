"""The shape of one step, as far as its cost depends on it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from mixplan.runtime.errors import OptionError

__all__ = ["Work"]


@dataclass(frozen=True)
class Work:
    """`spans` has, for each sequence of the step, (start, stop): its new tokens' positions. `rows` is the number of logit rows wanted."""

    spans: tuple[tuple[int, int], ...]
    rows: int

    def __post_init__(self) -> None:
        if not self.spans or any(not 0 <= start < stop for start, stop in self.spans) or not 0 <= self.rows <= self.tokens:
            raise OptionError(
                f"A step of spans {self.spans} with {self.rows} rows cannot be: each span is (start, stop), 0 <= start < stop."
            )

    @classmethod
    def decode(cls, context: int, batch: int = 1) -> Work:
        """One new token in each of `batch` sequences that hold `context` tokens before it."""
        return cls(((context, context + 1),) * batch, batch)

    @classmethod
    def prefill(cls, tokens: int, start: int = 0) -> Work:
        """`tokens` of one prompt after `start` that are stored; one row of logits."""
        return cls(((start, start + tokens),), 1)

    @cached_property
    def tokens(self) -> int:
        """T: tokens of the step."""
        return sum(stop - start for start, stop in self.spans)

    def attended(self, window: int = 0, mask: str = "causal") -> int:
        """Pairs of a new token and a position that it attends to, over all sequences. window 0 is none; see the op `attention`."""
        return sum(_pairs(start, stop, window, mask) for start, stop in self.spans)

    def positions_read(self, window: int = 0, mask: str = "causal") -> int:
        """Cached positions that the step must read at least once, its own new tokens counted in, over all sequences."""
        return sum(stop - _first(start, window, mask) for start, stop in self.spans)


def _first(position: int, window: int, mask: str) -> int:
    """The first position that the token at `position` attends to."""
    if window == 0:
        return 0
    return position // window * window if mask == "chunked" else max(0, position - window + 1)


def _pairs(start: int, stop: int, window: int, mask: str) -> int:
    if window == 0 or stop <= window:
        return (stop * (stop + 1) - start * (start + 1)) // 2
    return sum(position - _first(position, window, mask) + 1 for position in range(start, stop))
