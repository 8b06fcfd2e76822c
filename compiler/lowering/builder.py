"""Builds the plan's values and nodes: constants without repeats, equal nodes once, casts and reshapes only where they change something."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from mixplan.compiler.constants import Expr
from mixplan.compiler.lowering.operands import PackedWeight, Ref
from mixplan.runtime.dtypes import DType
from mixplan.runtime.formats import WeightFormat
from mixplan.runtime.packing import packed_layout
from mixplan.runtime.plan import Attr, Node, Shape, Value

__all__ = ["Builder", "Source"]


@dataclass(frozen=True)
class Source:
    """Where a stored constant's bytes come from: a dense expression, or one role of a packed weight."""

    expr: Expr | None = None
    packed: PackedWeight | None = None
    role: str = ""


class Builder:
    """Append-only. `name`, `origin` and `rule` are given to the nodes made next."""

    def __init__(self) -> None:
        self.values: list[Value] = []
        self.sources: dict[int, Source] = {}
        self.nodes: list[Node] = []
        self.name = ""
        self.origin = ""
        self.rule = ""
        self._known: dict[object, tuple[Ref, ...]] = {}
        self._names: dict[str, int] = {}

    def input(self, name: str, dtype: DType, shape: Shape) -> Ref:
        """An input of the step."""
        return self._value(Value(name=name, kind="input", dtype=dtype, shape=shape))

    def fill(self, number: bool | int | float, dtype: DType, shape: tuple[int, ...] = ()) -> Ref:
        """A constant whose elements are all `number`."""
        value: bool | int | float | str
        if dtype is DType.bool:
            value = bool(number)
        elif dtype is DType.f32:
            as_float = float(number)
            value = as_float if math.isfinite(as_float) else ("nan" if math.isnan(as_float) else ("inf" if as_float > 0 else "-inf"))
        else:
            value = int(number)
        key = ("fill", repr(value), dtype, shape)
        if key not in self._known:
            spelled = str(value).replace("-", "m")
            self._known[key] = (self._value(Value(name=f"const_{spelled}", kind="const", dtype=dtype, shape=shape, fill=value)),)
        return self._known[key][0]

    def dense(self, expr: Expr, dtype: DType, name: str) -> Ref:
        """A constant stored as it is."""
        key = ("dense", expr.key, dtype)
        if key not in self._known:
            ref = self._value(Value(name=name, kind="const", dtype=dtype, shape=expr.shape))
            self.sources[ref.index] = Source(expr=expr)
            self._known[key] = (ref,)
        return self._known[key][0]

    def packed(self, weight: PackedWeight, name: str) -> dict[str, Ref]:
        """A packed weight's constants by role: "weight", and where the format has them "scales" and "zeros"."""
        key = ("packed", weight.key)
        layout = packed_layout(weight.format, weight.rows, weight.columns, weight.copies)
        if key not in self._known:
            refs = []
            for role, (dtype, shape) in layout.items():
                ref = self._value(Value(name=name if role == "weight" else f"{name}.{role}", kind="const", dtype=dtype, shape=shape))
                self.sources[ref.index] = Source(packed=weight, role=role)
                refs.append(ref)
            self._known[key] = tuple(refs)
        return dict(zip(layout, self._known[key], strict=True))

    def node(self, op: str, inputs: Sequence[Ref | None], outputs: Sequence[tuple[DType, Shape]], **attrs: Attr) -> tuple[Ref, ...]:
        """One node, or the equal one made before."""
        indices = [-1 if ref is None else ref.index for ref in inputs]
        while indices and indices[-1] == -1:
            indices.pop()
        key = (op, tuple(indices), tuple(sorted((k, repr(v)) for k, v in attrs.items())), tuple(outputs))
        if key in self._known:
            return self._known[key]
        name = self._unique(self.name or op)
        names = [name] if len(outputs) == 1 else [f"{name}:{i}" for i in range(len(outputs))]
        refs = tuple(self._value(Value(name=n, kind="node", dtype=d, shape=tuple(s))) for n, (d, s) in zip(names, outputs, strict=True))
        self.nodes.append(
            Node(
                op=op,
                inputs=tuple(indices),
                outputs=tuple(r.index for r in refs),
                attrs=dict(sorted(attrs.items())),
                name=name,
                rule=self.rule,
            )
        )
        self._known[key] = refs
        return refs

    def _value(self, value: Value) -> Ref:
        self.values.append(value)
        return Ref(len(self.values) - 1, value.dtype, value.shape)

    def _unique(self, name: str) -> str:
        count = self._names.get(name, 0)
        self._names[name] = count + 1
        return name if count == 0 else self._unique(f"{name}.{count}")


def format_attrs(fmt: WeightFormat) -> dict[str, Attr]:
    """The attributes by which a node names its weight's format."""
    return {"format": fmt.name, "group_size": fmt.group_size}
