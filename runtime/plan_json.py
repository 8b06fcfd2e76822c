"""plan.json as text: strict decoding, and an encoding that gives equal bytes for equal plans."""

from __future__ import annotations

import math

import msgspec

from mixplan.runtime.errors import PlanError
from mixplan.runtime.ops import OPS
from mixplan.runtime.plan import SCHEMA_VERSION, Attr, Node, Plan, Value

__all__ = ["MAX_MANIFEST_BYTES", "decode_plan", "encode_plan", "fill_number"]

MAX_MANIFEST_BYTES = 64 << 20
"""A plan.json of a 100-layer model is a few MB."""

_SPELLED = {"inf": math.inf, "-inf": -math.inf, "nan": math.nan}


class _Version(msgspec.Struct):
    """The one field that every schema version has."""

    schema_version: int


_DECODER = msgspec.json.Decoder(Plan)
_VERSION_DECODER = msgspec.json.Decoder(_Version)
_ENCODER = msgspec.json.Encoder(order="deterministic")


def decode_plan(data: bytes, *, source: str) -> Plan:
    """The plan that the JSON text `data` holds; `source` names it in errors. Only the form is checked here, see plan_check for the rest."""
    if len(data) > MAX_MANIFEST_BYTES:
        raise PlanError(f"{source} has {len(data)} bytes; at most {MAX_MANIFEST_BYTES} are read.")
    try:
        version = _VERSION_DECODER.decode(data).schema_version
        if version > SCHEMA_VERSION:
            raise PlanError(
                f"{source} is of schema version {version}; this mixplan reads up to {SCHEMA_VERSION}.",
                hint="Run: pip install --upgrade mixplan",
            )
        if version < 1:
            raise PlanError(f"{source} gives schema_version {version}; versions start at 1.")
        plan = _DECODER.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise PlanError(f"{source} is not a valid plan: {error}.", hint="See PLAN_FORMAT.md for the schema.") from None
    nodes = tuple(_floats(node) for node in plan.nodes)
    return msgspec.structs.replace(plan, nodes=nodes)


def encode_plan(plan: Plan) -> bytes:
    """The canonical text: fields in schema order, dict keys sorted, one list item a line, non-finite floats spelled as strings."""
    plan = msgspec.structs.replace(
        plan,
        nodes=tuple(msgspec.structs.replace(node, attrs={key: _spell(attr) for key, attr in node.attrs.items()}) for node in plan.nodes),
        values=tuple(_spell_fill(value) for value in plan.values),
    )
    if not math.isfinite(plan.effective_bits) or not all(math.isfinite(decision.bits) for decision in plan.decisions):
        raise PlanError(f"The plan's effective bits are not a finite number: {plan.effective_bits}.")
    lines = []
    for name in plan.__struct_fields__:
        field = getattr(plan, name)
        key = _ENCODER.encode(name)
        if isinstance(field, tuple) and field:
            lines.append(key + b":[\n" + b",\n".join(_ENCODER.encode(item) for item in field) + b"\n]")
        else:
            lines.append(key + b":" + _ENCODER.encode(field))
    return b"{\n" + b",\n".join(lines) + b"\n}\n"


def fill_number(value: Value) -> float | int | bool:
    """A fill constant's number, with "inf", "-inf" and "nan" read."""
    fill = value.fill
    if isinstance(fill, str):
        if fill not in _SPELLED:
            raise PlanError(f"Constant {value.name!r} is filled with {fill!r}; allowed are numbers, 'inf', '-inf' and 'nan'.")
        return _SPELLED[fill]
    if fill is None:
        raise PlanError(f"Constant {value.name!r} has no fill.")
    return fill


def _spell(attr: Attr) -> Attr:
    if isinstance(attr, tuple):
        return tuple(_spell_number(item) for item in attr)
    return _spell_number(attr)


def _spell_number(number: bool | int | float | str) -> bool | int | float | str:
    if isinstance(number, float) and not math.isfinite(number):
        return "nan" if math.isnan(number) else "inf" if number > 0 else "-inf"
    return number


def _spell_fill(value: Value) -> Value:
    if isinstance(value.fill, float) and not math.isfinite(value.fill):
        return msgspec.structs.replace(value, fill=_spell_number(value.fill))
    return value


def _floats(node: Node) -> Node:
    """The node with spelled or whole numbers made floats where its op wants floats. Anything else is left for plan_check to refuse."""
    spec = OPS.get(node.op)
    if spec is None:
        return node
    changed: dict[str, Attr] = {}
    for key, attr in node.attrs.items():
        if spec.signature.attrs.get(key) is float and not isinstance(attr, float):
            if isinstance(attr, str) and attr in _SPELLED:
                changed[key] = _SPELLED[attr]
            elif isinstance(attr, int) and not isinstance(attr, bool) and abs(attr) < 1 << 53:
                changed[key] = float(attr)
    return msgspec.structs.replace(node, attrs={**node.attrs, **changed}) if changed else node
