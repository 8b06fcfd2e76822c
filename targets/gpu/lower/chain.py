"""Chains of pointwise ops as launches of the kernel `chain`, and the text that tells it what to do."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from mixplan.runtime.devices.gpu_program import Constant
from mixplan.runtime.dtypes import DType
from mixplan.runtime.plan import Dim, Node, Shape, Value
from mixplan.targets.gpu.lower.views import View, broadcast, outer_dims

__all__ = ["BLOCK", "MOST_LOADS", "MOST_STORES", "POINTWISE", "ChainText"]

BLOCK = 512
"""Elements of a program."""

MOST_LOADS, MOST_STORES = 8, 4
"""Pointers of the kernel."""

POINTWISE = frozenset(
    (
        "neg abs exp exp2 expm1 log log1p sqrt rsqrt reciprocal tanh sigmoid silu gelu gelu_tanh relu erf sin cos floor ceil round sign "
        "log_sigmoid softplus logical_not bitwise_not square isnan isinf add sub mul div pow maximum minimum floor_div remainder fmod "
        "atan2 eq ne lt le gt ge logical_and logical_or logical_xor bitwise_and bitwise_or bitwise_xor shift_left shift_right where cast"
    ).split()
)
"""Ops that chains are made of."""


class ChainText:
    """A chain over `shape` while it is written: see kernels/chain_text.py for the text."""

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.loads: list[View] = []
        self.stores: list[View] = []
        self._walked: list[View] = []
        self._tails: dict[int, str] = {}
        self._lines: list[str] = []
        self._known: dict[object, str] = {}
        self._ends: list[str] = []

    def _value(self, key: object, line: str) -> str:
        if key not in self._known:
            self._known[key] = f"v{len(self._lines)}"
            self._lines.append(line)
        return self._known[key]

    def load(self, view: View) -> str:
        """The value's name; what was loaded before is not loaded again."""
        view = broadcast(view, self.shape)
        if view not in self._known:
            self.loads.append(view)
            self._walked.append(view)
        return self._value(view, f"load {view.dtype.value}")

    def load_part(self, view: View, condition: str, shift: int) -> str:
        """Elements of a view of this shape, from `shift` elements before it on, where the condition holds; 0 elsewhere."""
        self.loads.append(view)
        self._walked.append(view)
        self._tails[len(self._lines)] = f" if {condition} {-shift}"
        return self._value(len(self._lines), f"load {view.dtype.value}")

    def index(self, axis: int) -> str:
        """An element's place along an axis, i64."""
        name = f"index {axis}"
        if name not in self._known:
            strides = tuple(int(i == axis and dim != 1) for i, dim in enumerate(self.shape))
            self._walked.append(View(-1, DType.i64, self.shape, strides))
        return self._value(name, "index i64")

    def compare(self, op: str, a: str, b: str) -> str:
        """An op on two integers."""
        line = f"{op} i64 {a} {b}"
        return self._value(line, line)

    def both(self, conditions: Sequence[str]) -> str:
        """Whether all of at least one condition hold."""
        first, *rest = conditions
        for other in rest:
            line = f"logical_and bool {first} {other}"
            first = self._value(line, line)
        return first

    def choose(self, condition: str, a: str, b: str, dtype: DType) -> str:
        """a where the condition holds, else b."""
        return self._value(len(self._lines), f"where {dtype.value} {condition} {a} {b}")

    def number(self, value: float | int | bool | str, dtype: DType) -> str:
        """A number for every element; inf and nan are spelled."""
        floating = dtype in (DType.f32, DType.f16, DType.bf16)
        line = f"number {dtype.value} {float(value) if floating else int(value)!r}"
        return self._value(line, line)

    def op(self, node: Node, operands: Sequence[str], values: Sequence[Value]) -> str:
        """The result of a node."""
        source = values[node.inputs[1 if node.op == "where" else 0]].dtype
        words = [node.op, source.value, *operands]
        if node.op == "cast":
            words.append(values[node.outputs[0]].dtype.value)
        if node.op == "softplus":
            words += [repr(float(str(node.attrs[name]))) for name in ("beta", "threshold")]
        return self._value(len(self._lines), " ".join(words))

    def cast(self, value: str, source: DType, target: DType) -> str:
        """A value in another dtype."""
        return value if source is target else self._value(len(self._lines), f"cast {source.value} {value} {target.value}")

    def store(self, value: str, view: View) -> None:
        """The value leaves the chain."""
        self.stores.append(broadcast(view, self.shape))
        self._ends.append(f"store {view.dtype.value} {value}")

    def finished(self) -> tuple[list[View | None], dict[str, Constant], Dim, int]:
        """The kernel's pointers, its compile-time arguments, the outer dim, and the elements of each of its indices."""
        outer, dims, strides = outer_dims([*self._walked, *self.stores])
        given = iter(strides)
        lines = [" ".join(["sizes", *map(str, dims)])]
        for number, line in enumerate(self._lines + self._ends):
            walks = line.startswith(("load ", "index ", "store "))
            lines.append((" ".join([line, *map(str, next(given))]) if walks else line) + self._tails.get(number, ""))
        pointers: list[View | None] = [*self.loads, *[None] * (MOST_LOADS - len(self.loads))]
        pointers += [*self.stores, *[None] * (MOST_STORES - len(self.stores))]
        return pointers, {"CHAIN": "\n".join(lines), "BLOCK": BLOCK}, outer, prod(dims)
