"""Writes a plan's weights: packed a chunk at a time on all cores, appended in order, hashed while they are written."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from mixplan.compiler.constants import Constants
from mixplan.compiler.layout import ALIGNMENT, Group, Layout, Shard
from mixplan.compiler.lowering.builder import Source
from mixplan.compiler.lowering.operands import PackedWeight
from mixplan.compiler.output import reporting_disk_errors, size_text
from mixplan.compiler.packed import chunks, dense_array, pack_chunk
from mixplan.compiler.quantize import not_finite
from mixplan.compiler.tuning import one_torch_thread
from mixplan.runtime.errors import InternalError, OutputError
from mixplan.runtime.packing import Packed
from mixplan.runtime.plan import FileEntry, Value

__all__ = ["write_weights"]

Progress = Callable[[int], None]


class _File:
    """A file that counts and hashes what is written."""

    def __init__(self, raw: BinaryIO) -> None:
        self._raw = raw
        self.size = 0
        self._digest = hashlib.sha256()

    def write(self, data: bytes | memoryview) -> None:
        self._raw.write(data)
        self._digest.update(data)
        self.size += len(data)

    def entry(self) -> FileEntry:
        return FileEntry(sha256=self._digest.hexdigest(), size=self.size)


def write_weights(
    root: Path,
    layout: Layout,
    values: Sequence[Value],
    sources: dict[int, Source],
    constants: Constants,
    *,
    workers: int | None = None,
    progress: Progress | None = None,
) -> dict[str, FileEntry]:
    """Write all shards into `root`; gives size and SHA-256 of each. `progress` is told the bytes written so far.

    Memory: a few chunks and one dense constant, whatever the size of the model. Raises OutputError where the disk refuses, CheckpointError
    for weights that are not finite.
    """
    needed = layout.nbytes
    free = shutil.disk_usage(root).free
    if free < needed:
        raise OutputError(
            f"There is no room for the weights: they need {size_text(needed)}, and {size_text(free)} are free in {root.parent}.",
            hint="Free some space, write elsewhere, or choose a scheme of fewer bits.",
        )
    entries: dict[str, FileEntry] = {}
    done = 0
    with one_torch_thread(), ThreadPoolExecutor(workers or min(os.cpu_count() or 1, 8)) as pool:
        writer = _Writer(values, sources, constants, pool)
        for shard in layout.shards:
            with reporting_disk_errors(root, needed), (root / shard.file).open("wb", buffering=0) as raw:
                file = _File(raw)
                file.write(shard.header)
                for group in shard.groups:
                    writer.write(file, group)
                    if progress is not None:
                        progress(done + file.size)
            _check_size(shard, file)
            entries[shard.file] = file.entry()
            done += file.size
    return entries


def _check_size(shard: Shard, file: _File) -> None:
    if file.size != len(shard.header) + shard.size:
        raise InternalError(f"{shard.file} has {file.size} bytes; its layout says {len(shard.header) + shard.size}.")


class _Writer:
    def __init__(self, values: Sequence[Value], sources: dict[int, Source], constants: Constants, pool: ThreadPoolExecutor) -> None:
        self._values = values
        self._sources = sources
        self._constants = constants
        self._pool = pool

    def write(self, file: _File, group: Group) -> None:
        source = self._sources[group.values[0]]
        if source.packed is not None:
            self._packed(file, group, source.packed)
            return
        assert source.expr is not None
        value = self._values[group.values[0]]
        array = dense_array(self._constants, source.expr, value.dtype)
        if array.dtype.kind == "f" and not _finite_or_mask(array):
            raise not_finite(value.name)
        _append(file, array)

    def _packed(self, file: _File, group: Group, weight: PackedWeight) -> None:
        """The weight's chunks as they come; its scales and zero points are kept until its end."""
        rest: dict[str, list[NDArray[Any]]] = {self._sources[i].role: [] for i in group.values[1:]}
        start = file.size
        for packed in self._in_order(weight):
            file.write(_view(packed["weight"]))
            for role, parts in rest.items():
                parts.append(packed[role])
        _fill(file, start)
        for parts in rest.values():
            _append(file, np.concatenate(parts))
        self._constants.forget()

    def _in_order(self, weight: PackedWeight) -> Iterator[Packed]:
        """Packed chunks in order, a few of them in the making at any time."""
        waiting: deque[Future[Packed]] = deque()
        try:
            for chunk in chunks(weight):
                waiting.append(self._pool.submit(pack_chunk, self._constants, chunk))
                if len(waiting) > self._pool._max_workers + 1:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()


def _finite_or_mask(array: NDArray[Any]) -> bool:
    """Infinities are masks; NaN is never meant."""
    return not bool(np.isnan(array).any())


def _view(array: NDArray[Any]) -> memoryview:
    """A contiguous array's bytes."""
    return array.reshape(-1).view(np.uint8).data


def _append(file: _File, array: NDArray[Any]) -> None:
    start = file.size
    if array.size:
        file.write(_view(np.ascontiguousarray(array)))
    _fill(file, start)


def _fill(file: _File, start: int) -> None:
    """Zeros up to the next multiple of 64 bytes; every tensor begins at one."""
    assert start % ALIGNMENT == 0
    file.write(bytes(-file.size % ALIGNMENT))
