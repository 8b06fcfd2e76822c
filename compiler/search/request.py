"""What a compile is asked to search for, parsed and checked before anything is opened."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mixplan.compiler.search.candidates import parse_candidates, parse_exclusion
from mixplan.compiler.search.promise import Promise, parse_promise
from mixplan.compiler.search.text import TextSource
from mixplan.compiler.sensitivity import METHODS
from mixplan.passes.precision.overrides import Override, parse_override
from mixplan.passes.precision.schemes import Scheme, default_group
from mixplan.runtime.errors import OptionError

__all__ = ["Request", "parse_request"]

_NEEDS = "Give --text FILE and one or two of --bits, --max-size, --max-loss, --max-kld, --max-latency."


@dataclass(frozen=True)
class Request:
    """candidates: None for the default menu. pins: the user's overrides as well."""

    promise: Promise
    text: TextSource
    eval_text: TextSource | None
    candidates: tuple[Scheme, ...] | None
    pins: tuple[Override, ...]
    excludes: tuple[Override, ...]
    sensitivity: str | None = None
    scaling: str = "none"

    @property
    def facts(self) -> dict[str, str]:
        """For the plan's provenance."""
        return {
            "promise": " ".join(self.promise.option(name) for name in self.promise.limits),
            "candidates": " ".join(map(str, self.candidates or ())),
            "pins": " ".join(pin.text for pin in self.pins),
            "excludes": " ".join(("re:" if rule.regex else "") + rule.pattern for rule in self.excludes),
            **({} if self.scaling == "none" else {"scaling": self.scaling}),
            **({"batch": str(self.promise.batch), "context": str(self.promise.context)} if "latency" in self.promise.limits else {}),
        }


def parse_request(
    *,
    text: TextSource | None,
    eval_text: TextSource | None,
    bits: float | str | None,
    max_size: int | str | None,
    max_loss: float | str | None,
    max_kld: float | str | None,
    max_latency: float | str | None,
    batch: int,
    context: int,
    candidates: Sequence[str] | None,
    pins: Sequence[str],
    excludes: Sequence[str],
    overrides: Sequence[str],
    scheme: str | None,
    group_size: int,
    symmetric: bool,
    sensitivity: str | None,
    quantizer: str | None = None,
    scaling: str = "none",
) -> Request | None:
    """The request, None where nothing is promised. OptionError for options that do not go together."""
    promise = parse_promise(
        bits=bits, max_size=max_size, max_loss=max_loss, max_kld=max_kld, max_latency=max_latency, batch=batch, context=context
    )
    if promise is None:
        alone = {
            "eval_text": eval_text,
            "candidates": candidates,
            "pins": tuple(pins),
            "excludes": tuple(excludes),
            "sensitivity": sensitivity,
        }
        for name, value in alone.items():
            if value is not None and value != ():
                raise OptionError(f"{name} was given, and nothing is promised that it could serve.", hint=_NEEDS)
        return None
    if quantizer not in (None, "gptq"):
        raise OptionError(f"quantizer {quantizer} was given with a promise; the search takes gptq.", hint="Name a scheme, or leave it out.")
    if text is None:
        raise OptionError(f"{promise.option(next(iter(promise.limits)))} needs a text to measure on.", hint=_NEEDS)
    for name, source in (("text", text), ("eval_text", eval_text)):
        if isinstance(source, str | Path) and not Path(source).expanduser().is_file():
            raise OptionError(f"{name} {source} is not a file.")
    if scheme is not None:
        raise OptionError(
            f"scheme {scheme} and a promise were given; the search chooses schemes.", hint="Say what it may choose from with --candidates."
        )

    if sensitivity is not None and sensitivity not in METHODS:
        raise OptionError(f"sensitivity is {sensitivity!r}; allowed are {', '.join(METHODS)}.")
    # As for a single scheme: the keywords are for candidates that do not say.
    return Request(
        promise,
        text,
        eval_text,
        None if candidates is None else parse_candidates(candidates, group_size=group_size, asymmetric=None if symmetric else True),
        tuple(
            parse_override(pin, group_size=default_group(pin.rpartition("=")[2], group_size), asymmetric=None if symmetric else True)
            for pin in (*overrides, *pins)
        ),
        tuple(parse_exclusion(text) for text in excludes),
        sensitivity,
        scaling,
    )
