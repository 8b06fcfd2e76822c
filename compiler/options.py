"""A compile's options, parsed and checked before anything is opened."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from mixplan.compiler.attention import KV_FORMATS, SCORES, AttentionRules, parse_rules
from mixplan.compiler.placing.rules import PlacingRules
from mixplan.compiler.units import Units, parse_units
from mixplan.passes.base import PassOptions, Scaler
from mixplan.passes.manager import PassManager
from mixplan.passes.pipeline import pass_manager
from mixplan.passes.precision.overrides import Override, parse_override
from mixplan.passes.precision.schemes import SOURCE, Scheme, default_group, parse_scheme, parse_source
from mixplan.runtime.errors import OptionError
from mixplan.runtime.formats import GROUP_SIZES

__all__ = ["Options", "parse_options"]


@dataclass(frozen=True)
class Options:
    """The caller's options. `texts` are for the plan's provenance; `label` ends the plan's name.

    source: where layers keep the formats of the checkpoint's file, how their inputs are rounded; `scheme` is then that of what has none.
    attention_given: whether the caller said anything of KV formats or scores.
    """

    scheme: Scheme
    manager: PassManager
    pass_options: PassOptions
    dump: Path | None
    units: Units
    max_step_tokens: int
    attention: AttentionRules
    seed: int
    shard_bytes: int
    texts: dict[str, str]
    label: str
    source: Literal["f32", "i8"] | None = None
    attention_given: bool = False

    @property
    def targets(self) -> tuple[str, ...]:
        """Names of the targets, in order of preference."""
        return self.units.names

    @property
    def levels(self) -> tuple[str, ...]:
        """The levels to build, () for all."""
        return self.units.levels

    @property
    def rounds_activations(self) -> bool:
        """Whether a layer may get integers for activations."""
        return self.source == "i8" or any(
            scheme.activation == "i8" for scheme in (self.scheme, *(rule.scheme for rule in self.pass_options.overrides))
        )

    @property
    def quantizes(self) -> bool:
        """Whether a layer may get 8 bits or fewer."""
        return any(scheme.weight.quantized for scheme in (self.scheme, *(rule.scheme for rule in self.pass_options.overrides)))

    @property
    def few_bits(self) -> bool:
        """Whether a layer may get fewer than 8 bits, so that calibration pays."""
        schemes = [self.scheme, *(rule.scheme for rule in self.pass_options.overrides)]
        return any(scheme.weight.bits < 8 for scheme in schemes)

    def searched(self, label: str, facts: dict[str, str]) -> Options:
        """For a plan that is searched for: its name's end, and what the provenance says in place of a scheme."""
        texts = {**{key: text for key, text in self.texts.items() if key not in ("scheme", "overrides")}, **facts}
        return replace(self, label=label, texts=texts)

    def with_stored(self, stored: Mapping[str, tuple[Scheme, str]]) -> Options:
        """The same, with the layers that keep what the checkpoint has."""
        pass_options = replace(self.pass_options, stored=stored)
        return replace(self, pass_options=pass_options, manager=pass_manager(pass_options))

    def with_scaler(self, scaler: Scaler | None) -> Options:
        """The same, with inputs of layers scaled, or without."""
        pass_options = replace(self.pass_options, scaler=scaler)
        return replace(self, pass_options=pass_options, manager=pass_manager(pass_options))

    def with_facts(self, facts: Mapping[str, str]) -> Options:
        """The same, with more for the plan's provenance."""
        return replace(self, texts={**self.texts, **facts})

    def with_overrides(self, overrides: Sequence[Override]) -> Options:
        """The same, with other overrides."""
        pass_options = replace(self.pass_options, overrides=tuple(overrides))
        return replace(self, pass_options=pass_options, manager=pass_manager(pass_options))


def parse_options(
    *,
    scheme: str,
    group_size: int,
    symmetric: bool,
    overrides: Sequence[str],
    passes: Sequence[str],
    dump: str | Path | None,
    targets: Sequence[str],
    isa: Sequence[str] | None,
    max_step_tokens: int,
    seed: int,
    kv_dtype: str | None,
    attention_scores: str | None = None,
    shard_bytes: int,
    provider: str | None = None,
    activation_type: str | None = None,
    placing: PlacingRules | None = None,
    tune: bool = False,
) -> Options:
    """Raises OptionError for what is not allowed."""

    def group_of(text: str) -> int | None:
        return default_group(text, group_size)

    source = parse_source(scheme)
    named = scheme if source is None else "FP32"
    parsed = parse_scheme(named, group_size=group_of(named), asymmetric=not symmetric)
    label = str(parsed) if source is None else SOURCE if source == "f32" else f"{SOURCE}:A8"
    rules = tuple(parse_override(text, group_size=group_of(text.rpartition("=")[2]), asymmetric=not symmetric) for text in overrides)
    units = parse_units(targets, provider, activation_type, isa, placing, tune)
    if group_size not in GROUP_SIZES:
        raise OptionError(f"group_size is {group_size}; allowed are {', '.join(map(str, GROUP_SIZES))}.")
    pass_options = PassOptions(scheme=parsed, overrides=rules, target=units.names[0], user_passes=tuple(passes))
    if not 1 <= max_step_tokens <= 8192:
        raise OptionError(f"max_step_tokens is {max_step_tokens}; allowed are 1 to 8192.")
    attention = _attention(kv_dtype, attention_scores, "f32" if label == "FP32" else "f16")
    texts = {
        "scheme": label,
        "overrides": " ".join(rule.text for rule in rules),
        "passes": " ".join(passes),
        "targets": " ".join(targets),
        "isa": " ".join(isa) if isa else "all",
        "kv_dtype": kv_dtype or attention.kv,
        "max_step_tokens": str(max_step_tokens),
        **({} if attention_scores is None else {"attention_scores": attention_scores}),
        **({"tune": "true"} if tune else {}),
        **({} if provider is None else {"provider": provider}),
        **({} if activation_type is None else {"activation_type": activation_type}),
    }
    return Options(
        scheme=parsed,
        manager=pass_manager(pass_options),
        pass_options=pass_options,
        dump=None if dump is None else Path(dump),
        units=units,
        max_step_tokens=max_step_tokens,
        attention=attention,
        seed=seed,
        shard_bytes=shard_bytes,
        texts=texts,
        label=label,
        source=source,
        attention_given=kv_dtype is not None or attention_scores is not None,
    )


def _attention(kv_dtype: str | None, scores: str | None, usual: str) -> AttentionRules:
    kept, kept_rules = (None, ()) if kv_dtype is None else parse_rules("kv_dtype", kv_dtype, KV_FORMATS, heads=True)
    scored, scored_rules = (None, ()) if scores is None else parse_rules("attention_scores", scores, SCORES, heads=False)
    return AttentionRules(kept or usual, kept_rules, scored or "f32", scored_rules)
