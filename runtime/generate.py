"""Generation: prompts in, tokens and text out, over a model's ragged steps.

One loop serves one prompt or many; `scheduler.py` says which tokens go into which step. A request draws from its own seed only, whatever
its company; how tokens are cut into steps can change the last bits of the logits (docs/explanation/numbers.md).
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, cast

import msgspec
import numpy as np
from numpy.typing import NDArray

from mixplan.runtime.errors import RequestError
from mixplan.runtime.hal import CacheSpec
from mixplan.runtime.plan import Plan
from mixplan.runtime.request import Ints, Logits
from mixplan.runtime.sampling import Sampler, SamplingParams
from mixplan.runtime.scheduler import Scheduler
from mixplan.runtime.text.stop import StopScanner
from mixplan.runtime.text.stream import StreamDecoder

if TYPE_CHECKING:
    from mixplan.runtime.text.chat import Message
    from mixplan.runtime.text.tokenizer import Tokenizer

__all__ = ["ActiveRequest", "Chunk", "Generation", "Prompt", "Stats", "generate", "generate_batch", "generate_text"]

# Text, token ids, or chat messages ({"role": ..., "content": ...}).
Prompt: TypeAlias = "str | Sequence[int] | Sequence[Message]"
FinishReason: TypeAlias = Literal["eos", "stop", "length"]

# Sequence numbers of this module's own, far from those that a caller of `step` would choose.
_SEQUENCES = itertools.count(1 << 40)
# The prompt's last tokens that the first new token is decoded with.
_CONTEXT = 8


class SteppingModel(Protocol):
    """What generation needs of `mixplan.runtime.Model`."""

    @property
    def plan(self) -> Plan: ...
    @property
    def tokenizer(self) -> Tokenizer: ...
    @property
    def max_step_tokens(self) -> int: ...
    @property
    def caches(self) -> CacheSpec: ...
    def step(self, token_ids: Ints, positions: Ints, sequences: Ints, logits: Logits = "last") -> NDArray[np.float32]: ...
    def free(self, sequence: int) -> None: ...


class Stats(msgspec.Struct, frozen=True):
    """Figures of one request. Times are in seconds; `ttft` is from the call to the first token, prefill included."""

    prompt_tokens: int
    new_tokens: int
    ttft: float
    total: float

    @property
    def tokens_per_second(self) -> float:
        """Decode speed: tokens after the first over the time since it; 0 with one token."""
        return (self.new_tokens - 1) / (self.total - self.ttft) if self.new_tokens > 1 and self.total > self.ttft else 0.0

    @property
    def prompt_tokens_per_second(self) -> float:
        """Prefill speed, as the wait for the first token shows it."""
        return self.prompt_tokens / self.ttft if self.ttft > 0 else 0.0


class Chunk(msgspec.Struct, frozen=True):
    """One new token of one request. `text` is what can be shown because of it, "" while a character or a stop string is incomplete.

    index: the request's place in the batch. elapsed: seconds since the call. finish_reason and stats are set on a request's last chunk:
    eos (an end token; its text is not shown), stop (a stop string; `stop` says which), length (max_tokens, or the context is full).
    """

    text: str
    token_id: int
    index: int = 0
    elapsed: float = 0.0
    finish_reason: FinishReason | None = None
    stop: str | None = None
    stats: Stats | None = None


class Generation(msgspec.Struct, frozen=True):
    """A finished request."""

    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    stats: Stats
    stop: str | None = None


def generate(model: SteppingModel, prompt: Prompt, params: SamplingParams | None = None, **settings: Any) -> Iterator[Chunk]:
    """Generate from one prompt, a chunk a token. `settings` are fields of SamplingParams, over the model's own defaults.

    Wrong settings, and a prompt that does not fit, raise RequestError here, before the first step. The sequence is freed at the end, or
    when the iterator is closed.
    """
    return generate_batch(model, [prompt], params, **settings)


def generate_text(model: SteppingModel, prompt: Prompt, params: SamplingParams | None = None, **settings: Any) -> Generation:
    """Generate from one prompt and give the whole of it."""
    return collect(generate(model, prompt, params, **settings))[0]


def collect(chunks: Iterable[Chunk]) -> list[Generation]:
    """Whole generations, by index, of the chunks of a batch."""
    texts: dict[int, list[str]] = {}
    ids: dict[int, list[int]] = {}
    last: dict[int, Chunk] = {}
    for chunk in chunks:
        texts.setdefault(chunk.index, []).append(chunk.text)
        ids.setdefault(chunk.index, []).append(chunk.token_id)
        last[chunk.index] = chunk
    done = []
    for index, end in sorted(last.items()):
        if end.finish_reason is not None and end.stats is not None:
            done.append(Generation("".join(texts[index]), tuple(ids[index]), end.finish_reason, end.stats, end.stop))
    return done


def generate_batch(
    model: SteppingModel,
    prompts: Sequence[Prompt],
    params: SamplingParams | Sequence[SamplingParams] | None = None,
    *,
    text: bool = True,
    clock: Callable[[], float] = time.perf_counter,
    **settings: Any,
) -> Iterator[Chunk]:
    """Generate from several prompts together; chunks of different requests come mixed, told apart by `index`.

    text: False leaves every chunk's text empty, so that prompts of token ids need no tokenizer.
    `params`: one for all, or one each. Prompts beyond what the model has sequences and KV pages for wait for their turn.
    """
    started = clock()
    chosen = _params(model, params, settings, len(prompts))
    requests = [ActiveRequest(model, index, prompt, p, text) for index, (prompt, p) in enumerate(zip(prompts, chosen, strict=True))]
    return _run(model, requests, started, clock)


def _params(
    model: SteppingModel, params: SamplingParams | Sequence[SamplingParams] | None, settings: Mapping[str, Any], count: int
) -> list[SamplingParams]:
    if params is not None and settings:
        raise RequestError(f"Give either params or single settings, not both; the settings are {', '.join(sorted(settings))}.")
    if params is None:
        params = SamplingParams.from_defaults(model.plan.model.generation, **settings)
    if isinstance(params, SamplingParams):
        return [params] * count
    if not isinstance(params, Sequence) or not all(isinstance(one, SamplingParams) for one in params):
        raise RequestError(f"params is {params!r}; it must be SamplingParams, or a list of them.", hint="Or give settings by keyword.")
    if len(params) != count:
        raise RequestError(f"There are {len(params)} params for {count} prompts; give one for all, or one each.")
    return list(params)


class ActiveRequest:
    """One request's state: what is left of its prompt, and how its next token becomes text."""

    def __init__(self, model: SteppingModel, index: int, prompt: Prompt, params: SamplingParams, text: bool) -> None:
        plan = model.plan.model
        self.index = index
        self.params = params
        if params.stop and not text:
            raise RequestError(f"stop is {list(params.stop)!r}, but text=False decodes none.", hint="Leave one of the two out.")
        self.prompt, tokenizer = _prompt_ids(model, prompt, text)
        spec = model.caches
        stored = spec.max_pages_per_sequence * spec.page_size
        limit = min(plan.context_length, stored)
        if len(self.prompt) >= limit:
            why = "the model's context_length" if limit == plan.context_length else "what the KV cache holds of one sequence"
            raise RequestError(
                f"The prompt (number {index}) has {len(self.prompt)} tokens; at most {limit - 1} leave room for more in {limit}, {why}.",
                hint="Shorten the prompt." if limit == plan.context_length else "Shorten the prompt, or load with a larger kv_tokens.",
            )
        room = limit - len(self.prompt)
        self.limit = room if params.max_tokens is None else min(room, params.max_tokens)
        self.eos = frozenset() if params.ignore_eos else frozenset(plan.eos_token_ids)
        self.sampler = Sampler(params, self.prompt)
        if params.stop and tokenizer is None:
            raise RequestError(f"stop is {list(params.stop)!r}, but this plan has no tokenizer to decode text with.", hint="Leave it out.")
        self.decoder = StreamDecoder(tokenizer.decode, self.prompt[-_CONTEXT:]) if tokenizer is not None else None
        self.scanner = StopScanner(params.stop)
        self.sequence = next(_SEQUENCES)
        # KV pages that it takes at most.
        self.pages = -(-(len(self.prompt) + self.limit) // spec.page_size)
        # Tokens that are in the model's cache, and the token that comes next (from the prompt while `cached` is within it).
        self.cached = 0
        self.token = -1
        self.count = 0
        self.first = 0.0
        self.arrived = 0.0
        self.done = False

    @property
    def pending(self) -> int:
        """Prompt tokens that no step has taken yet."""
        return max(0, len(self.prompt) - self.cached)

    @property
    def left(self) -> int:
        """Tokens that it may still get."""
        return self.limit - self.count

    def accept(self, token: int, elapsed: float) -> Chunk:
        """Take the sampled token; decide whether it is the last."""
        self.token = token
        self.count += 1
        if self.count == 1:
            self.first = elapsed
        text = ""
        reason: FinishReason | None = None
        if token in self.eos:
            reason = "eos"
        else:
            text = self.scanner.push(self.decoder.push(token)) if self.decoder is not None else ""
            if self.scanner.matched is not None:
                reason = "stop"
            elif self.count >= self.limit:
                reason = "length"
        if reason is None:
            return Chunk(text, token, self.index, elapsed)
        self.done = True
        if reason != "stop" and self.decoder is not None:
            # What was held back: an incomplete character, then a text that might have become a stop string.
            text += self.scanner.push(self.decoder.flush())
            if self.scanner.matched is None:
                text += self.scanner.flush()
        stats = Stats(len(self.prompt), self.count, self.first, elapsed)
        return Chunk(text, token, self.index, elapsed, reason, self.scanner.matched, stats)


def _prompt_ids(model: SteppingModel, prompt: Prompt, text: bool) -> tuple[list[int], Tokenizer | None]:
    """Token ids, and the tokenizer that turns new ones into text: None where no text is wanted or the plan has no tokenizer."""
    tokenizer: Tokenizer | None
    if not isinstance(prompt, (Sequence, np.ndarray)) or isinstance(prompt, (bytes, bytearray)):
        raise RequestError(f"The prompt is {type(prompt).__name__}; it must be text, a list of token ids or a list of chat messages.")
    if isinstance(prompt, str):
        tokenizer = model.tokenizer
        ids = tokenizer.encode(prompt)
    elif len(prompt) and isinstance(prompt[0], Mapping):
        tokenizer = model.tokenizer
        ids = tokenizer.encode_chat(cast("Sequence[Message]", prompt))
    else:
        tokenizer = model.tokenizer if text and "tokenizer.json" in model.plan.files else None
        ids = _checked_ids(prompt, model.plan.model.vocab_size)
    if not ids:
        raise RequestError("The prompt has no tokens.", hint="Give at least one character or token id.")
    return ids, tokenizer if text else None


def _checked_ids(prompt: Sequence[Any], vocab: int) -> list[int]:
    for at, token in enumerate(prompt):
        if not isinstance(token, (int, np.integer)) or isinstance(token, bool) or not 0 <= token < vocab:
            raise RequestError(f"prompt[{at}] is {token!r}; token ids are whole numbers from 0 to {vocab - 1}.")
    return [int(token) for token in prompt]


def _run(model: SteppingModel, requests: list[ActiveRequest], started: float, clock: Callable[[], float]) -> Iterator[Chunk]:
    scheduler: Scheduler[Chunk] = Scheduler(model, clock=clock)
    for request in requests:
        request.arrived = started
        scheduler.add(request)
    try:
        while scheduler.busy:
            yield from scheduler.step()
    finally:
        scheduler.close()
