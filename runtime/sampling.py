"""From one row of logits to one token.

The order is that of transformers and vLLM: repetition penalty, temperature, top_k, top_p, min_p, then one draw. (llama.cpp scales by the
temperature last; with a temperature of 1 the two orders agree.) What each step keeps:

repetition_penalty  every token of the prompt and of the text so far: a positive logit is divided by it, a negative one multiplied.
temperature         logits are divided by it; 0 means greedy: the largest logit, the lowest id among equals.
top_k               the k largest logits, the lowest id first among equals; 0 keeps all.
top_p               the fewest most probable tokens whose probabilities (of what top_k kept) add up to at least top_p.
min_p               tokens at least min_p times as probable as the most probable one.

A draw takes one 53-bit number from the request's own generator, so equal logits and an equal seed give the same token, whatever else is in
the batch. (Logits themselves differ in the last bits with how tokens are cut into steps: see docs/explanation/numbers.md.)
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from mixplan.runtime.errors import InternalError, RequestError
from mixplan.runtime.logit_rows import MAXIMA_BLOCK, LogitRows, finite_best

__all__ = ["Draw", "Sampler", "SamplingParams", "draw_tokens"]

# How many candidates a top_p without top_k looks at first; it looks at more only where they do not add up to top_p.
_FIRST_LOOK = 256
# Uniform numbers that are made at once.
_UNIFORMS = 32
# Logits in one block, where the k largest are looked for by blocks.
_BLOCK = MAXIMA_BLOCK
_IN_BLOCK = np.arange(_BLOCK)


@dataclass(frozen=True)
class SamplingParams:
    """How to choose tokens and when to stop. Values out of range raise RequestError when the object is made.

    max_tokens: new tokens at most; None: as many as the context allows. seed: None draws one from the operating system.
    stop: strings that end the text; they are not part of it. ignore_eos: go on after an end-of-sequence token.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    max_tokens: int | None = 256
    ignore_eos: bool = False

    def __post_init__(self) -> None:
        stop: Any = self.stop
        if not isinstance(stop, (str, list, tuple, set, frozenset)):
            raise RequestError(f"stop is {stop!r}; it must be a string, or a list of strings.")
        object.__setattr__(self, "stop", (stop,) if isinstance(stop, str) else tuple(stop))
        _number("temperature", self.temperature, 0.0, math.inf, "0 (greedy) or more")
        _integer("top_k", self.top_k, 0, "0 (off) or more")
        _number("top_p", self.top_p, 0.0, 1.0, "more than 0 and at most 1 (off)", open_low=True)
        _number("min_p", self.min_p, 0.0, 1.0, "from 0 (off) to 1")
        _number("repetition_penalty", self.repetition_penalty, 0.0, math.inf, "more than 0; 1 is off", open_low=True)
        if self.seed is not None:
            _integer("seed", self.seed, 0, "0 or more, below 2**64", most=2**64 - 1)
        if self.max_tokens is not None:
            _integer("max_tokens", self.max_tokens, 1, "1 or more")
        if any(not isinstance(s, str) or not s for s in self.stop):
            raise RequestError(f"stop holds {list(self.stop)!r}: every stop string must be a string that is not empty.")

    @classmethod
    def from_defaults(cls, defaults: Mapping[str, float], **overrides: Any) -> SamplingParams:
        """The model's own sampling defaults (`plan.model.generation`), overridden by every keyword that is not None."""
        known = {f.name for f in fields(cls)}
        for name in overrides:
            if name not in known:
                raise RequestError(f"There is no sampling setting named {name!r}; there are {', '.join(sorted(known))}.")
        values: dict[str, Any] = {name: value for name, value in defaults.items() if name in known}
        if "top_k" in values:
            values["top_k"] = int(values["top_k"])
        values.update({name: value for name, value in overrides.items() if value is not None})
        return replace(cls(), **values)


def _number(name: str, value: Any, low: float, high: float, allowed: str, *, open_low: bool = False) -> None:
    good = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    if not good or not low <= value <= high or (open_low and value == low):
        raise RequestError(f"{name} is {value!r}; it must be {allowed}.")


