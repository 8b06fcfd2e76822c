"""A loaded plan: steps over any number of sequences, generation, metrics."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import islice
from pathlib import Path
from time import perf_counter
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from mixplan.runtime.decode import Decoder, Moved, whole_numbers
from mixplan.runtime.errors import InternalError, RequestError
from mixplan.runtime.executor import Executor, Tap
from mixplan.runtime.fallbacks import Fallbacks
from mixplan.runtime.hal import MOST_STEPS, PAGE_SIZE, CacheSpec, Step
from mixplan.runtime.history import History
from mixplan.runtime.kv_cache import PagedCache, Span
from mixplan.runtime.limits import kv_bytes_per_token
from mixplan.runtime.logit_rows import LogitRows, finite_best
from mixplan.runtime.metrics import Metrics, OpTime, peak_rss_bytes
from mixplan.runtime.placement import Placement
from mixplan.runtime.plan import Plan
from mixplan.runtime.plan_io import LoadedPlan
from mixplan.runtime.request import Ints, Logits, parse_request
from mixplan.runtime.sampling import Draw, draw_tokens

if TYPE_CHECKING:
    from mixplan.runtime.generate import Chunk, Prompt
    from mixplan.runtime.sampling import SamplingParams
    from mixplan.runtime.text.tokenizer import Tokenizer

__all__ = ["Model"]

Floats: TypeAlias = NDArray[np.float32]
Chosen = TypeVar("Chosen")

# How long a call of decode_steps lasts: long enough that what Python does around it, with caches that the weights swept, counts for
# little; too short for a reader to notice.
_CALL_SECONDS = 0.033


class Model:
    """A plan, ready to run. Made by `load`. Safe to use from several threads: steps take turns."""

    def __init__(
        self,
        loaded: LoadedPlan,
        executor: Executor,
        cache: PagedCache,
        placements: Sequence[Placement],
        max_step_tokens: int,
        load_seconds: float,
        fallbacks: Fallbacks,
    ) -> None:
        self.max_step_tokens = max_step_tokens
        """The most tokens that one step takes."""
        self._loaded = loaded
        self._executor = executor
        self._cache = cache
        self._load_seconds = load_seconds
        self._fallbacks = fallbacks
        self._placements = placements
        self._history = History(cache.spec.max_sequences)
        self._decoder = Decoder(loaded.plan.model, executor, cache, self._history, max_step_tokens)
        executor.restore = partial(self._history.restore, cache, max_step_tokens)
        self._lock = threading.RLock()
        self._tokenizer: Tokenizer | None = None
        self._closed = False
        self._steps = 0
        self._tokens = 0
        self._seconds = 0.0

    @property
    def plan(self) -> Plan:
        """The plan."""
        return self._loaded.plan

    @property
    def placement(self) -> tuple[Placement, ...]:
        """Where each region runs now, and why."""
        return tuple(self._placements)

    @property
    def loaded(self) -> LoadedPlan:
        """The opened plan with its files."""
        return self._loaded

    @property
    def root(self) -> Path:
        """The plan's directory."""
        return self._loaded.root

    @property
    def caches(self) -> CacheSpec:
        """How many sequences and KV pages there are."""
        return self._cache.spec

    @property
    def trust(self) -> tuple[bool, str]:
        """Whether native code of the plan may be loaded, and why."""
        return self._loaded.trusted, self._loaded.trust_reason

    @property
    def tokenizer(self) -> Tokenizer:
        """The plan's tokenizer, read on first use. Needs the package `tokenizers`."""
        with self._lock:
            if self._tokenizer is None:
                from mixplan.runtime.text.tokenizer import Tokenizer

                self._tokenizer = Tokenizer.from_plan(self._loaded)
            return self._tokenizer

    def step(self, token_ids: Ints, positions: Ints, sequences: Ints, logits: Logits = "last", *, tap: Tap | None = None) -> Floats:
        """Run T tokens of any number of sequences, and give logits, float32 [R, vocab_size].

        token_ids, positions, sequences: [T] integers; `sequences` are numbers of the caller's choice. Each sequence's positions are
        consecutive and start at its length or before: going back forgets what it had from there on. The order of tokens of different
        sequences is free. logits: "last" gives a row for each sequence's last token, in order of the sequences' first appearance; "all"
        one for each token; "none" none; a list of indices into the tokens just those.
        tap(name, array), on the reference device only, is shown the output of every node; an array that it gives takes its place.

        Raises RequestError for a step that is not valid and CapacityError for one that does not fit; then nothing has changed. When a
        device fails, each sequence keeps what it had before its first position in the step.
        """
        model = self.plan.model
        request = parse_request(
            token_ids,
            positions,
            sequences,
            logits,
            vocab_size=model.vocab_size,
            context_length=model.context_length,
            max_step_tokens=self.max_step_tokens,
        )
        with self._lock:
            self._check_open()
            started = perf_counter()
            slots = self._cache.reserve(request.spans)
            with self._undo_on_failure(request.spans):
                step = Step(
                    token_ids=request.token_ids,
                    positions=request.positions,
                    sequences=np.repeat(np.asarray(slots, np.int32), request.counts),
                    logit_rows=request.logit_rows,
                    sequence_lengths=np.repeat(np.asarray([span.stop for span in request.spans], np.int32), request.counts),
                    block_tables=self._cache.tables,
                    page_size=PAGE_SIZE,
                )
                (made,) = self._executor.run(step, tap)
                if made.size != step.rows * model.vocab_size or made.dtype != np.float32:
                    raise InternalError(
                        f"The device gave logits {made.dtype} {list(made.shape)}, not float32 [1, {step.rows}, {model.vocab_size}]."
                    )
                # A copy: the device may use the memory again in the next step.
                result = np.array(made, np.float32).reshape(step.rows, model.vocab_size)
            self._cache.commit(request.spans)
            tokens = iter(request.token_ids.tolist())
            for slot, span in zip(slots, request.spans, strict=True):
                self._history.write(slot, span.start, islice(tokens, span.stop - span.start))
            self._steps += 1
            self._tokens += step.tokens
            self._seconds += perf_counter() - started
        return result

    def decode(self, token_ids: Ints, sequences: Ints, choose: Callable[[LogitRows], Chosen]) -> Chosen:
        """Append one token to each of the given sequences, and give what choose(logits) makes of the logits, one row a sequence.

        The same as a step of these tokens, but quicker: the logits stay where the device put them, and the largest of each row is known
        (`LogitRows.best`). They are valid during `choose` only, in which no other step can begin. Raises as `step` does; then, and where
        `choose` raises, nothing has changed.
        """
        tokens, owners = whole_numbers(token_ids, "token_ids"), whole_numbers(sequences, "sequences")
        with self._lock:
            self._check_open()
            started = perf_counter()
            decoder = self._decoder
            positions = decoder.positions(tokens, owners)
            if decoder.short:
                try:
                    rows = decoder.run(tokens, owners, positions)
                except Moved:
                    return self.decode(tokens, owners, choose)
                self._steps += 1
                self._tokens += len(tokens)
                self._seconds += perf_counter() - started
            else:
                rows = LogitRows(self.step(tokens, positions, owners))
            try:
                return choose(rows)
            except BaseException:
                decoder.undo(owners, positions)
                raise

    def decode_greedy(
        self, token_ids: Ints, sequences: Ints, *, steps: int = 1, stops: tuple[int, ...] = (), seconds: float = _CALL_SECONDS
    ) -> list[int]:
        """As `decode_steps`, where every token is the most probable one."""
        return self.decode_steps(token_ids, sequences, steps=steps, stops=stops, seconds=seconds)

    def decode_steps(
        self,
        token_ids: Ints,
        sequences: Ints,
        draws: Sequence[Draw] | None = None,
        *,
        steps: int = 1,
        stops: tuple[int, ...] = (),
        seconds: float = _CALL_SECONDS,
    ) -> list[int]:
        """Append one token to each of the given sequences, then the one that is found after it, and so on; gives the tokens found.

        draws: how, one for each sequence (`Sampler.draw`), with a number for each of `steps`; None: the most probable token. They come step
        after step, S * len(sequences) of them, for S steps of at most `steps`: fewer where a token of `stops` is found, where a sequence
        fills its last KV page, and where one more step would likely end later than `seconds` from the start. The tokens of the last step
        are not appended yet. Raises as `step` does, and InternalError where the largest logit is not a finite number; then nothing has
        changed.
        """
        tokens, owners = whole_numbers(token_ids, "token_ids"), whole_numbers(sequences, "sequences")
        if draws is not None and (len(draws) != len(owners) or min(len(draw.uniforms) for draw in draws) < min(steps, MOST_STEPS)):
            raise RequestError(f"Each of the {len(owners)} sequences needs a draw with a number for each step.")
        with self._lock:
            self._check_open()
            started = perf_counter()
            decoder = self._decoder
            positions = decoder.positions(tokens, owners)
            if not decoder.short:
                return list(self.decode(tokens, owners, finite_best if draws is None else lambda rows: draw_tokens(rows, draws)))
            try:
                found = decoder.run_steps(tokens, owners, positions, draws, steps, stops, seconds)
            except Moved:
                return self.decode_steps(tokens, owners, draws, steps=steps, stops=stops, seconds=seconds)
            self._steps += len(found) // len(tokens)
            self._tokens += len(found)
            self._seconds += perf_counter() - started
            return found

    def prefill(self, token_ids: Ints, sequence: int = 0) -> Floats:
        """Append tokens to a sequence, in as many steps as max_step_tokens asks for; gives the logits after the last, [vocab_size]."""
        ids = np.asarray(token_ids)
        if ids.ndim != 1 or not len(ids):
            raise RequestError(f"prefill needs a flat list of at least one token id; got shape {list(ids.shape)}.")
        # The whole must fit before the first chunk runs.
        end = self.length(sequence) + len(ids)
        if end > self.plan.model.context_length:
            raise RequestError(
                f"Sequence {sequence} would have {end} tokens; the model's context_length is {self.plan.model.context_length}."
            )
        with self._lock:
            start = self.length(sequence)
            for begin in range(0, len(ids), self.max_step_tokens):
                chunk = ids[begin : begin + self.max_step_tokens]
                places = np.arange(start + begin, start + begin + len(chunk))
                last = begin + len(chunk) == len(ids)
                rows = self.step(chunk, places, np.full(len(chunk), sequence), "last" if last else "none")
        logits: Floats = rows[0]
        return logits

    def generate(self, prompt: Prompt, params: SamplingParams | None = None, **settings: Any) -> Iterator[Chunk]:
        """Generate from one prompt (text, token ids or chat messages), a chunk a token; see `mixplan.runtime.generate.generate`."""
        from mixplan.runtime.generate import generate

        return generate(self, prompt, params, **settings)

    def length(self, sequence: int) -> int:
        """Tokens stored of `sequence`; 0 for one never seen."""
        return self._cache.length(sequence)

    def truncate(self, sequence: int, length: int) -> None:
        """Forget a sequence's tokens from position `length` on."""
        if not isinstance(length, int | np.integer):
            raise RequestError(f"A sequence is cut to a whole number of tokens, not {length!r}.")
        with self._lock:
            self._cache.truncate(sequence, int(length))

    def free(self, sequence: int) -> None:
        """Forget a sequence and give its pages back. One never seen is empty already."""
        with self._lock:
            self._cache.free(sequence)

    def metrics(self) -> Metrics:
        """Counts since loading, and the process's peak memory."""
        with self._lock:
            plan = self.plan
            return Metrics(
                steps=self._steps,
                tokens=self._tokens,
                seconds=self._seconds,
                load_seconds=self._load_seconds,
                regions=self._executor.metrics(),
                sequences=len(self._cache.sequences),
                kv_pages=self._cache.spec.pages,
                kv_pages_used=self._cache.pages_used,
                kv_bytes_per_token=kv_bytes_per_token(plan),
                weight_bytes=sum(entry.size for name, entry in plan.files.items() if name.endswith(".safetensors")),
                peak_rss_bytes=peak_rss_bytes(),
                fallbacks=tuple(self._fallbacks.entries),
            )

    def profile(self) -> tuple[OpTime, ...]:
        """Seconds in each op since loading, in the plan's order; of the plan's regions only where it was loaded without `profile`."""
        with self._lock:
            return tuple(OpTime(region, node, seconds) for region, node, seconds in self._executor.op_seconds())

    def node_providers(self) -> dict[str, dict[str, str]]:
        """By region, for those on an NPU: the execution provider that runs each ONNX node, read back from onnxruntime."""
        with self._lock:
            return self._executor.node_providers()

    def close(self) -> None:
        """Release devices and files. Further calls do nothing."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._executor.close()
                self._loaded.close()

    def __enter__(self) -> Model:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _check_open(self) -> None:
        if self._closed:
            raise RequestError("The model is closed.", hint="Load it again.")

    @contextmanager
    def _undo_on_failure(self, spans: tuple[Span, ...]) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self._cache.rollback(spans)
            raise
