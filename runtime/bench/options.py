"""What a benchmark is asked to do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from mixplan.runtime.bench.workload import Lengths
from mixplan.runtime.errors import OptionError

__all__ = ["PHASES", "BenchOptions", "ProfileOptions", "parse_numbers", "parse_range"]

PHASES = ("cold", "steady", "stress")


@dataclass(frozen=True)
class BenchOptions:
    """phases: of PHASES, run in that order. text, trace: files that the requests come from; neither draws token ids from the vocabulary.

    requests: of the steady phase, None for 1,000 or all lines of a trace. in_flight: how many of them at once, where no trace says when
    they come. concurrency: requests of the stress phase, rounds: how often it is run. launches: processes of the cold phase, cold_prompt:
    tokens of their prompt. prefill_tokens: see Scheduler. kv_tokens: of the KV cache; None for what the stress phase needs, as far as a
    quarter of the memory goes.
    """

    phases: tuple[str, ...] = PHASES
    requests: int | None = None
    in_flight: int = 1
    concurrency: int = 200
    rounds: int = 3
    launches: int = 5
    cold_prompt: int = 128
    text: Path | None = None
    trace: Path | None = None
    lengths: Lengths = field(default_factory=Lengths)
    seed: int = 0
    device: str = "auto"
    threads: int | None = None
    isa: str | None = None
    trust: bool = False
    strict: bool = False
    prefill_tokens: int | None = None
    kv_tokens: int | None = None

    def __post_init__(self) -> None:
        for phase in self.phases:
            if phase not in PHASES:
                raise OptionError(f"There is no phase {phase!r}; there are {', '.join(PHASES)}.")
        if self.text is not None and self.trace is not None:
            raise OptionError("Requests come from a text or from a trace, not from both.", hint="Give one of --text and --trace.")
        for name in ("requests", "in_flight", "concurrency", "rounds", "launches", "cold_prompt"):
            number = getattr(self, name)
            if number is not None and number < 1:
                raise OptionError(f"{name} is {number}; it must be at least 1.")


@dataclass(frozen=True)
class ProfileOptions:
    """Decode steps at each of `contexts` with each of `batches` sequences, and prompts of each of `prefills` tokens."""

    contexts: tuple[int, ...] = (128,)
    batches: tuple[int, ...] = (1,)
    prefills: tuple[int, ...] = (512,)

    def __post_init__(self) -> None:
        for name, numbers, least in (("context", self.contexts, 0), ("batch", self.batches, 1), ("prefill", self.prefills, 1)):
            for number in numbers:
                if number < least:
                    raise OptionError(f"{name} is {number}; it must be at least {least}.")


def parse_numbers(text: str, what: str) -> tuple[int, ...]:
    """Numbers by comma; "" is none. OptionError for what is no number."""
    try:
        return tuple(int(word) for word in text.split(",") if word.strip())
    except ValueError:
        raise OptionError(f"{what} is {text!r}; it must be whole numbers, by comma.") from None


def parse_range(text: str, what: str) -> tuple[int, int]:
    """LEAST:MOST, or one number for both."""
    words: Sequence[str] = text.split(":")
    try:
        least, most = (int(word) for word in (words if len(words) > 1 else [words[0], words[0]]))
    except ValueError:
        raise OptionError(f"{what} is {text!r}; it must be LEAST:MOST, two whole numbers.") from None
    return least, most
