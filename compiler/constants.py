"""Constant expressions: what a graph computes from weights alone, kept unevaluated until a plan's bytes are written.

Merging Q, K and V, transposing GPT-2's weights, adding one to Gemma's norm weights: each is a small expression over the checkpoint's
tensors. `Constants.rows` evaluates a range of rows and reads no more of the checkpoint than those rows need, wherever the expression
allows it, so that an output head of a large model is packed in bounded memory. Two expressions with equal keys are the same constant.
"""

from __future__ import annotations

import hashlib
import math
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch
from numpy.typing import NDArray

from mixplan.compiler.calibration.statistics import InputStatistics

if TYPE_CHECKING:
    from mixplan.compiler.stored import StoredRows
    from mixplan.compiler.weights.base import WeightSource

__all__ = ["Call", "Constants", "Expr", "Literal", "Parameter", "leaves", "parameters"]

_CACHE_BYTES = 1 << 30
_HASH_CHARS = 32
_SCALED = 8


class Expr:
    """A constant of known shape and dtype. `key` identifies its value."""

    def __init__(self, key: str, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        self.key = key
        self.shape = shape
        self.dtype = dtype

    @property
    def numel(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)


class Parameter(Expr):
    """A tensor of the checkpoint, by its name in the module; read as float32."""

    def __init__(self, name: str, shape: tuple[int, ...]) -> None:
        super().__init__(f"param:{name}", shape, torch.float32)
        self.name = name


class Literal(Expr):
    """A tensor that the graph itself holds, such as rotary frequencies."""

    def __init__(self, tensor: torch.Tensor, name: str = "") -> None:
        tensor = tensor.detach().cpu().contiguous()
        digest = hashlib.sha256(tensor.reshape(-1).view(torch.uint8).numpy().tobytes()).hexdigest()[:_HASH_CHARS]
        super().__init__(f"data:{tensor.dtype}:{list(tensor.shape)}:{digest}", tuple(tensor.shape), tensor.dtype)
        self.tensor = tensor
        self.name = name


class Call(Expr):
    """A torch operator applied to expressions and plain values."""

    def __init__(
        self, target: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], shape: tuple[int, ...], dtype: torch.dtype
    ) -> None:
        text = f"{target}({_text(args)},{_text(kwargs)})"
        super().__init__("call:" + hashlib.sha256(text.encode()).hexdigest()[:_HASH_CHARS], shape, dtype)
        self.target = target
        self.args = args
        self.kwargs = kwargs

    @property
    def op(self) -> str:
        """The operator's name without namespace and overload: `cat`, `slice`, `add`."""
        packet = getattr(self.target, "overloadpacket", None)
        return str(packet.__name__ if packet is not None else getattr(self.target, "__name__", self.target))


def _text(value: Any) -> str:
    if isinstance(value, Expr):
        return value.key
    if isinstance(value, (list, tuple)):
        return "[" + ",".join(_text(v) for v in value) + "]"
    if isinstance(value, dict):
        return "{" + ",".join(f"{k}:{_text(v)}" for k, v in sorted(value.items())) + "}"
    if isinstance(value, torch.device):
        return "device"
    return repr(value)


def parameters(expr: Expr) -> list[str]:
    """Names of the checkpoint tensors in an expression, in order of appearance, without repeats."""
    return list(dict.fromkeys(leaf.name for leaf in leaves(expr) if isinstance(leaf, Parameter)))


def leaves(value: Any) -> Iterator[Expr]:
    """The parameters and literals in an expression (or a list of them), in order of appearance."""
    if isinstance(value, Call):
        for item in (*value.args, *value.kwargs.values()):
            yield from leaves(item)
    elif isinstance(value, Expr):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from leaves(item)


_TRANSPOSES = frozenset({"transpose", "t", "permute", "numpy_T"})
_SAME = frozenset({"alias", "clone", "contiguous", "detach", "lift_fresh_copy", "dropout"})
# fmt: off
_ELEMENTWISE = frozenset({
    "abs", "add", "clamp", "div", "exp", "log", "mul", "neg", "pow", "reciprocal", "rsqrt", "sigmoid", "softplus", "sqrt", "square", "sub",
    "tanh", "to", "_to_copy", "type_as",
})
# fmt: on


