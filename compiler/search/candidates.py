"""What each group may be given: the menu of schemes, less what pins and exclusions say."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from mixplan.compiler.decisions import layer_name
from mixplan.compiler.search.groups import LayerGroup
from mixplan.compiler.search.promise import Promise
from mixplan.passes.precision.overrides import Override, resolve
from mixplan.passes.precision.schemes import Scheme, default_group, parse_scheme
from mixplan.runtime.errors import OptionError

__all__ = ["EXCLUDED", "Menu", "default_candidates", "parse_candidates", "parse_exclusion", "restrict", "runnable", "split_candidates"]

EXCLUDED = parse_scheme("BF16")
"""What an excluded layer keeps."""

_SUFFIX = re.compile(r"g\d+|asym|sym|min|nl|s\d+")
# Codebooks are better than even steps up to 5 bits; two-level scales are as good as f16 ones and half as large.
_WEIGHTS = (
    *(f"W{bits}{{}}:g{group},nl,s8" for bits in (2, 3, 4, 5) for group in (64, 32)),
    "W6{}:g64,s8",
    "W6{}:g32,s8",
    "W8{}",
    "W8{}:g32,s8",
)
_TIMED = (*(f"W{bits}{{}}:g32,nl,s8" for bits in (2, 3, 4, 5)), "W6{}:g32,s8", "W8{}")
"""Where each stands for int8 and for wide activations: what differs in bits alone, and not in time, is left out."""
_WIDE = ("W8A16", "BF16")
_NARROWEST = 0.45
"""Formats of fewer bits than this share of a promised number are left out: no layer would get them."""


@dataclass(frozen=True)
class Menu:
    """schemes: all that any group may get, each once, in order. options: for each group, its own. fixed: why a group has but one."""

    schemes: tuple[Scheme, ...]
    options: tuple[tuple[Scheme, ...], ...]
    fixed: tuple[str, ...]


def default_candidates(promise: Promise) -> tuple[Scheme, ...]:
    """The menu where none is given. With a promise of latency, activations may be rounded to int8, for which the fastest kernels are."""
    timed = "latency" in promise.limits
    activations, weights = (("A8", "A16"), _TIMED) if timed else (("A16",), _WEIGHTS)
    least = _NARROWEST * promise.limits["bits"] if "bits" in promise.limits and not promise.qualities else 0.0
    names = [text.format(activation) for text in weights for activation in activations]
    schemes = dict.fromkeys(parse_scheme(name) for name in (*names, *_WIDE))
    return tuple(scheme for scheme in schemes if scheme.weight.bits >= least)


def runnable(schemes: Sequence[Scheme], formats: Sequence[str], target: str, *, chosen: bool) -> tuple[Scheme, ...]:
    """Those whose weight format the target has kernels for. chosen: the user's own, of which none may be left out: OptionError."""
    missing = [scheme for scheme in schemes if scheme.weight.name not in formats]
    if missing and chosen:
        raise OptionError(
            f"Candidate {missing[0]} has no kernel on target {target}.", hint=f"Weight formats of {target}: {', '.join(formats)}."
        )
    return tuple(scheme for scheme in schemes if scheme not in missing)


def parse_candidates(texts: Sequence[str], *, group_size: int | None = None, asymmetric: bool | None = None) -> tuple[Scheme, ...]:
    """Schemes as the user lists them; OptionError for one that is not known, or given twice."""
    schemes: list[Scheme] = []
    for text in texts:
        grouped = None if group_size is None else default_group(text, group_size)
        scheme = parse_scheme(text, group_size=grouped, asymmetric=asymmetric)
        if scheme in schemes:
            raise OptionError(f"Candidate {text!r} is listed twice.")
        schemes.append(scheme)
    if not schemes:
        raise OptionError("The list of candidates is empty.", hint="Leave it out for the default menu.")
    return tuple(schemes)


def split_candidates(text: str) -> list[str]:
    """Schemes of one line: split by spaces and commas; a comma before what is only a suffix ("W4A8:g32,asym") belongs to the scheme."""
    found: list[str] = []
    for word in text.split():
        for part in filter(None, word.split(",")):
            if found and _SUFFIX.fullmatch(part):
                found[-1] += ("," if ":" in found[-1] else ":") + part
            else:
                found.append(part)
    return found


def parse_exclusion(text: str) -> Override:
    """Read "LAYER" or "re:PATTERN"."""
    regex = text.startswith("re:")
    pattern = text.removeprefix("re:")
    if not pattern:
        raise OptionError(f"Exclusion {text!r} is not of the form LAYER or re:PATTERN.")
    if regex:
        try:
            re.compile(pattern)
        except re.error as error:
            raise OptionError(f"Exclusion {text!r}: the pattern is not a regular expression: {error}.") from error
    return Override(pattern, EXCLUDED, regex, rule="exclude", reason=f"excluded by {text}")


def restrict(
    groups: Sequence[LayerGroup], schemes: Sequence[Scheme], pins: Sequence[Override], excludes: Sequence[Override], tied: Mapping[str, str]
) -> Menu:
    """The menu of each group. A pin or exclusion of one layer binds all layers of its group.

    tied: other names of a weight -> the one that is stored. OptionError for a pin of no layer, and for pins that pull a group apart.
    """
    aliases: dict[str, list[str]] = {}
    for other, kept in tied.items():
        aliases.setdefault(layer_name(kept), []).append(layer_name(other))
    names = {layer: aliases.get(layer, []) for group in groups for layer in group.layers}
    rules = [replace(pin, rule="pin", reason=pin.reason or f"pinned by {pin.text}") for pin in pins]
    pinned = {**resolve(excludes, names), **resolve(rules, names)}
    options: list[tuple[Scheme, ...]] = []
    fixed: list[str] = []
    for group in groups:
        found = {layer: pinned[layer] for layer in group.layers if layer in pinned}
        if len({rule.scheme for rule in found.values()}) > 1:
            told = ", ".join(f"{layer} {rule.scheme}" for layer, rule in found.items())
            raise OptionError(
                f"Layers that are computed as one cannot have different schemes: {told}.",
                hint=f"Their group is: {', '.join(group.layers)}.",
            )
        if found:
            rule = next(iter(found.values()))
            options.append((rule.scheme,))
            fixed.append(rule.reason)
        else:
            options.append(_fitting(group, schemes))
            fixed.append("")
    used = dict.fromkeys(scheme for one in options for scheme in one)
    return Menu(tuple(used), tuple(options), tuple(fixed))


def _fitting(group: LayerGroup, schemes: Sequence[Scheme]) -> tuple[Scheme, ...]:
    """Where no product rounds its input, schemes that differ in nothing else are one; the first that says so stays."""
    if group.takes_int8:
        return tuple(schemes)
    rounding = ("i8", "e4m3")
    wide = [scheme for scheme in schemes if scheme.activation not in rounding]
    known = {scheme.weight for scheme in wide}
    return (*wide, *(scheme for scheme in schemes if scheme.activation in rounding and scheme.weight not in known))
