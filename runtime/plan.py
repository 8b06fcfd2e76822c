"""The plan: the typed form of `plan.json`.

A plan is a flat SSA program. `values` are numbered; each is an input of the step, a constant, or the output of exactly one node.
`nodes` stand in topological order and are cut into consecutive `regions`, each run by one device. Unknown fields are refused.
The prose beside it is PLAN_FORMAT.md; bounds are checked in `plan_check.py`.
"""

from __future__ import annotations

from itertools import groupby
from typing import Literal, TypeAlias

import msgspec

from mixplan.runtime.dtypes import DType
from mixplan.runtime.kv_format import KvFormat

__all__ = [
    "SCHEMA_VERSION",
    "AttentionLayer",
    "Attr",
    "Decision",
    "Dim",
    "FileEntry",
    "Model",
    "Node",
    "Plan",
    "Provenance",
    "Region",
    "Shape",
    "Sym",
    "Tensor",
    "Value",
    "dim_value",
]

SCHEMA_VERSION = 1


class _Record(msgspec.Struct, forbid_unknown_fields=True, frozen=True, omit_defaults=True):
    """Base of every record: immutable, strict, defaults left out of the JSON."""


class Sym(_Record, frozen=True):
    """A dimension known only at the step: `mul * sym + add`.

    `T` is the number of tokens in the step, `R` the number of rows whose logits are wanted.
    """

    sym: Literal["T", "R"]
    mul: int = 1
    add: int = 0


Dim: TypeAlias = int | Sym
Shape: TypeAlias = tuple[Dim, ...]
# One element type per list (checked against the op's signature); the decoder allows only one array type in a union.
Attr: TypeAlias = bool | int | float | str | tuple[bool | int | float | str, ...]


class Tensor(_Record, frozen=True):
    """Where a constant's bytes lie: `nbytes` from `offset` in the data of safetensors file `file`, under `key`."""

    file: str
    key: str
    offset: int
    nbytes: int


class Value(_Record, frozen=True):
    """One SSA value. `kind` says where it comes from.

    input: given by the runtime (see PLAN_FORMAT.md for the four names). const: `tensor` or `fill` is set. node: made by a node.
    """

    name: str
    kind: Literal["input", "const", "node"]
    dtype: DType
    shape: Shape
    tensor: Tensor | None = None
    # A constant whose elements are all this number; "inf", "-inf" and "nan" are spelled, since JSON has no such numbers.
    fill: float | int | bool | str | None = None


class Node(_Record, frozen=True):
    """One op. Inputs are value indices in the order of the op's signature, -1 for an optional input left out."""

    op: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    attrs: dict[str, Attr] = {}
    name: str = ""
    # The captured graph's node that computes the same value, for node-by-node verification ("" if none does). Of a node behind the choice
    # of logit rows: in a step that wants them all.
    origin: str = ""
    # The rewrite rule that made the node ("" where it comes straight from the capture).
    rule: str = ""


class Region(_Record, frozen=True):
    """Nodes [start, stop), run by one device in one call.

    `inputs` are values made outside and used inside (step inputs and other regions' outputs, not constants); `outputs` are made inside
    and used outside or returned. `kernels` maps an ISA level to the path of its binary, `source` is the generated source's path.
    """

    name: str
    device: str
    start: int
    stop: int
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    kernels: dict[str, str] = {}
    source: str = ""
    reason: str = ""


class AttentionLayer(_Record, frozen=True):
    """What one attention node keeps in the KV cache, per token: a key and a value of each KV head, in the format `dtype`.

    `heads` gives each KV head's own format where they are not all alike; it is empty otherwise.
    """

    kv_heads: int
    k_dim: int
    v_dim: int
    dtype: KvFormat
    window: int = 0
    heads: tuple[KvFormat, ...] = ()

    @property
    def runs(self) -> tuple[tuple[KvFormat, int], ...]:
        """Neighbouring heads of one format: the format, and how many they are."""
        if not self.heads:
            return ((self.dtype, self.kv_heads),)
        return tuple((held, len(list(heads))) for held, heads in groupby(self.heads))

    @property
    def token_bytes(self) -> int:
        """Bytes that a token leaves here, scales counted in."""
        return sum(count * held.token_bytes(self.k_dim, self.v_dim) for held, count in self.runs)


class Decision(_Record, frozen=True):
    """The format that one layer (a weight of the checkpoint) was given, and why."""

    layer: str
    scheme: str
    rule: str
    parameters: int
    bits: float
    requested: str
    reason: str = ""


class FileEntry(_Record, frozen=True):
    """Size and SHA-256 (hex) of one file of the plan, by its path relative to the plan."""

    sha256: str
    size: int


class Model(_Record, frozen=True):
    """What the runtime must know of the model. Token ids refer to the plan's tokenizer.json."""

    architecture: str
    vocab_size: int
    context_length: int
    parameters: int
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()
    # generation_config's sampling defaults, as far as the runtime knows them (temperature, top_k, top_p, min_p, repetition_penalty).
    generation: dict[str, float] = {}


class Provenance(_Record, frozen=True):
    """Where the plan comes from. Holds no time, host or path, so that equal inputs give equal bytes."""

    source_format: str
    source_name: str
    source_files: dict[str, str]
    options: dict[str, str]
    versions: dict[str, str]
    seed: int = 0


class Plan(_Record, frozen=True):
    """The whole of plan.json."""

    schema_version: int
    name: str
    model: Model
    values: tuple[Value, ...]
    nodes: tuple[Node, ...]
    regions: tuple[Region, ...]
    outputs: tuple[int, ...]
    attention: tuple[AttentionLayer, ...]
    max_step_tokens: int
    decisions: tuple[Decision, ...]
    effective_bits: float
    provenance: Provenance
    files: dict[str, FileEntry] = {}
    # How many nodes each pass rewrote, and every "no" with node and reason.
    passes: dict[str, int] = {}
    rejections: tuple[str, ...] = ()


def dim_value(dim: Dim, *, tokens: int, rows: int) -> int:
    """The dimension's number of elements in a step of `tokens` tokens that asks for `rows` rows of logits."""
    if isinstance(dim, int):
        return dim
    return dim.mul * (tokens if dim.sym == "T" else rows) + dim.add