class Constants:
    """Evaluates constant expressions against a checkpoint."""

    def __init__(
        self,
        source: WeightSource | None,
        inputs: Mapping[str, torch.Tensor | InputStatistics] | None = None,
        stored: StoredRows | None = None,
    ) -> None:
        """inputs: what is known of the inputs of weights, by their layers' or their own names: moments f32 [K], or all statistics.
        stored: the codes of the checkpoint's file, for weights that keep them."""
        self.stored = stored
        self._source = source
        self._inputs = {
            name.removesuffix(".weight"): InputStatistics(known) if isinstance(known, torch.Tensor) else known
            for name, known in (inputs or {}).items()
        }
        self._scaled: OrderedDict[tuple[int, str], InputStatistics] = OrderedDict()
        self._cache: OrderedDict[str, torch.Tensor] = OrderedDict()
        self._lock = threading.RLock()

    def inputs(self, expr: Expr) -> InputStatistics | None:
        """What is known of the input that the weight `expr` [N, K] meets; None where nobody knows.

        Known are weights as the checkpoint holds them, such weights with their axes exchanged, rows of them, stacks of weights that read
        one input, and weights whose columns are multiplied with numbers by which their input is divided.
        """
        if isinstance(expr, Parameter):
            return self._inputs.get(expr.name.removesuffix(".weight"))
        if not isinstance(expr, Call) or not expr.args:
            return None
        if expr.op in _TRANSPOSES and isinstance(expr.args[0], Parameter) and len(expr.shape) == 2:
            known = self.inputs(expr.args[0])
            return known if known is not None and len(known.moments) == expr.shape[-1] else None
        if expr.op == "slice" and isinstance(expr.args[0], Expr) and expr.args[0].shape[-1] == expr.shape[-1]:
            return self.inputs(expr.args[0])
        if expr.op == "mul" and isinstance(expr.args[0], Expr) and isinstance(expr.args[1], Literal):
            return self._scaled_inputs(expr.args[0], expr.args[1])
        if expr.op == "cat" and isinstance(expr.args[0], (list, tuple)):
            found = [self.inputs(part) for part in expr.args[0]]
            first = found[0]
            if first is None or expr.shape[-1] != len(first.moments):
                return None
            if all(one is first or (one is not None and torch.equal(one.moments, first.moments)) for one in found):
                return first
        return None

    def _scaled_inputs(self, weight: Expr, by: Literal) -> InputStatistics | None:
        """Of a weight times numbers for its rows [N, 1], or for its columns [K]."""
        known = self.inputs(weight)
        if known is None or by.shape == (weight.shape[0], 1):
            return known
        if by.shape != weight.shape[-1:]:
            return None
        with self._lock:
            key = (id(known), by.key)
            if key not in self._scaled:
                # As large as the Hessians that they are made of: those of the layers at hand are enough.
                self._scaled[key] = known.divided(by.tensor)
                while len(self._scaled) > _SCALED:
                    self._scaled.popitem(last=False)
            self._scaled.move_to_end(key)
            return self._scaled[key]

    def evaluate(self, expr: Expr) -> torch.Tensor:
        """The whole constant, on the CPU."""
        if isinstance(expr, Literal):
            return expr.tensor
        with self._lock:
            return self._evaluate(expr)

    def _evaluate(self, expr: Expr) -> torch.Tensor:
        if expr.key in self._cache:
            self._cache.move_to_end(expr.key)
            return self._cache[expr.key]
        if isinstance(expr, Parameter):
            assert self._source is not None, "a parameter without a checkpoint"
            value = _tensor(self._source.read(expr.name))
        else:
            assert isinstance(expr, Call)
            value = self._call(expr, self._resolve)
            if not isinstance(value, torch.Tensor):
                return value
        self._remember(expr.key, value)
        return value

    def rows(self, expr: Expr, start: int, stop: int) -> torch.Tensor:
        """Rows [start, stop) of the first axis, contiguous."""
        return self._rows(expr, start, stop).contiguous()

    def matrix_rows(self, expr: Expr, index: int, start: int, stop: int) -> torch.Tensor:
        """Rows [start, stop) of matrix `index` of a stack of matrices [E, N, K], contiguous."""
        matrix = Call(torch.ops.aten.select.int, (expr, 0, index), {}, expr.shape[1:], expr.dtype)
        return self.rows(matrix, start, stop)

    def _rows(self, expr: Expr, start: int, stop: int) -> torch.Tensor:
        if isinstance(expr, Parameter):
            assert self._source is not None, "a parameter without a checkpoint"
            whole = self._cache.get(expr.key)
            if whole is not None:
                return whole[start:stop]
            return _tensor(self._source.read_rows(expr.name, start, stop))
        if isinstance(expr, Call) and expr.key not in self._cache:
            value = self._call_rows(expr, start, stop)
            if value is not None:
                return value
        return self.evaluate(expr)[start:stop]

    def _call_rows(self, expr: Call, start: int, stop: int) -> torch.Tensor | None:
        """The rows of a call from the rows of its operands, or None where that is not possible."""
        op, args = expr.op, expr.args
        first = args[0] if args else None
        if op in ("cat", "concat"):
            return self._cat_rows(expr, start, stop)
        if not isinstance(first, Expr) or not first.shape:
            return None
        if op in _SAME:
            return self._rows(first, start, stop)
        if op in _ELEMENTWISE:
            return self._call(expr, lambda value: self._row_operand(value, expr.shape, start, stop))
        if op in ("view", "reshape", "flatten", "unflatten", "_unsafe_view", "unsqueeze", "squeeze") and expr.numel:
            per_out, per_in = expr.numel // expr.shape[0], first.numel // first.shape[0]
            low, high = start * per_out, stop * per_out
            row = low // per_in
            flat = self.rows(first, row, -(-high // per_in)).reshape(-1)
            return flat[low - row * per_in : high - row * per_in].reshape(stop - start, *expr.shape[1:])
        if op == "slice" and _axis(args, 1, first) == 0:
            step = args[4] if len(args) > 4 else 1
            begin = args[2] if len(args) > 2 and args[2] is not None else 0
            begin = max(begin + first.shape[0], 0) if begin < 0 else begin
            return self._rows(first, begin + start, begin + stop) if step == 1 else None
        if op == "select" and _axis(args, 1, first) == 0:
            index = args[2] % first.shape[0]
            # Kept until `forget`: an expert's matrix is read once, however many chunks it is packed in.
            with self._lock:
                if expr.key not in self._cache:
                    self._remember(expr.key, self._rows(first, index, index + 1)[0])
                return self._cache[expr.key][start:stop]
        if op in ("slice", "transpose", "permute", "t", "select", "flip") and _keeps_first_axis(op, args, first):
            rows = self._rows(first, start, stop)
            turned: torch.Tensor = expr.target(rows, *args[1:], **expr.kwargs)
            return turned
        return None

    def _cat_rows(self, expr: Call, start: int, stop: int) -> torch.Tensor:
        pieces: list[Expr] = list(expr.args[0])
        axis = expr.args[1] if len(expr.args) > 1 else expr.kwargs.get("dim", 0)
        if axis % len(expr.shape) != 0:
            return torch.cat([self._rows(p, start, stop) for p in pieces], axis)
        out, base = [], 0
        for piece in pieces:
            low, high = max(start - base, 0), min(stop - base, piece.shape[0])
            if low < high:
                out.append(self._rows(piece, low, high))
            base += piece.shape[0]
        return out[0] if len(out) == 1 else torch.cat(out, 0)

    def _row_operand(self, value: Any, shape: tuple[int, ...], start: int, stop: int) -> Any:
        if not isinstance(value, Expr):
            return self._resolve(value)
        if len(value.shape) == len(shape) and value.shape[0] == shape[0]:
            return self._rows(value, start, stop)
        return self.evaluate(value)

    def _resolve(self, value: Any) -> Any:
        return self.evaluate(value) if isinstance(value, Expr) else value

    def _call(self, expr: Call, resolve: Callable[[Any], Any]) -> Any:
        def walk(value: Any) -> Any:
            if isinstance(value, (list, tuple)):
                return type(value)(walk(v) for v in value)
            # The capture ran on the meta device; constants are computed on the CPU.
            return torch.device("cpu") if isinstance(value, torch.device) else resolve(value)

        with torch.no_grad():
            return expr.target(*(walk(a) for a in expr.args), **{k: walk(v) for k, v in expr.kwargs.items()})

    def _remember(self, key: str, value: torch.Tensor) -> None:
        self._cache[key] = value
        while len(self._cache) > 1 and sum(t.nbytes for t in self._cache.values()) > _CACHE_BYTES:
            self._cache.popitem(last=False)

    def forget(self) -> None:
        """Drop everything evaluated so far."""
        with self._lock:
            self._cache.clear()


def _tensor(array: NDArray[Any]) -> torch.Tensor:
    """The array as a tensor; one that may not be written to is copied, since torch has no such tensors."""
    return torch.from_numpy(array if array.flags.writeable else array.copy())


def _axis(args: tuple[Any, ...], at: int, operand: Expr) -> int:
    axis = args[at] if len(args) > at else 0
    return int(axis) % max(len(operand.shape), 1)


def _keeps_first_axis(op: str, args: tuple[Any, ...], operand: Expr) -> bool:
    rank = len(operand.shape)
    if op == "t":
        return False
    if op == "permute":
        return int(args[1][0]) % rank == 0
    if op == "flip":
        return all(a % rank for a in args[1])
    if op == "transpose":
        return int(args[1]) % rank != 0 and int(args[2]) % rank != 0
    return _axis(args, 1, operand) != 0
