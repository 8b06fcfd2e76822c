"""Ranges of a plan's activations on a text: what static scales are made of."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

import numpy as np

from mixplan.compiler.calibration.product_ranges import ProductRanges
from mixplan.runtime import load
from mixplan.runtime.errors import InternalError
from mixplan.runtime.hal import Array
from mixplan.runtime.model import Model
from mixplan.runtime.plan import FileEntry, Plan
from mixplan.runtime.plan_files import MANIFEST, MANIFEST_DIGEST
from mixplan.runtime.plan_io import LoadedPlan, write_manifest

__all__ = ["activation_ranges", "range_tokens", "seen_ranges"]

_OPERATIONS = 1e12
_MOST_TOKENS, _LEAST_TOKENS = 2048, 128


def range_tokens(parameters: int) -> int:
    """Tokens worth running: a bounded number of operations, 2 for each parameter and token, on the reference device."""
    return int(min(_MOST_TOKENS, max(_LEAST_TOKENS, _OPERATIONS / (2 * max(parameters, 1)))))


def activation_ranges(
    root: Path,
    plan: Plan,
    known: Mapping[str, FileEntry],
    windows: Sequence[Sequence[int]],
    wanted: Collection[str],
    *,
    progress: Callable[[float], None] | None = None,
) -> dict[str, tuple[float, float]]:
    """The smallest and largest number of each value in `wanted`, by name, over windows of token ids.

    The plan's weights lie in `root`, digests of them in `known`; the plan is run on the reference device, by its own ops. Of a value that
    holds codes, the range is that of the numbers that they stand for, of a product of codes that of the product alone.
    """
    write_manifest(root, plan, known=known)
    longest = max(map(len, windows))
    try:
        with load(root, device="reference", verify="manifest", weights="mapped", max_sequences=1, kv_tokens=longest) as model:
            return seen_ranges(model, windows, wanted, progress=progress)
    finally:
        for name in (MANIFEST, MANIFEST_DIGEST):
            (root / name).unlink(missing_ok=True)


def seen_ranges(
    model: Model, windows: Sequence[Sequence[int]], wanted: Collection[str], *, progress: Callable[[float], None] | None = None
) -> dict[str, tuple[float, float]]:
    """As `activation_ranges`, of a plan that is loaded on the reference device and has no sequence yet."""
    seen = _Ranges(model.loaded, wanted)
    tokens, done = range_tokens(model.plan.model.parameters), 0
    for window in windows:
        for start in range(0, len(window), model.max_step_tokens):
            ids = np.asarray(window[start : start + model.max_step_tokens])
            model.step(ids, np.arange(start, start + len(ids)), np.zeros(len(ids), np.int64), "all", tap=seen.look)
            done += len(ids)
        model.free(0)
        if progress is not None:
            progress(min(done / tokens, 1.0))
        if done >= tokens:
            break
    return seen.finish()


class _Ranges:
    """Codes are told of before their scales, by one node; so they are kept until these come."""

    def __init__(self, loaded: LoadedPlan, wanted: Collection[str]) -> None:
        plan, self._wanted = loaded.plan, set(wanted)
        self._products = ProductRanges(loaded, wanted, self._enter)
        self._codes_of = {
            plan.values[node.outputs[1]].name: plan.values[node.outputs[0]].name
            for node in plan.nodes
            if len(node.outputs) == 3 and plan.values[node.outputs[0]].name in self._wanted
        }
        self._held: dict[str, Array] = {}
        self._ranges: dict[str, tuple[float, float]] = {}

    def look(self, name: str, array: Array) -> None:
        """A tap."""
        self._products.look(name, array)
        if name in self._codes_of:
            codes = self._held.pop(self._codes_of[name])
            apart = codes.reshape(*array.shape, -1).astype(np.int16)
            self._enter(self._codes_of[name], apart.min(axis=-1) * array, apart.max(axis=-1) * array)
        elif name in self._wanted and name not in self._products.names:
            if array.dtype == np.int8:
                self._held[name] = array
            else:
                self._enter(name, array, array)

    def _enter(self, name: str, low: Array, high: Array) -> None:
        if not low.size:
            return
        before = self._ranges.get(name, (np.inf, -np.inf))
        self._ranges[name] = (min(before[0], float(low.min())), max(before[1], float(high.max())))

    def finish(self) -> dict[str, tuple[float, float]]:
        missing = sorted(self._wanted - set(self._ranges))
        if missing:
            raise InternalError(f"No range of the activation {missing[0]!r} was seen.")
        return dict(sorted(self._ranges.items()))
