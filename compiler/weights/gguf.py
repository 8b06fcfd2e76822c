"""A GGUF file's tensors under the module's names, dequantized when they are read.

transformers knows which GGUF tensor stands for which parameter, and how llama.cpp's converter changed it (rotary rows permuted, norms
offset by one, experts apart, ...); its map and its tensor processors are used as they are. What a processor does to rows is found by giving
it the row numbers, so that single rows can be read of a tensor whose rows are only reordered.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import accumulate
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mixplan.compiler.weights.base import Places
from mixplan.compiler.weights.check import check_finite
from mixplan.compiler.weights.gguf_blocks import BLOCK_TYPES, Blocks, split_blocks
from mixplan.compiler.weights.gguf_file import GgufFile, GgufTensor
from mixplan.runtime.errors import CheckpointError, UnsupportedError

__all__ = ["GgufWeights"]

# Tensors that hold nothing of the model's own: frequencies that the config implies, or that the front end has taken already.
_NOT_PARAMETERS = re.compile(r"(^rope_(freqs|factors_long|factors_short)\.weight|\.attn_rot_embd(\.weight)?|\.rotary_emb\.inv_freq)$")


@dataclass
class _Stored:
    """The tensors of the file that make one parameter. order: module row -> file row, None where rows are not just reordered."""

    sources: tuple[GgufTensor, ...]
    rowwise: bool
    order: NDArray[np.int64] | None = None


class GgufWeights:
    """WeightSource over a GGUF file for a transformers model with meta parameters.

    Opening checks that every parameter has its tensor, of the right size, and that every tensor of the file is used.
    """

    def __init__(self, model: Any, file: GgufFile) -> None:
        from transformers.modeling_gguf_pytorch_utils import TENSOR_PROCESSORS, TensorProcessor

        self._file = file
        make = TENSOR_PROCESSORS.get(file.architecture, TensorProcessor)
        self._processor: Any = make(config=model.config.to_dict())
        self._shapes = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
        self._map = _name_map(model, self._processor, self._shapes)
        tied = {name for name, _ in model.named_parameters(remove_duplicate=False)} - set(self._shapes)
        self._stored = self._assign(tied)
        self._check()

    def names(self) -> list[str]:
        """The module's parameter names, tied ones once."""
        return list(self._shapes)

    def shape(self, name: str) -> tuple[int, ...]:
        """The parameter's shape."""
        return self._shapes[name]

    def dtype(self, name: str) -> str:
        """The quantization type that the file stores it in, by its GGUF name (of its first part, where it is made of several)."""
        return self._stored[name].sources[0].type_name

    def read(self, name: str) -> NDArray[np.float32]:
        """The whole tensor."""
        stored = self._stored[name]
        return self._finish(name, self._process(name, stored, lambda tensor: self._file.read_rows(tensor, 0, tensor.shape[0])))

    def read_rows(self, name: str, start: int, stop: int) -> NDArray[np.float32]:
        """Rows [start, stop) of the first axis, reading no more than the file rows that they come from."""
        stored = self._stored[name]
        stop = min(stop, self._shapes[name][0])
        if stored.order is not None:
            picked = stored.order[start:stop]
            if not picked.size:
                return np.empty((0, *self._shapes[name][1:]), np.float32)
            low, high = int(picked.min()), int(picked.max()) + 1
            rows = self._file.read_rows(stored.sources[0], low, high)
            values = rows if np.array_equal(picked, np.arange(low, high)) else rows[picked - low]
            return self._finish(name, values.reshape(-1, *self._shapes[name][1:]), whole=False)
        if stored.rowwise:
            values = self._process(name, stored, lambda tensor: self._file.read_rows(tensor, start, stop))
            return self._finish(name, values, whole=False)
        return np.ascontiguousarray(self.read(name)[start:stop])

    def types(self, name: str) -> tuple[str, ...]:
        """The types of the file's tensors that make a parameter."""
        return tuple(tensor.type_name for tensor in self._stored[name].sources)

    def places(self, name: str) -> Places | None:
        """Where the parameter's lines are among those of its tensors; None where more is done to them than reordering."""
        sources, shape = self._stored[name].sources, self._shapes[name]
        if len({tensor.shape[-1] for tensor in sources}) != 1:
            return None
        starts = _starts(sources)
        numbers = {
            tensor.name: np.arange(start, stop, dtype=np.float64).reshape(*tensor.shape[:-1], 1)
            for tensor, start, stop in zip(sources, starts, starts[1:], strict=False)
        }
        try:
            with np.errstate(all="ignore"):
                made = self._made(name, sources, lambda tensor: numbers[tensor.name])
        except (ValueError, TypeError, IndexError, RuntimeError):
            return None
        if not np.array_equal(np.sort(made, axis=None), np.arange(starts[-1])):
            return None
        width = sources[0].shape[-1]
        turned = made.shape != (*shape[:-1], 1)
        if turned and (len(shape) != 2 or made.shape != (1, shape[1])):
            return None
        axis = 0 if turned else len(shape) - 1
        return Places(made.astype(np.int64), axis) if shape[axis] == width else None

    def blocks(self, name: str, ids: NDArray[np.int64]) -> list[tuple[NDArray[np.int64], Blocks | None]]:
        """The blocks of lines `ids` [n]; for each tensor of the file which of the n it has, and they themselves."""
        sources = self._stored[name].sources
        starts = _starts(sources)
        found: list[tuple[NDArray[np.int64], Blocks | None]] = []
        for tensor, start, stop in zip(sources, starts, starts[1:], strict=False):
            which = np.flatnonzero((ids >= start) & (ids < stop))
            if not which.size:
                continue
            if tensor.type_name not in BLOCK_TYPES:
                found.append((which, None))
                continue
            lines = ids[which] - start
            low, high = int(lines.min()), int(lines.max()) + 1
            found.append((which, split_blocks(tensor.type_name, self._file.read_lines(tensor, low, high)[lines - low])))
        return found

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    # -- from stored tensors to a parameter ---------------------------------------------------------------------------------------

    def _process(self, name: str, stored: _Stored, read: Callable[[GgufTensor], NDArray[np.float32]]) -> NDArray[np.float32]:
        """Run transformers' processor on the parameter's tensors; experts' gate and up fill one array between them."""
        array: NDArray[np.float32] = np.ascontiguousarray(self._made(name, stored.sources, read), dtype=np.float32)
        return array

    def _made(self, name: str, sources: tuple[GgufTensor, ...], read: Callable[[GgufTensor], NDArray[Any]]) -> NDArray[Any]:
        parsed: dict[str, dict[str, Any]] = {"tensors": {}}
        values: Any = None
        for tensor in sources:
            made = self._processor.process(weights=read(tensor), name=tensor.name, tensor_key_mapping=self._map, parsed_parameters=parsed)
            values = made.weights
        if name in parsed["tensors"]:
            values = parsed["tensors"][name].numpy()
        array: NDArray[Any] = values
        return array

    def _finish(self, name: str, values: NDArray[np.float32], *, whole: bool = True) -> NDArray[np.float32]:
        expected = self._shapes[name]
        if values.shape[1:] != expected[1:] or (whole and values.shape != expected):
            raise CheckpointError(
                f"{self._file.path}: parameter {name!r} comes out of the file with the shape {list(values.shape)}, but the config asks for "
                f"{list(expected)}.",
                hint="The file's metadata and its tensors disagree: convert the model to GGUF again.",
            )
        check_finite(name, values, str(self._file.path))
        return values

    # -- opening ------------------------------------------------------------------------------------------------------------------

    def _assign(self, tied: set[str]) -> dict[str, _Stored]:
        groups: dict[str, list[GgufTensor]] = {}
        unused = []
        for tensor in self._file.tensors.values():
            # Parameters of stacked experts have no ".weight" in the module.
            target = self._map.get(tensor.name) or self._map.get(tensor.name.removesuffix(".weight"), "")
            if target in self._shapes:
                groups.setdefault(target, []).append(tensor)
            elif target not in tied and not _NOT_PARAMETERS.search(tensor.name):
                unused.append(tensor.name)
        if unused:
            raise UnsupportedError(
                f"{self._file.path}: the tensors {_some(unused)} of architecture {self._file.architecture!r} have no place "
                "in the model that transformers makes of the file.",
                hint="Compile the model's Hugging Face directory instead.",
            )
        return {name: self._plan(name, tuple(sources)) for name, sources in groups.items()}

    def _plan(self, name: str, sources: tuple[GgufTensor, ...]) -> _Stored:
        expected = self._shapes[name]
        held = sum(prod(tensor.shape) for tensor in sources)
        if held != prod(expected):
            shapes = " and ".join(str(list(tensor.shape)) for tensor in sources)
            raise CheckpointError(
                f"{self._file.path}: tensor {sources[0].name!r} has the shape {shapes}, but the config asks for {list(expected)}.",
                hint="The file's metadata and its tensors disagree: convert the model to GGUF again.",
            )
        if len(expected) == 3:
            return _Stored(sources, rowwise=all(tensor.shape[0] == expected[0] for tensor in sources))
        return _Stored(sources, rowwise=False, order=self._row_order(name, sources) if len(expected) > 1 else None)

    def _row_order(self, name: str, sources: tuple[GgufTensor, ...]) -> NDArray[np.int64] | None:
        """Which file row each of the parameter's rows is, None where the processor does more than reorder rows."""
        if len(sources) > 1 or sources[0].shape != self._shapes[name]:
            return None
        rows = self._shapes[name][0]
        numbers = np.arange(rows, dtype=np.float64).reshape(rows, 1)
        try:
            with np.errstate(all="ignore"):
                made = self._processor.process(
                    weights=numbers, name=sources[0].name, tensor_key_mapping=self._map, parsed_parameters={"tensors": {}}
                )
        except (ValueError, TypeError, IndexError):
            return None
        order = made.weights
        # A processor that computes with the values gives something that is no permutation.
        if made.name is None or order.shape != (rows, 1) or not np.array_equal(np.sort(order[:, 0]), numbers[:, 0]):
            return None
        return np.asarray(order[:, 0], dtype=np.int64)

    def _check(self) -> None:
        missing = [name for name in self._shapes if name not in self._stored]
        if missing:
            raise CheckpointError(
                f"{self._file.path}: the parameter{'s' if len(missing) > 1 else ''} {_some(missing)} that the config asks for "
                "have no tensor in the file.",
                hint="The file is incomplete, or of an architecture variant that transformers does not read from GGUF: "
                "compile the model's Hugging Face directory instead.",
            )


