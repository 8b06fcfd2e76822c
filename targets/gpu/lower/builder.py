"""Collects the launches of a region, and knows where every value stands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import TypeAlias

from mixplan.runtime.devices.gpu_program import Affine, Argument, Constant, Launch
from mixplan.runtime.dtypes import DType
from mixplan.runtime.plan import AttentionLayer, Dim, Node, Shape, Value, dim_value
from mixplan.targets.gpu.arch import Arch
from mixplan.targets.gpu.builds import BuildRequest
from mixplan.targets.gpu.lower.arena import Buffer
from mixplan.targets.gpu.lower.chain import BLOCK, ChainText
from mixplan.targets.gpu.lower.views import Refused, View, contiguous_strides

__all__ = ["DECODE_TOKENS", "POINTERS", "Builder", "Special", "affine", "power_of_two"]

DECODE_TOKENS = 128
"""Steps of one token for each of up to so many sequences attend by `attention_decode`."""

POINTERS = {
    DType.f32: "*fp32",
    DType.f16: "*fp16",
    DType.bf16: "*i16",
    DType.i64: "*i64",
    DType.i32: "*i32",
    DType.i16: "*i16",
    DType.i8: "*i8",
    DType.u8: "*u8",
    DType.bool: "*u8",
}
"""How Triton spells a pointer to each type; bools are bytes, and bf16 lies in memory as its bits."""

_NONE = Argument("none")
_ALIGNED = 16  # bytes; kernels are built for pointers that are multiples of it, but for those marked with "!"


@dataclass(frozen=True)
class Special:
    """An argument that is no value of the plan: see gpu_program.Argument."""

    kind: str
    type: str
    name: str = ""
    index: int = 0


Pointer: TypeAlias = View | Buffer | Special | None


def affine(dim: Dim, div: int = 1, mul: int = 1) -> Affine:
    """ceil(mul * dim / div)."""
    if isinstance(dim, int):
        return Affine(add=-(-dim * mul // div))
    if dim.sym == "T":
        return Affine(tokens=dim.mul * mul, add=dim.add * mul, div=div)
    return Affine(rows=dim.mul * mul, add=dim.add * mul, div=div)


def power_of_two(size: int) -> int:
    """The smallest power of two not below `size`."""
    return 1 << max(size - 1, 0).bit_length()


@dataclass(frozen=True)
class _Pending:
    request: BuildRequest
    node: int
    grid: tuple[tuple[Affine, ...], ...]
    arguments: tuple[Argument | tuple[Buffer, int, str], ...]
    mode: str
    rows: Affine | None
    least: int
    most: int


class Builder:
    """values: the plan's. attention: its layers, empty where a node is only tried (see target.supports)."""

    def __init__(
        self, arch: Arch, values: Sequence[Value], max_tokens: int, attention: Sequence[AttentionLayer], users: Mapping[int, list[Node]]
    ) -> None:
        self.arch = arch
        self.values = values
        self.max_tokens = max_tokens
        self.attention = attention
        self.stretch = 64
        self.node = 0
        self.views: dict[int, View] = {}
        self.fused: set[str] = set()
        """Names of nodes whose work another node's launches do."""
        self.sums: dict[int, Node] = {}
        """By their results: additions that the first norm to read the result does."""
        self.rounded: dict[tuple[int, int], tuple[View, View]] = {}
        """By value and padded columns: the value's rows in 8-bit floats, codes and scales."""
        self._users = users
        self.buffers: list[Buffer] = []
        self._pending: list[_Pending] = []

    # Values

    def view(self, value: int) -> View:
        """Where a value stands. Constants stand in their own memory."""
        found = self.views.get(value)
        if found is None:
            declared = self.values[value]
            if declared.kind != "const":
                raise Refused(f"the value {declared.name!r} is not known")
            found = self.views[value] = View(value, declared.dtype, declared.shape, contiguous_strides(declared.shape))
        return found

    def optional(self, node: Node, position: int) -> View | None:
        """Input `position` of a node, None where it is left out."""
        if position >= len(node.inputs) or node.inputs[position] < 0:
            return None
        return self.view(node.inputs[position])

    def define(self, value: int, *, first: int | None = None) -> View:
        """A new buffer for a value, as its output or, with first=-1, as an input of the region."""
        declared = self.values[value]
        view = self.temporary(declared.dtype, declared.shape)
        if first is not None and isinstance(view.home, Buffer):
            view.home.first = first
        self.views[value] = view
        return view

    def temporary(self, dtype: DType, shape: Shape) -> View:
        """A buffer of this dtype and shape, from the next launch on."""
        if dtype not in POINTERS:
            raise Refused(f"values of {dtype.value} are not held in the arena")
        size = prod(self.most(dim) for dim in shape) * dtype.itemsize
        return View(self.scratch(size), dtype, shape, contiguous_strides(shape))

    def scratch(self, nbytes: int) -> Buffer:
        """Memory from the next launch on."""
        buffer = Buffer(nbytes, len(self._pending), len(self._pending))
        self.buffers.append(buffer)
        return buffer

    def most(self, dim: Dim) -> int:
        """A dim's largest size."""
        return dim_value(dim, tokens=self.max_tokens, rows=self.max_tokens)

    def keep(self, view: View) -> None:
        """The view's memory is needed after the last launch."""
        if isinstance(view.home, Buffer):
            view.home.last = 1 << 60

    def only_user(self, value: int) -> Node | None:
        """The one node that reads a value, where there is only one and the value is no output of the region."""
        users = self._users.get(value, [])
        return users[0] if len(users) == 1 else None

    def contiguous(self, view: View) -> View:
        """The view itself, or a contiguous copy of it."""
        return view if view.contiguous else self.copy(view, view.dtype)

    def copy(self, view: View, dtype: DType, to: View | None = None) -> View:
        """A copy of another dtype, into `to` where it is given (of the same shape)."""
        out = to or self.temporary(dtype, view.shape)
        text = ChainText(view.shape)
        text.store(text.cast(text.load(view), view.dtype, dtype), out)
        self.chain(text)
        return out

    def chain(self, text: ChainText) -> None:
        """Launch a chain of pointwise ops."""
        pointers, constants, outer, inner = text.finished()
        self.launch("chain", pointers, constants, [affine(outer, BLOCK, inner)], numbers=[affine(outer)])

    # Launches

    def launch(
        self,
        kernel: str,
        pointers: Sequence[Pointer],
        constants: Mapping[str, Constant],
        grid: Sequence[Affine | tuple[Affine, ...]],
        *,
        numbers: Sequence[Affine | Special] = (),
        words: Sequence[int] = (),
        warps: int = 4,
        stages: int = 3,
        mode: str = "",
        rows: Affine | None = None,
        least: int = 0,
        most: int = 1 << 30,
    ) -> None:
        """Add a launch. words: positions of pointers that are read as 32-bit words, whatever their values are."""
        here = len(self._pending)
        arguments: list[Argument | tuple[Buffer, int, str]] = []
        for position, pointer in enumerate(pointers):
            arguments.append(self._argument(pointer, here, position in words))
        for number in numbers:
            one = number if isinstance(number, Special) else None
            arguments.append(Argument(one.kind, "i32") if one else Argument("number", "i32", value=number))  # type: ignore[arg-type]
        types = tuple(a[2] if isinstance(a, tuple) else a.type for a in arguments)
        request = BuildRequest(kernel, types, dict(constants), warps, stages)
        dims = tuple(forms if isinstance(forms, tuple) else (forms,) for forms in grid)
        self._pending.append(_Pending(request, self.node, dims, tuple(arguments), mode, rows, least, most))

    def _argument(self, pointer: Pointer, here: int, words: bool) -> Argument | tuple[Buffer, int, str]:
        if pointer is None:
            return _NONE
        if isinstance(pointer, Special):
            return Argument(pointer.kind, pointer.type, index=pointer.index, name=pointer.name)
        if isinstance(pointer, Buffer):
            pointer.last = max(pointer.last, here)
            return pointer, 0, "*fp32"
        kind = "*i32" if words else POINTERS.get(pointer.dtype, "")
        if not kind:
            raise Refused(f"values of {pointer.dtype.value} are not read by the kernels")
        nbytes = pointer.offset * pointer.dtype.itemsize
        if nbytes % _ALIGNED:
            kind += "!"
        if isinstance(pointer.home, int):
            return Argument("constant", kind, offset=nbytes, index=pointer.home)
        pointer.home.last = max(pointer.home.last, here)
        return pointer.home, nbytes, kind

    def finished(self) -> tuple[list[BuildRequest], list[Launch]]:
        """The kernels, each once, and the launches; buffers have their places by now."""
        requests: list[BuildRequest] = []
        places: dict[str, int] = {}
        launches = []
        for one in self._pending:
            key = str(one.request.as_json())
            if key not in places:
                places[key] = len(requests)
                requests.append(one.request)
            arguments = tuple(Argument("arena", a[2], offset=a[0].offset + a[1]) if isinstance(a, tuple) else a for a in one.arguments)
            launches.append(Launch(places[key], one.node, one.grid, arguments, one.mode, one.rows, one.least, one.most))
        return requests, launches
