"""A checkpoint's tensors under the module's names.

transformers renames and converts some checkpoints while loading (split experts are stacked, fused projections are split, ...). The same
transforms are applied here, one target tensor at a time and only when it is read; shapes are found by running them on the meta device.
"""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from mixplan.compiler.weights.directory import ShardedTensors
from mixplan.compiler.weights.safetensors_file import FLOATS
from mixplan.runtime.errors import CheckpointError

__all__ = ["ConvertedWeights"]

# Elements compared at a time.
_BLOCK = 1 << 22


@dataclass
class _Group:
    """Stored tensors that one transform turns into one or more of the module's: (stored name, transform's pattern)."""

    first: str
    converter: Any = None
    sources: list[tuple[str, str]] = field(default_factory=list)


class ConvertedWeights:
    """WeightSource over safetensors for a transformers model with meta parameters.

    Opening checks that every parameter and persistent buffer of the model is there with the right shape and a floating type, and that
    nothing else is there; each of these is a CheckpointError that names the tensor.
    """

    def __init__(self, model: Any, tensors: ShardedTensors) -> None:
        self._model, self._tensors = model, tensors
        self._group: dict[str, _Group] = {}
        self._shape: dict[str, tuple[int, ...]] = {}
        self._last: tuple[str, dict[str, torch.Tensor]] = ("", {})
        self._ties = _ties(model)
        unknown = self._assign(*self._groups())
        self._untie()
        self._parameters = {name: tuple(p.shape) for name, p in model.named_parameters()}
        persistent = model.state_dict().keys()
        self.buffers = {name: tuple(b.shape) for name, b in model.named_buffers() if name in persistent}
        self._check(unknown)

    def names(self) -> list[str]:
        """The module's parameter names, tied ones once."""
        return list(self._parameters)

    def shape(self, name: str) -> tuple[int, ...]:
        """The parameter's shape."""
        return self._parameters[name]

    def dtype(self, name: str) -> str:
        """The dtype that the checkpoint stores it in (of its first part, where it is made from several)."""
        return self._tensors.entry(self._group[self._stored(name)].sources[0][0]).dtype

    def read(self, name: str) -> NDArray[np.float32]:
        """The whole tensor."""
        name = self._stored(name)
        group = self._group[name]
        if group.converter is None:
            return self._load(group.sources[0][0])
        if self._last[0] != group.first:
            self._last = (group.first, self._convert(group, lambda source: torch.from_numpy(self._load(source))))
        values: NDArray[np.float32] = self._last[1][name].contiguous().numpy()
        if len(self._last[1]) == 1:
            self._last = ("", {})
        return values

    def read_rows(self, name: str, start: int, stop: int) -> NDArray[np.float32]:
        """Rows [start, stop) of the first axis; experts that are stacked from single tensors are read one by one."""
        name = self._stored(name)
        group = self._group[name]
        if group.converter is None:
            return self._load(group.sources[0][0], start, stop)
        if _stacks_experts(group.converter):
            part = _Group(group.first, group.converter, _slice_sources(group.sources, start, stop))
            rows: NDArray[np.float32] = self._convert(part, lambda source: torch.from_numpy(self._load(source)))[name].contiguous().numpy()
            return rows
        return self.read(name)[start:stop]

    def stored_name(self, name: str) -> str | None:
        """The checkpoint's own name of a parameter (or of one tied to it); None where it is made from stored tensors by a conversion."""
        group = self._group[self._stored(name)]
        return group.sources[0][0] if group.converter is None else None

    def close(self) -> None:
        """Close the files."""
        self._tensors.close()

    def _load(self, source: str, start: int = 0, stop: int | None = None) -> NDArray[Any]:
        return self._tensors.read(source, start, stop)

    def _stored(self, name: str) -> str:
        """The name that `name` or a parameter tied to it is stored under."""
        if name in self._group:
            return name
        for other in self._ties.get(name, ()):
            if other in self._group:
                return other
        raise CheckpointError(f"the checkpoint has no tensor for parameter {name!r}")

    def _groups(self) -> tuple[dict[str, _Group], list[str]]:
        """Stored tensors by the module's name, and the stored names that lead nowhere."""
        from transformers.conversion_mapping import get_model_conversion_mapping
        from transformers.core_model_loading import WeightConverter, WeightRenaming, dot_natural_key, rename_source_key

        transforms = get_model_conversion_mapping(self._model)
        renamings = [t for t in transforms if isinstance(t, WeightRenaming)]
        converters = [t for t in transforms if isinstance(t, WeightConverter)]
        by_pattern = {pattern: t for t in converters for pattern in t.source_patterns}
        state, prefix = self._model.state_dict(), self._model.base_model_prefix
        groups: dict[str, _Group] = {}
        unknown: list[str] = []
        for stored in sorted(self._tensors.names(), key=dot_natural_key):
            name, pattern = rename_source_key(stored, renamings, converters, prefix, state)
            if name not in state and stored in state:
                name, pattern = rename_source_key(stored, [], [], prefix, state)
            if name not in state:
                unknown.append(stored)
                continue
            group = groups.setdefault(name, _Group(name, None if pattern is None else by_pattern[pattern]))
            if group.sources and pattern is None:
                raise CheckpointError(f"tensors {group.sources[0][0]!r} and {stored!r} both stand for parameter {name!r}")
            group.sources.append((stored, pattern or stored))
        return groups, unknown

    def _untie(self) -> None:
        """Separate the parameters that the config ties but the checkpoint stores twice with different values, as transformers does."""
        for name, others in self._ties.items():
            for other in others:
                if name in self._group and other in self._group and not self._same(name, other):
                    path, _, leaf = other.rpartition(".")
                    parameter = torch.empty(self._shape[other], device="meta")
                    setattr(self._model.get_submodule(path), leaf, torch.nn.Parameter(parameter, requires_grad=False))
        self._ties = _ties(self._model)

    def _same(self, name: str, other: str) -> bool:
        if self._shape[name] != self._shape[other]:
            return False
        step = max(1, _BLOCK // max(1, math.prod(self._shape[name][1:])))
        rows = range(0, self._shape[name][0], step)
        return all(np.array_equal(self.read_rows(name, r, r + step), self.read_rows(other, r, r + step)) for r in rows)

    def _assign(self, groups: dict[str, _Group], unknown: list[str]) -> list[str]:
        for group in groups.values():
            if group.converter is None:
                self._group[group.first], self._shape[group.first] = group, self._tensors.entry(group.sources[0][0]).shape
                continue
            made = self._convert(group, lambda source: torch.empty(self._tensors.entry(source).shape, device="meta"))
            for name, tensor in made.items():
                self._group[name], self._shape[name] = group, tuple(tensor.shape)
        return unknown

    def _convert(self, group: _Group, load: Callable[[str], torch.Tensor]) -> dict[str, torch.Tensor]:
        converter = copy.deepcopy(group.converter)
        for source, pattern in group.sources:
            converter.add_tensor(group.first, source, pattern, lambda source=source: load(source))
        try:
            made = converter.convert(group.first, model=self._model, config=self._model.config)
        except CheckpointError:
            raise
        except Exception as error:  # transformers' converters fail in any way on tensors that do not fit
            names = ", ".join(source for source, _ in group.sources[:4])
            raise CheckpointError(f"tensors {names}, ... cannot be turned into parameter {group.first!r}: {error}") from error
        return {name: value[0] if isinstance(value, list) else value for name, value in made.items()}

    def _check(self, unknown: list[str]) -> None:
        wanted = {**self._parameters, **self.buffers}
        missing = [n for n in wanted if n not in self._group and not any(o in self._group for o in self._ties.get(n, ()))]
        missing = _without(missing, self._model._keys_to_ignore_on_load_missing) if missing else []
        extra = _without(
            unknown, [*(self._model._keys_to_ignore_on_load_unexpected or ()), r"rotary_emb\.inv_freq$", r"(^|\.)position_ids$"]
        )
        where = self._tensors.folder
        hint = "config.json and the weights disagree: take both from the same revision of the checkpoint."
        if missing:
            raise CheckpointError(f"{where}: the config asks for {_some(missing)}, not in the checkpoint", hint=hint)
        for name, shape in wanted.items():
            stored = next((n for n in (name, *self._ties.get(name, ())) if n in self._group), name)
            if self._shape.get(stored, shape) != shape:
                file = self._tensors.file(self._group[stored].sources[0][0]).path.name
                raise CheckpointError(
                    f"{where}: tensor {stored!r} in {file} has shape {list(self._shape[stored])}, but the config asks for {list(shape)}",
                    hint=hint,
                )
            for source, _ in self._group[stored].sources if stored in self._group else ():
                entry = self._tensors.entry(source)
                if name in self._parameters and entry.dtype not in FLOATS:
                    file = self._tensors.file(source).path.name
                    raise CheckpointError(
                        f"{where}: tensor {source!r} in {file} has dtype {entry.dtype}, expected F32, F16, BF16 or F8_E4M3",
                        hint="Quantized checkpoints are not read; compile from the original weights.",
                    )
        if extra:
            raise CheckpointError(f"{where}: the checkpoint has {_some(extra)}, for which the config has no place", hint=hint)


def _ties(model: Any) -> dict[str, tuple[str, ...]]:
    """For each parameter name, the other names of the same tensor."""
    names: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    return {name: tuple(n for n in same if n != name) for same in names.values() if len(same) > 1 for name in same}


def _stacks_experts(converter: Any) -> bool:
    """Whether row r of the result is made from the r-th tensor of every pattern alone."""
    from transformers.core_model_loading import Concatenate, Interleave, MergeModulelist, Transpose

    first, *rest = converter.operations
    if len(converter.target_patterns) != 1 or not (isinstance(first, MergeModulelist) and first.dim == 0):
        return False
    return all(
        (isinstance(op, Concatenate | Interleave) and op.dim >= 1) or (isinstance(op, Transpose) and min(op.dim0, op.dim1) >= 1)
        for op in rest
    )


def _slice_sources(sources: Sequence[tuple[str, str]], start: int, stop: int) -> list[tuple[str, str]]:
    by_pattern: dict[str, list[tuple[str, str]]] = {}
    for source in sources:
        by_pattern.setdefault(source[1], []).append(source)
    return [source for same in by_pattern.values() for source in same[start:stop]]


def _without(names: list[str], patterns: Any) -> list[str]:
    compiled = [re.compile(pattern) for pattern in patterns or ()]
    return [name for name in names if not any(pattern.search(name) for pattern in compiled)]


def _some(names: list[str]) -> str:
    shown = ", ".join(repr(name) for name in names[:3])
    return f"tensor {shown}" if len(names) == 1 else f"{len(names)} tensors ({shown}{', ...' if len(names) > 3 else ''})"