def _starts(sources: tuple[GgufTensor, ...]) -> list[int]:
    """The number of each tensor's first line, and of all lines."""
    return [0, *accumulate(prod(tensor.shape[:-1]) for tensor in sources)]


class _Flat:
    """A model without submodules, as far as transformers' name map is concerned."""

    def __init__(self, model: Any) -> None:
        self.config, self.state_dict = model.config, model.state_dict

    def named_children(self) -> list[tuple[str, Any]]:
        return []


def _name_map(model: Any, processor: Any, parameters: Mapping[str, Any]) -> Mapping[str, str]:
    """GGUF names to the module's. Going through the submodules, which a few architectures need, takes transformers seconds."""
    from transformers.modeling_gguf_pytorch_utils import get_gguf_hf_weights_map

    try:
        names: Mapping[str, str] = get_gguf_hf_weights_map(_Flat(model), processor)
        if set(parameters) <= set(names.values()):
            return names
        names = get_gguf_hf_weights_map(model, processor)
    except NotImplementedError as error:
        raise UnsupportedError(f"{error}", hint="Compile the model's Hugging Face directory instead.") from error
    return names


def _some(names: list[str]) -> str:
    shown = ", ".join(repr(name) for name in names[:4])
    return shown if len(names) <= 4 else f"{shown} and {len(names) - 4} more"