def _integer(name: str, value: Any, least: int, allowed: str, most: int | None = None) -> None:
    good = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
    if not good or value < least or (most is not None and value > most):
        raise RequestError(f"{name} is {value!r}; it must be a whole number, {allowed}.")


class Draw(msgspec.Struct, frozen=True):
    """How a device may draw the next tokens of one sequence by itself: by `params`, whose repetition penalty is 1, and `uniforms`, one of
    [0, 1) for each token."""

    params: SamplingParams
    uniforms: Sequence[float]


class Sampler:
    """Chooses the tokens of one request. Holds its random state and the ids that the repetition penalty looks at."""

    def __init__(self, params: SamplingParams, prompt: Iterable[int] = ()) -> None:
        self.params = params
        self.greedy = params.temperature == 0.0 and params.repetition_penalty == 1.0
        """Whether it takes the most probable token, whatever came before."""
        self.free = params.repetition_penalty == 1.0
        """Whether its choice depends on the logits and its random numbers only."""
        # A greedy request draws nothing.
        self._bits = None if params.temperature == 0.0 else np.random.PCG64(params.seed)
        # Numbers that were made and not used yet.
        self._uniforms: list[float] = []
        self._seen: set[int] = set(prompt) if params.repetition_penalty != 1.0 else set()

    def draw(self, steps: int) -> Draw:
        """What the next tokens, up to `steps`, are drawn with. Those that were drawn are told to `drawn`."""
        if self._bits is None:
            return Draw(self.params, [0.0] * steps)
        while len(self._uniforms) < steps:
            raw = self._bits.random_raw(_UNIFORMS)
            self._uniforms += ((raw >> np.uint64(11)) * 2.0**-53).tolist()
        return Draw(self.params, self._uniforms[:steps])

    def drawn(self, steps: int) -> None:
        """So many tokens were drawn elsewhere, by what `draw` gave."""
        del self._uniforms[:steps]

    def choose(self, logits: LogitRows, row: int) -> int:
        """One token id from a row of logits, using what the device found out about it already."""
        best = -1 if self._seen else logits.best[row]
        if best >= 0 and self.greedy:
            return best
        maxima = None if best < 0 or logits.maxima is None else logits.maxima[row]
        return self.sample(logits.rows[row], best, maxima)

    def sample(self, logits: NDArray[np.float32], best: int = -1, maxima: NDArray[np.float32] | None = None) -> int:
        """One token id from logits [V], which are left as they are. best, maxima: as in LogitRows, where known (-1 is not)."""
        p = self.params
        if self._seen:
            logits, best, maxima = self._penalized(logits), -1, None
        if best < 0:
            best = int(np.argmax(logits))
        top = float(logits[best])
        if not math.isfinite(top):
            raise InternalError(f"The logits hold {top} at token {best}; a kernel of the plan computed no number.")
        if p.temperature == 0.0:
            token = best
        else:
            token = _drawn(logits, p, top, maxima, self.draw(1).uniforms[0])
            self.drawn(1)
        if p.repetition_penalty != 1.0:
            self._seen.add(token)
        return token

    def _penalized(self, logits: NDArray[np.float32]) -> NDArray[np.float32]:
        ids = np.fromiter(self._seen, dtype=np.int64, count=len(self._seen))
        ids = ids[ids < logits.shape[0]]
        out = np.array(logits, dtype=np.float32)
        row = out[ids]
        penalty = np.float32(self.params.repetition_penalty)
        out[ids] = np.where(row < 0, row * penalty, row / penalty)
        return out


def draw_tokens(rows: LogitRows, draws: Sequence[Draw]) -> list[int]:
    """The next token of each sequence, by the first of its numbers: what a device does that draws by itself."""
    finite_best(rows)
    tokens = []
    for row, draw in enumerate(draws):
        best, logits = rows.best[row], rows.rows[row]
        maxima = None if rows.maxima is None else rows.maxima[row]
        tokens.append(
            best if draw.params.temperature == 0.0 else _drawn(logits, draw.params, float(logits[best]), maxima, draw.uniforms[0])
        )
    return tokens


