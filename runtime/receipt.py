"""The receipt of a plan whose formats were searched for: what was promised, what was measured, and what each layer could have been.

It is `receipt.json` in the plan's directory, listed in the manifest as any other file. A plan compiled with a fixed scheme has none. It is
for people and for tools; the runtime does not need it to run the plan.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from mixplan.runtime.errors import PlanError

if TYPE_CHECKING:
    from mixplan.runtime.plan_io import LoadedPlan

__all__ = [
    "MAX_RECEIPT_BYTES",
    "RECEIPT",
    "Candidate",
    "CurvePoint",
    "LayerChoice",
    "Receipt",
    "Solver",
    "decode_receipt",
    "encode_receipt",
    "read_receipt",
    "write_receipt",
]

RECEIPT = "receipt.json"
MAX_RECEIPT_BYTES = 16 << 20
"""Some hundred bytes for each layer and candidate: a model of 10,000 layers stays below it."""
# Texts are names and sentences, not documents.
_MAX_TEXT = 4096


class _Record(msgspec.Struct, forbid_unknown_fields=True, frozen=True, omit_defaults=True):
    """Base of every record: immutable, strict, defaults left out of the JSON."""


class Candidate(_Record, frozen=True):
    """A scheme that a layer could have had. bits: effective, per weight. predicted_loss: of KL divergence, nats, by this layer alone;
    predicted_seconds: of its share of a step, where the target was asked for it."""

    scheme: str
    bits: float
    predicted_loss: float
    predicted_seconds: float | None = None


class LayerChoice(_Record, frozen=True):
    """What a layer got, why, and what else there was. `layer` is a name in the plan's decisions, or several joined by " + "."""

    layer: str
    chosen: str
    reason: str = ""
    candidates: tuple[Candidate, ...] = ()


class CurvePoint(_Record, frozen=True):
    """A point of the trade between bits, loss and latency. kind says what it is: predicted, measured, uniform, ..."""

    bits: float
    loss: float
    seconds: float | None = None
    kind: str = "predicted"


class Solver(_Record, frozen=True):
    """How the integer program ended. gap: relative, between the solution and the bound. predicted: the loss that it expects.

    seconds is left out where equal inputs must give equal bytes.
    """

    status: str = ""
    gap: float | None = None
    seconds: float | None = None
    predicted: float | None = None


class Receipt(_Record, frozen=True):
    """promise: what was asked for, by option (bits: "4.5"). achieved: what came of it, by the same names. measured: figures of the plan as
    the runtime runs it, on held-out text (perplexity, kld_mean, ...). text: what it was calibrated and measured on. attention: of each
    attention layer what it keeps in the KV cache, where that was searched; bits are of each number kept."""

    promise: dict[str, str] = {}
    achieved: dict[str, float] = {}
    solver: Solver = Solver()
    layers: tuple[LayerChoice, ...] = ()
    curve: tuple[CurvePoint, ...] = ()
    measured: dict[str, float] = {}
    text: dict[str, str] = {}
    attention: tuple[LayerChoice, ...] = ()


_DECODER = msgspec.json.Decoder(Receipt)
_ENCODER = msgspec.json.Encoder(order="deterministic")


def encode_receipt(receipt: Receipt) -> bytes:
    """The canonical text: fields in schema order, keys of objects sorted, a layer and a point of the curve a line.

    PlanError for what could not be read back: numbers that are not finite, texts that are not printable or too long, a text too large.
    """
    _check(receipt, source=RECEIPT)
    lines = []
    for name in receipt.__struct_fields__:
        field = getattr(receipt, name)
        if isinstance(field, tuple) and field:
            lines.append(_ENCODER.encode(name) + b":[\n" + b",\n".join(_ENCODER.encode(item) for item in field) + b"\n]")
        else:
            lines.append(_ENCODER.encode(name) + b":" + _ENCODER.encode(field))
    data = b"{\n" + b",\n".join(lines) + b"\n}\n"
    _check_size(len(data), RECEIPT)
    return data


def decode_receipt(data: bytes, *, source: str = RECEIPT) -> Receipt:
    """The receipt that the JSON text `data` holds; `source` names it in errors. Raises PlanError for anything that is not as it must be."""
    _check_size(len(data), source)
    try:
        receipt = _DECODER.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise PlanError(f"{source} is not a valid receipt: {error}.", hint="See PLAN_FORMAT.md for the schema.") from None
    _check(receipt, source=source)
    return receipt


def read_receipt(plan: LoadedPlan) -> Receipt | None:
    """The receipt of an opened plan, None where it has none. PlanError for one that is malformed or not what the manifest lists."""
    entry = plan.plan.files.get(RECEIPT)
    if entry is None:
        return None
    source = f"{plan.root}/{RECEIPT}"
    _check_size(entry.size, source)  # before it is read
    return decode_receipt(plan.read_file(RECEIPT), source=source)


def write_receipt(root: Path, receipt: Receipt) -> None:
    """Write the receipt into the directory of a plan, whose manifest is not written yet."""
    (root / RECEIPT).write_bytes(encode_receipt(receipt))


def _check_size(size: int, source: str) -> None:
    if size > MAX_RECEIPT_BYTES:
        raise PlanError(f"{source} has {size} bytes; at most {MAX_RECEIPT_BYTES} are read.")


def _check(receipt: Receipt, *, source: str) -> None:
    for leaf in _leaves(msgspec.to_builtins(receipt)):
        if isinstance(leaf, float) and not math.isfinite(leaf):
            raise PlanError(f"{source} holds the number {leaf}; numbers must be finite.")
        if isinstance(leaf, str) and (not leaf.isprintable() or len(leaf) > _MAX_TEXT):
            raise PlanError(f"{source} holds the text {leaf[:80]!r}; texts must be printable, of at most {_MAX_TEXT} characters.")


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield key
            yield from _leaves(item)
    elif isinstance(value, Sequence) and not isinstance(value, str):
        for item in value:
            yield from _leaves(item)
    else:
        yield value
