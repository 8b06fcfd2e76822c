"""What the requests of a benchmark are: prompts of mixed lengths, from a text, a trace, or drawn from the plan's vocabulary."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mixplan.runtime.bench.trace import TraceLine
from mixplan.runtime.errors import OptionError
from mixplan.runtime.model import Model

__all__ = ["BenchRequest", "Lengths", "Workload", "from_text", "from_trace", "from_vocabulary"]


@dataclass(frozen=True)
class BenchRequest:
    """token_ids: the prompt. arrival: seconds after the start, None where the next request comes when one is done."""

    token_ids: tuple[int, ...]
    max_tokens: int
    arrival: float | None = None


@dataclass(frozen=True)
class Lengths:
    """Tokens of prompts and of answers: (least, most) of each, drawn so that every doubling is as likely as another."""

    prompt: tuple[int, int] = (16, 256)
    new: tuple[int, int] = (8, 32)

    def __post_init__(self) -> None:
        for name, (least, most) in (("prompt", self.prompt), ("new", self.new)):
            if not 1 <= least <= most:
                raise OptionError(f"The range of {name} tokens is {least}:{most}; it must be LEAST:MOST with 1 <= LEAST <= MOST.")

    def fitting(self, limit: int) -> Lengths:
        """The same, cut so that prompt and answer fit in `limit` tokens."""
        new = tuple(min(n, max(limit // 2, 1)) for n in self.new)
        prompt = tuple(min(n, max(limit - new[1], 1)) for n in self.prompt)
        return Lengths((prompt[0], prompt[1]), (new[0], new[1]))

    def draw(self, generator: np.random.Generator, count: int) -> list[tuple[int, int]]:
        """`count` pairs of prompt and answer lengths."""
        columns = [_log_uniform(generator, least, most, count) for least, most in (self.prompt, self.new)]
        return list(zip(*columns, strict=True))


def _log_uniform(generator: np.random.Generator, least: int, most: int, count: int) -> list[int]:
    drawn: NDArray[np.float64] = np.exp(generator.uniform(np.log(least), np.log(most + 1), count))
    return [int(n) for n in np.clip(np.floor(drawn), least, most)]


@dataclass(frozen=True)
class Workload:
    """Requests, and where they come from."""

    source: str
    requests: tuple[BenchRequest, ...]
    seed: int
    lengths: Lengths | None = field(default=None)

    def describe(self) -> dict[str, Any]:
        """Counts and lengths, and a digest of all token ids, lengths and arrivals: equal digests are equal workloads."""
        digest = hashlib.sha256()
        for request in self.requests:
            digest.update(repr((request.token_ids, request.max_tokens, request.arrival)).encode())
        return {
            "source": self.source,
            "seed": self.seed,
            "requests": len(self.requests),
            "prompt_tokens": _summary([len(request.token_ids) for request in self.requests]),
            "new_tokens": _summary([request.max_tokens for request in self.requests]),
            "arrivals": any(request.arrival is not None for request in self.requests),
            "digest": digest.hexdigest()[:16],
        }


def _summary(numbers: Sequence[int]) -> dict[str, float]:
    return {"least": min(numbers), "mean": round(fmean(numbers), 2), "most": max(numbers)}


def from_vocabulary(model: Model, count: int, lengths: Lengths, seed: int, limit: int) -> Workload:
    """`count` requests of token ids drawn from the whole vocabulary: what a token is does not change what it costs."""
    generator = np.random.default_rng(seed)
    lengths = lengths.fitting(limit)
    pairs = lengths.draw(generator, count)
    vocabulary = model.plan.model.vocab_size
    requests = [BenchRequest(tuple(generator.integers(0, vocabulary, prompt).tolist()), new) for prompt, new in pairs]
    return Workload("vocabulary", tuple(requests), seed, lengths)


def from_text(model: Model, text: str, name: str, count: int, lengths: Lengths, seed: int, limit: int) -> Workload:
    """`count` requests whose prompts are pieces of `text`, at places drawn from it. Raises OptionError where it is too short."""
    ids = model.tokenizer.encode(text)
    lengths = lengths.fitting(limit)
    if len(ids) < lengths.prompt[1]:
        raise OptionError(
            f"The text {name} has {len(ids)} tokens; prompts of up to {lengths.prompt[1]} are to be cut from it.",
            hint="Give a longer text, or shorter prompts.",
        )
    generator = np.random.default_rng(seed)
    requests = []
    for prompt, new in lengths.draw(generator, count):
        start = int(generator.integers(0, len(ids) - prompt + 1))
        requests.append(BenchRequest(tuple(ids[start : start + prompt]), new))
    return Workload(f"text {name}", tuple(requests), seed, lengths)


def from_trace(model: Model, lines: Sequence[TraceLine], name: str, seed: int, limit: int) -> Workload:
    """One request for each line. Raises OptionError, naming the line, for a prompt that the model cannot take."""
    generator = np.random.default_rng(seed)
    vocabulary = model.plan.model.vocab_size
    requests = []
    for line in lines:
        if line.prompt is not None:
            ids = tuple(model.tokenizer.encode(line.prompt))
        elif line.token_ids is not None:
            ids = line.token_ids
        else:
            # The prompt must fit before so many ids are drawn.
            line.check_length(line.prompt_tokens, limit)
            ids = tuple(generator.integers(0, vocabulary, line.prompt_tokens).tolist())
        line.check_ids(ids, vocabulary)
        line.check_length(len(ids), limit)
        requests.append(BenchRequest(ids, min(line.max_tokens, limit - len(ids)), line.arrival))
    return Workload(f"trace {name}", tuple(requests), seed)