def _drawn(logits: NDArray[np.float32], params: SamplingParams, top: float, maxima: NDArray[np.float32] | None, uniform: float) -> int:
    """The inverse of the cumulative distribution at one uniform number, in float64."""
    ids, weights = candidates(logits, params, top, maxima)
    cumulative = np.cumsum(weights)
    at = int(np.searchsorted(cumulative, uniform * cumulative[-1], side="right"))
    return int(ids[min(at, len(ids) - 1)])


def candidates(
    logits: NDArray[np.float32], params: SamplingParams, top: float | None = None, maxima: NDArray[np.float32] | None = None
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Token ids that may be drawn and their unnormalized probabilities, for logits [V] and a temperature above 0.

    top, maxima: the largest of all logits and of each 64, where known. With top_k or top_p the most probable id comes first; otherwise ids
    stay in their own order. The most probable one has weight 1.
    """
    vocab = logits.shape[0]
    if top is None:
        top = float(logits.max())
    if 0 < params.top_k < vocab:
        ids = _largest(logits, params.top_k, maxima)
        weights = _weights(logits[ids], top, params.temperature)
        if params.top_p < 1.0:
            ids, weights = _nucleus(ids, weights, params.top_p * float(weights.sum()))
    elif params.top_p < 1.0:
        everything = _weights(logits, top, params.temperature)
        wanted = params.top_p * float(everything.sum())
        look = min(_FIRST_LOOK, vocab)
        ids = _largest(logits, look, maxima)
        while look < vocab and float(everything[ids].sum()) < wanted:
            look = min(look * 8, vocab)
            ids = _largest(logits, look, maxima)
        ids, weights = _nucleus(ids, everything[ids], wanted)
    elif params.min_p > 0.0:
        # Generously those near the top; the weights decide below.
        ids = np.flatnonzero(logits >= top + params.temperature * math.log(params.min_p) * (1 + 1e-6) - 1e-3)
        weights = _weights(logits[ids], top, params.temperature)
    else:
        ids = np.arange(vocab, dtype=np.int64)
        weights = _weights(logits, top, params.temperature)
    if params.min_p > 0.0:
        kept = weights >= params.min_p
        ids, weights = ids[kept], weights[kept]
    return ids, weights


def _weights(logits: NDArray[np.float32], top: float, temperature: float) -> NDArray[np.float64]:
    """exp((logits - top) / temperature)."""
    # The subtraction comes first, so that the smallest temperature gives 0 and -inf, not inf - inf.
    with np.errstate(over="ignore"):
        weights: NDArray[np.float64] = np.exp((logits.astype(np.float64) - top) / temperature)
    return weights


def _largest(values: NDArray[np.float32], k: int, maxima: NDArray[np.float32] | None = None) -> NDArray[np.int64]:
    """Indices of the k largest, largest first, the lowest index first among equals, without sorting the others."""
    size = values.shape[0]
    near = np.arange(size)
    if k * 4 * _BLOCK <= size:
        if maxima is None:
            maxima = values[: size // _BLOCK * _BLOCK].reshape(-1, _BLOCK).max(axis=1)
        # k blocks have a maximum of at least the k-th largest maximum, so the k largest values are all in such blocks.
        blocks = np.flatnonzero(maxima >= np.partition(maxima, maxima.shape[0] - k)[maxima.shape[0] - k])
        near = (blocks[:, None] * _BLOCK + _IN_BLOCK).ravel()
        if maxima.shape[0] * _BLOCK != size:
            # The last block is short, or was left out.
            near = np.concatenate([near[near < size], np.arange(maxima.shape[0] * _BLOCK, size)])
    found = values[near]
    if k < found.shape[0]:
        kept = found >= np.partition(found, found.shape[0] - k)[found.shape[0] - k]
        near, found = near[kept], found[kept]
    order = np.argsort(-found, kind="stable")
    return near[order][:k].astype(np.int64)


def _nucleus(ids: NDArray[np.int64], weights: NDArray[np.float64], wanted: float) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """The shortest head of `ids` (most probable first) whose weights add up to at least `wanted`."""
    count = int(np.searchsorted(np.cumsum(weights), wanted, side="left")) + 1
    return ids[:count], weights[:count]
