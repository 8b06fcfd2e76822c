"""A candidate for an attention layer: what each of its KV heads keeps, and how it scores."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from mixplan.runtime.kv_format import KvFormat

__all__ = ["KvChoice"]


@dataclass(frozen=True)
class KvChoice:
    """formats: of each KV head. scores: "f32" or "i8"."""

    formats: tuple[KvFormat, ...]
    scores: str = "f32"

    @property
    def usual(self) -> KvFormat:
        """What most heads keep; of equals the first."""
        return Counter(self.formats).most_common(1)[0][0]

    def __str__(self) -> str:
        """As `--kv-dtype` says it of one layer: "KV i8", "KV i8 but head 2 f16", "KV i8, i8 scores"."""
        others = [f"head {head} {held}" for head, held in enumerate(self.formats) if held != self.usual]
        text = f"KV {self.usual}" + (f" but {', '.join(others)}" if others else "")
        return text if self.scores == "f32" else f"{text}, {self.scores} scores"
