"""What is measured: the same token ids for every stack, cut from one text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

__all__ = ["MEASURES", "Measure", "default_text", "figure", "quality_windows", "request", "token_ids"]

PROMPT = 128  # tokens of a prompt unless a measure says otherwise
WINDOWS, WINDOW = 40, 512


@dataclass(frozen=True)
class Measure:
    """One figure. kind: what the worker is asked; tokens: prompt length; sequences and steps as the kind uses them.

    options: for a family of stacks, settings to try in the same launch; the best counts, so that no peer is slowed by our choice.
    """

    name: str
    title: str
    kind: str
    unit: str
    tokens: int = PROMPT
    sequences: int = 1
    steps: int = 0
    times: int = 0
    options: Mapping[str, Sequence[Mapping[str, Any]]] = field(default_factory=dict)

    @property
    def more_is_better(self) -> bool:
        """Rates are, times and bytes are not."""
        return self.unit == "tok/s"


_FLASH = {"llama.cpp": ({}, {"flash_attention": 0})}
_BACKENDS = {"OpenVINO": ({}, {"backend": "SDPA"})}
_STREAMS = {"llama.cpp": ({"kv_unified": False, "flash_attention": 0}, {"kv_unified": False})}

MEASURES = (
    Measure("decode", "decode, context 128 to 256", "decode", "tok/s", steps=128, options=_BACKENDS),
    Measure("decode_4096", "decode, context 4096", "decode", "tok/s", tokens=4096, steps=32, options=_FLASH),
    Measure("prefill_512", "prefill 512", "prefill", "tok/s", tokens=512, times=4, options=_BACKENDS),
    Measure("prefill_2048", "prefill 2048", "prefill", "tok/s", tokens=2048, times=2, options=_BACKENDS),
    Measure("batch_16", "decode, 16 sequences", "batch", "tok/s", sequences=16, steps=24, options=_STREAMS),
    Measure("batch_32", "decode, 32 sequences", "batch", "tok/s", sequences=32, steps=16, options=_STREAMS),
    Measure("ttft_128", "time to first token, 128 tokens, warm", "prefill", "s", times=5, options=_BACKENDS),
    Measure("cold_start", "process start to first token, 128 tokens", "cold", "s"),
    Measure("peak_rss", "peak RSS, decode", "memory", "MB", steps=64),
)


def default_text() -> str:
    """The language reference that every CPython carries for `help()`: 460 kB of English with code in it, and nothing to download."""
    from pydoc_data import topics

    return "\n\n".join(topics.topics[name] for name in sorted(topics.topics))


def token_ids(checkpoint: Path, text: str) -> list[int]:
    """The text's ids by the checkpoint's own tokenizer."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(checkpoint / "tokenizer.json"))
    ids = list(tokenizer.encode(text, add_special_tokens=False).ids)
    needed = WINDOWS * WINDOW
    if len(ids) < needed:
        raise SystemExit(f"the text has {len(ids)} tokens; {needed} are needed ({WINDOWS} windows of {WINDOW})")
    return ids


def quality_windows(ids: Sequence[int], windows: int = WINDOWS) -> list[list[int]]:
    """The perplexity protocol: the first `windows` windows of 512 tokens, side by side, each a sequence of its own without BOS."""
    return [list(ids[at * WINDOW : (at + 1) * WINDOW]) for at in range(windows)]


def request(measure: Measure, ids: Sequence[int]) -> dict[str, Any]:
    """What the worker is asked for a measure of kind prefill, decode or batch. Sequences of a batch have prompts of their own."""
    if measure.kind == "prefill":
        return {"do": "prefill", "ids": list(ids[: measure.tokens]), "times": measure.times}
    if measure.kind == "decode":
        return {"do": "decode", "ids": list(ids[: measure.tokens]), "steps": measure.steps}
    prompts = [list(ids[at * measure.tokens : (at + 1) * measure.tokens]) for at in range(measure.sequences)]
    return {"do": "batch", "prompts": prompts, "steps": measure.steps}


def figure(measure: Measure, seconds: Sequence[float]) -> float:
    """The measure's figure from the times of its parts: steps are added up, since slow ones count too; of prompts the median counts."""
    if measure.kind == "prefill":
        middle = sorted(seconds)[len(seconds) // 2]
        return measure.tokens / middle if measure.unit == "tok/s" else middle
    return measure.sequences * len(seconds) / sum(seconds)
