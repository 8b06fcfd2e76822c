"""Where each stored constant lies: file, key and offset, computed before a byte is written."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from mixplan.compiler.lowering.builder import Source
from mixplan.runtime.plan import Tensor, Value

__all__ = ["ALIGNMENT", "SHARD_BYTES", "Group", "Layout", "Shard", "make_layout"]

ALIGNMENT = 64
SHARD_BYTES = 4 << 30
_ROLES = ("weight", "scales", "zeros")


@dataclass(frozen=True)
class Group:
    """Constants written together: one dense one, or a packed weight with its scales and zero points."""

    values: tuple[int, ...]


@dataclass
class Shard:
    """One safetensors file: its header's bytes, its groups in order, the size of its data."""

    file: str
    groups: list[Group] = field(default_factory=list)
    header: bytes = b""
    size: int = 0


@dataclass
class Layout:
    """All shards, and the place of each stored value."""

    shards: list[Shard]
    tensors: dict[int, Tensor]

    @property
    def nbytes(self) -> int:
        """Bytes of all files."""
        return sum(len(s.header) + s.size for s in self.shards)


def make_layout(values: Sequence[Value], sources: Mapping[int, Source], shard_bytes: int = SHARD_BYTES) -> Layout:
    """Lay out every stored constant in the order of the values, each at a multiple of 64 bytes, in files of about `shard_bytes`.

    safetensors allows no gaps, so alignment is made by small filler tensors.
    """
    parts: list[list[Group]] = [[]]
    filled = 0
    for group in _groups(sources):
        size = sum(_aligned(_nbytes(values[i])) for i in group.values)
        if parts[-1] and filled + size > shard_bytes:
            parts.append([])
            filled = 0
        parts[-1].append(group)
        filled += size
    if not parts[0]:
        return Layout([], {})
    tensors: dict[int, Tensor] = {}
    names = _keys(values, sources)
    shards = []
    for number, groups in enumerate(parts, 1):
        file = "weights.safetensors" if len(parts) == 1 else f"weights-{number:05d}-of-{len(parts):05d}.safetensors"
        shards.append(_shard(file, groups, values, names, tensors))
    return Layout(shards, tensors)


def _groups(sources: Mapping[int, Source]) -> list[Group]:
    groups: dict[object, list[int]] = {}
    for index, source in sources.items():
        groups.setdefault(source.packed.key if source.packed is not None else index, []).append(index)
    return [Group(tuple(sorted(members, key=lambda i: _ROLES.index(sources[i].role or "weight")))) for members in groups.values()]


def _shard(file: str, groups: list[Group], values: Sequence[Value], names: Mapping[int, str], tensors: dict[int, Tensor]) -> Shard:
    entries: dict[str, object] = {"__metadata__": {"format": "mixplan"}}
    offset = 0
    for index in (i for group in groups for i in group.values):
        value, nbytes = values[index], _nbytes(values[index])
        tensors[index] = Tensor(file=file, key=names[index], offset=offset, nbytes=nbytes)
        entries[names[index]] = {"dtype": value.dtype.safetensors, "shape": list(value.shape), "data_offsets": [offset, offset + nbytes]}
        end = offset + nbytes
        offset = _aligned(end)
        if offset != end:
            entries[f"~align.{index}"] = {"dtype": "U8", "shape": [offset - end], "data_offsets": [end, offset]}
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % ALIGNMENT)
    return Shard(file, groups, len(text).to_bytes(8, "little") + text, offset)


def _keys(values: Sequence[Value], sources: Mapping[int, Source]) -> dict[int, str]:
    """A key for each constant: its name, numbered where two have one name."""
    used: dict[str, int] = {}
    keys = {}
    for index in sources:
        name = values[index].name
        count = used[name] = used.get(name, 0) + 1
        keys[index] = name if count == 1 else f"{name}~{count}"
    return keys


def _nbytes(value: Value) -> int:
    return math.prod(d for d in value.shape if isinstance(d, int)) * value.dtype.itemsize


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT
