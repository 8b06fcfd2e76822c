"""Ops along axes, and ops that depend on where an element stands, as kernels written once in Triton's interpreter, against torch.

Shapes are fixed, as those of kernels are: an array whose first dim is not the tokens is refused where shapes vary with the step.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.nn.functional import pad

import mixplan

_RNG = np.random.default_rng(0)
X = _RNG.standard_normal((3, 5, 37)).astype(np.float32)
WHOLE = _RNG.integers(-4, 5, (3, 5, 19))
# Longer than a block of columns; equals and a NaN in the second block and behind it.
LONG = _RNG.standard_normal((2, 9001)).astype(np.float32)
LONG[0, [5000, 8200]], LONG[1, 6000] = 9, np.nan

CASES: list[tuple[str, Callable[[Any], Any], Any]] = [
    ("sum", lambda x: x.sum((0, 2)), X),
    ("mean", lambda x: x.mean((1, 2)), X),
    ("amax", lambda x: x.amax(1), X),
    ("amax", lambda x: x.amax(1), LONG),
    ("amin", lambda x: x.amin(2), WHOLE),
    ("prod", lambda x: x.prod(2), X),
    ("sum", lambda x: x.sum(0), WHOLE),
    ("argmax", lambda x: x.argmax(1), LONG),
    ("argmin", lambda x: x.argmin(1, keepdim=True), WHOLE),
    ("any", lambda x: x.bool().any(2), WHOLE),
    ("all", lambda x: x.bool().all(1), WHOLE),
    ("log_softmax", lambda x: torch.log_softmax(x, 1), X),
    ("softmax", lambda x: torch.softmax(x, 0), X),
    ("logsumexp", lambda x: torch.logsumexp(x, 2), X),
    ("cumsum", lambda x: torch.cumsum(x, 1), X),
    ("cumsum", lambda x: torch.cumsum(x, 2), WHOLE),
    ("cat", lambda x: torch.cat([x, x[:, :2], -x], 1), X),
    ("pad", lambda x: pad(x, (2, 1, 0, 3), value=-1.5), X),
    ("flip", lambda x: torch.flip(x, (0, 2)) * 2, X),
    ("tril", lambda x: torch.tril(x, -2), X),
    ("triu", lambda x: torch.triu(x, 1), WHOLE),
    ("slice", lambda x: x[:, -2:, 3:-1] + 1, X),
]


def main() -> None:
    warnings.simplefilter("ignore")
    for op, function, array in CASES:
        kernel = mixplan.kernel(function)
        assert op in kernel.ops(array), (op, kernel.ops(array))
        found, wanted = kernel.on("gpu", isa="interpret")(array), function(torch.from_numpy(array)).numpy()
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5, err_msg=op)
        assert found.dtype == wanted.dtype
        sys.stdout.write(f"{op}\n")


if __name__ == "__main__":
    main()
