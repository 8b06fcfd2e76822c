"""Schemes for single layers: `NAME=SCHEME`, where NAME is a layer's exact name or `re:` and a pattern."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mixplan.passes.precision.schemes import Scheme, parse_scheme
from mixplan.runtime.errors import OptionError

__all__ = ["RULE_OVERRIDE", "Override", "parse_override", "resolve"]

RULE_OVERRIDE = "override"
_NEAR = 3


@dataclass(frozen=True)
class Override:
    """Layers that `pattern` names get `scheme`. With `regex`, the pattern is searched for anywhere in the name.

    rule: who says so, as it stands in the layer's decision. reason: why; the text, if empty.
    """

    pattern: str
    scheme: Scheme
    regex: bool
    rule: str = RULE_OVERRIDE
    reason: str = ""

    @property
    def text(self) -> str:
        """As the user wrote it."""
        return f"{'re:' if self.regex else ''}{self.pattern}={self.scheme}"

    def matches(self, name: str) -> bool:
        """Whether it names this layer."""
        return re.search(self.pattern, name) is not None if self.regex else self.pattern == name


def parse_override(text: str, *, group_size: int | None = None, asymmetric: bool | None = None) -> Override:
    """Read "model.layers.0.mlp.down_proj=W8A8" or "re:down_proj$=W4A8:g32". Raises OptionError where that cannot be done."""
    pattern, equals, scheme = text.rpartition("=")
    if not equals or not pattern.removeprefix("re:"):
        raise OptionError(f"Override {text!r} is not of the form LAYER=SCHEME or re:PATTERN=SCHEME.")
    regex = pattern.startswith("re:")
    pattern = pattern.removeprefix("re:")
    if regex:
        try:
            re.compile(pattern)
        except re.error as error:
            raise OptionError(f"Override {text!r}: the pattern is not a regular expression: {error}.") from error
    return Override(pattern, parse_scheme(scheme, group_size=group_size, asymmetric=asymmetric), regex)


def resolve(overrides: Sequence[Override], layers: Mapping[str, Sequence[str]]) -> dict[str, Override]:
    """Which override each layer follows. `layers` maps a layer's name to its other names (tied weights), which overrides may use as well.

    An exact name beats a pattern; among equals the last one given wins. Raises OptionError for an override that names no layer.
    """
    for override in overrides:
        if not any(override.matches(name) for names in _all_names(layers).values() for name in names):
            raise OptionError(f"Override {override.text!r} matches no layer.", hint=_suggest(override, layers))
    chosen: dict[str, Override] = {}
    for layer, names in _all_names(layers).items():
        fitting = [override for override in overrides if any(override.matches(name) for name in names)]
        exact = [override for override in fitting if not override.regex]
        if fitting:
            chosen[layer] = (exact or fitting)[-1]
    return chosen


def _all_names(layers: Mapping[str, Sequence[str]]) -> dict[str, tuple[str, ...]]:
    return {layer: (layer, *others) for layer, others in layers.items()}


def _suggest(override: Override, layers: Mapping[str, Sequence[str]]) -> str:
    names = [name for group in _all_names(layers).values() for name in group]
    near = sorted(names, key=lambda name: -_likeness(override.pattern, name))[:_NEAR]
    return f"Layers with near names: {', '.join(near)}." if near else "The model has no layers to override."


def _likeness(pattern: str, name: str) -> float:
    """0 to 1: of the pattern, without its regular expression's signs, and the end of the name that has as many parts."""
    plain = re.sub(r"[^\w.]|\\[a-z]", "", pattern.replace("\\.", ".")).strip(".")
    tail = ".".join(name.split(".")[-plain.count(".") - 1 :])
    return difflib.SequenceMatcher(None, plain, tail).ratio()
