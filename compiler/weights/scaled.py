"""Weights in 8-bit floats (F8_E4M3) with their scales, as compressed-tensors' float-quantized checkpoints and "fp8" ones store them.

Beside `NAME.weight` stands `NAME.weight_scale` (or `weight_scale_inv`, which is no inverse either): one number, one for each row [N, 1],
or one for each block of rows and columns [a, b]. Blocks are 128 x 128, or where that does not fit, even parts of the weight. Scales of
inputs and of the KV cache are left aside: inputs get their own where a plan runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mixplan.runtime.errors import CheckpointError

__all__ = ["FLOAT8", "hidden_names", "scale_names", "scaled"]

FLOAT8 = "F8_E4M3"
_SCALES = ("_scale", "_scale_inv")
_ASIDE = (".input_scale", ".output_scale", ".k_scale", ".v_scale", ".q_scale")
_BLOCK = 128


def scale_names(dtypes: Mapping[str, str]) -> dict[str, str]:
    """For each stored weight in 8-bit floats that has a scale, the scale's name. dtypes: of all stored tensors, by name."""
    found = {}
    for name, dtype in dtypes.items():
        scale = next((name + end for end in _SCALES if name + end in dtypes), None)
        if dtype == FLOAT8 and scale is not None:
            found[name] = scale
    return found


def hidden_names(dtypes: Mapping[str, str], scales: Mapping[str, str]) -> set[str]:
    """Stored names that are no tensor of the model."""
    aside = {name for name in dtypes if name.endswith(_ASIDE)} if scales else set()
    return aside | set(scales.values())


def scaled(name: str, rows: NDArray[np.float32], scale: NDArray[Any], shape: tuple[int, ...], start: int) -> NDArray[np.float32]:
    """Rows [start, ..) of a stored weight of this shape times its scale. CheckpointError where the scale does not fit."""
    scale = np.asarray(scale, np.float32)
    if scale.size == 1:
        return rows * scale.reshape(())
    if len(shape) == 2 and scale.shape in ((shape[0],), (shape[0], 1)):
        return rows * scale.reshape(-1, 1)[start : start + len(rows)]
    if len(shape) != 2 or scale.ndim != 2 or not scale.size:
        raise _misfit(name, shape, scale)
    size = [_block(whole, parts) for whole, parts in zip(shape, scale.shape, strict=True)]
    if 0 in size:
        raise _misfit(name, shape, scale)
    of_rows, of_columns = np.arange(start, start + len(rows)) // size[0], np.arange(shape[1]) // size[1]
    return rows * scale[of_rows][:, of_columns]


def _block(whole: int, parts: int) -> int:
    """Elements of a block where `whole` of them have `parts` scales; 0 where there is no such size."""
    if -(-whole // _BLOCK) == parts:
        return _BLOCK
    return whole // parts if whole % parts == 0 else 0


def _misfit(name: str, shape: tuple[int, ...], scale: NDArray[Any]) -> CheckpointError:
    return CheckpointError(
        f"tensor {name!r} of shape {list(shape)} has a scale of shape {list(scale.shape)}",
        hint="Read are one scale for a weight, for each row, or for each block of 128 x 128.",
    )
