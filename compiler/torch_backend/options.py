"""The backend's options: which layer gets which scheme, by rules or by a plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from mixplan.passes.precision.overrides import Override, parse_override, resolve
from mixplan.passes.precision.schemes import Scheme, default_group, parse_scheme
from mixplan.runtime.errors import OptionError
from mixplan.runtime.formats import GROUP_SIZES
from mixplan.runtime.plan_io import read_plan

__all__ = ["BackendOptions", "parse_backend_options"]

_KEYS = ("scheme", "overrides", "group_size", "symmetric", "inputs", "plan")
_DEFAULT_SCHEME = "W4A8"
_DEFAULT_GROUP = 32


@dataclass(frozen=True)
class BackendOptions:
    """scheme and overrides, or planned: schemes by layer. inputs: second moments f32 [K] of layers' inputs, by layer."""

    scheme: Scheme
    overrides: tuple[Override, ...] = ()
    planned: Mapping[str, Scheme] | None = None
    inputs: Mapping[str, Tensor] = field(default_factory=dict)

    def schemes(self, layers: Mapping[str, Sequence[str]], heads: set[str]) -> dict[str, Scheme]:
        """The scheme of each layer; `layers` maps names to other names of tied weights, `heads` are those that make the logits.

        OptionError for an override that names no layer, or a plan that lacks one.
        """
        if self.planned is not None:
            return {name: self._planned(name, others) for name, others in layers.items()}
        chosen = resolve(self.overrides, layers)
        wide = parse_scheme("W8A8" if self.scheme.activation == "i8" else "W8A16")
        few = self.scheme.weight.bits <= 4
        return {name: chosen[name].scheme if name in chosen else wide if few and name in heads else self.scheme for name in layers}

    def _planned(self, name: str, others: Sequence[str]) -> Scheme:
        assert self.planned is not None
        for one in (name, *others):
            if one in self.planned:
                return self.planned[one]
        known = ", ".join(list(self.planned)[:3])
        raise OptionError(
            f"The plan decides on no layer {name}; it has {known}, ...", hint="Give a plan of this very model, compiled as one module."
        )


def parse_backend_options(options: Mapping[str, Any] | None) -> BackendOptions:
    """Raises OptionError for unknown options, values of wrong types, and what schemes and overrides do not allow."""
    given = dict(options or {})
    unknown = sorted(map(str, given.keys() - set(_KEYS)))
    if unknown:
        raise OptionError(f"Backend option {unknown[0]!r} is not known; allowed: {', '.join(_KEYS)}.")
    inputs = given.pop("inputs", {})
    if not isinstance(inputs, Mapping) or not all(isinstance(one, Tensor) and one.ndim == 1 for one in inputs.values()):
        raise OptionError("Backend option inputs must map layers to tensors [columns], as mixplan.compiler.importance.input_moments does.")
    inputs = {str(name).removesuffix(".weight"): moments for name, moments in inputs.items()}
    if "plan" in given:
        others = sorted(given.keys() - {"plan"})
        if others:
            raise OptionError(f"Backend option plan decides on every layer; {others[0]} cannot be given beside it.")
        return BackendOptions(parse_scheme("FP32"), planned=_decisions(given["plan"]), inputs=inputs)
    scheme, overrides = given.get("scheme", _DEFAULT_SCHEME), given.get("overrides", ())
    group, symmetric = given.get("group_size", _DEFAULT_GROUP), given.get("symmetric", True)
    if not isinstance(scheme, str):
        raise OptionError(f"Backend option scheme is {scheme!r}; it must be a text such as 'W4A8:g32'.")
    if isinstance(overrides, str) or not all(isinstance(one, str) for one in overrides):
        raise OptionError("Backend option overrides must be a list of texts such as 'lm_head=W8A16'.")
    if group not in GROUP_SIZES:
        raise OptionError(f"Backend option group_size is {group!r}; allowed are {', '.join(map(str, GROUP_SIZES))}.")
    if not isinstance(symmetric, bool):
        raise OptionError(f"Backend option symmetric is {symmetric!r}; it must be True or False.")
    parsed = parse_scheme(scheme, group_size=default_group(scheme, group), asymmetric=not symmetric)
    rules = [parse_override(text, group_size=default_group(text.rpartition("=")[2], group), asymmetric=not symmetric) for text in overrides]
    return BackendOptions(parsed, tuple(rules), inputs=inputs)


def _decisions(path: Any) -> dict[str, Scheme]:
    with read_plan(path, verify="manifest") as loaded:
        return {record.layer: parse_scheme(record.scheme) for record in loaded.plan.decisions}
