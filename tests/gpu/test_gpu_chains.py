"""Chains of pointwise ops: every op of the kernel against its numpy reference, and chains of several."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mixplan.runtime.dtypes import bf16_to_f32, f32_to_bf16
from mixplan.runtime.ops import OPS, StepContext

CONTEXT = StepContext(np.zeros(3, np.int32), np.arange(3, dtype=np.int32))


def _reference(op: str, attrs: dict[str, Any], *inputs: np.ndarray) -> np.ndarray:
    with np.errstate(all="ignore"):
        return np.asarray(OPS[op].reference(CONTEXT, attrs, inputs)[0])


def _run(kernel: Any, text: str, elements: int, outer: int, inputs: list[np.ndarray], outputs: list[np.ndarray]) -> list[np.ndarray]:
    """The outputs, by the kernel; blocks of 16."""
    pointers = [*inputs, *[None] * (8 - len(inputs)), *outputs, *[None] * (4 - len(outputs))]
    made: list[np.ndarray] = kernel("chain", (-(-elements // 16),), *pointers, outer, CHAIN=text, BLOCK=16)
    return made[len(inputs) :]


_DOMAIN = {"log": (1e-3, 9), "sqrt": (0, 9), "rsqrt": (1e-3, 9), "log1p": (-0.9, 9), "sin": (-1e5, 1e5), "cos": (-1e5, 1e5)}


@pytest.mark.parametrize(
    "op",
    ("neg abs exp exp2 expm1 log log1p log_sigmoid sign sqrt rsqrt reciprocal tanh sigmoid silu gelu gelu_tanh relu erf sin cos floor"
     " ceil round softplus square logical_not").split(),
)  # fmt: skip
def test_unary(op: str, kernel: Any) -> None:
    """On a slice of a wider array, written into another slice. Large angles show the reduction of sines."""
    rng = np.random.default_rng(6)
    low, high = _DOMAIN.get(op, (-30, 30))
    x = rng.uniform(low, high, (2, 5, 7)).astype(np.float32)
    x[0, :4, 2] = [low, high, 0.5 if op != "logical_not" else 0, 2.5]
    truth = op == "logical_not"
    y = np.zeros((2, 4, 9), np.uint8 if truth else np.float32)
    attrs = {"beta": 0.5, "threshold": 5.0} if op == "softplus" else {}
    line = " ".join([op, "f32 v0", *map(str, attrs.values())])
    text = f"sizes 3 5\nload f32 35 7 1\n{line}\nstore {'bool' if truth else 'f32'} v1 36 9 1"
    made = _run(kernel, text, 30, 2, [x], [y])[0]
    wanted = _reference(op, attrs, x[:, :3, :5])
    scale = 0.0 if op in ("sin", "cos", "sigmoid", "tanh", "erf") else 4e-6
    np.testing.assert_allclose(made[:, :3, :5], wanted, rtol=scale, atol=1e-6)
    made[:, :3, :5] = 0
    assert not made.any()


def test_a_chain(kernel: Any) -> None:
    """A slice, a row for all, a column for each, a number, a condition and casts, in blocks that end within rows; two results."""
    rng = np.random.default_rng(7)
    wide, row = rng.standard_normal((5, 24)).astype(np.float32), rng.standard_normal(7).astype(np.float32)
    mask, half = rng.integers(0, 2, (5, 1)).astype(np.uint8), rng.standard_normal((5, 7)).astype(np.float16)
    text = """sizes 7
load f32 24 1
silu f32 v0
load f32 0 1
mul f32 v1 v2
load f16 7 1
cast f16 v4 f32
number f32 -inf
load bool 1 0
where f32 v7 v5 v6
maximum f32 v8 v3
cast f32 v9 bf16
store f32 v3 7 1
store bf16 v10 7 1"""
    outputs = [np.zeros((5, 7), np.float32), np.zeros((5, 7), np.int16)]
    y, z = _run(kernel, text, 35, 5, [wide, row, half, mask], outputs)
    wanted = _reference("silu", {}, wide[:, :7]) * row
    np.testing.assert_allclose(y, wanted, rtol=1e-6)
    largest = np.maximum(np.where(mask != 0, half.astype(np.float32), -np.inf), y)
    np.testing.assert_array_equal(bf16_to_f32(z.view(np.uint16)), bf16_to_f32(f32_to_bf16(largest)))


_CONFORMANCE = """
from mixplan.targets.conformance.run import run_conformance
found = run_conformance("gpu", {ops!r}, isa="interpret")
for one in found:
    if one.status != "passed":
        print(one.status, one.op, one.label, one.reason)
print(len(found))
"""
# Ops of several dtypes, and those with the most special cases.
_OPS = "pow floor_div remainder lt logical_xor shift_right cast".split()


def _interpreted(*arguments: str) -> list[str]:
    """Lines that a Python process prints in which Triton interprets."""
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-W", "ignore", *arguments], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.splitlines()


_WITH_TRITON = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed: pip install 'mixplan[gpu]'")


@_WITH_TRITON
def test_ops_of_every_dtype() -> None:
    """The target's conformance, in the interpreter: none is refused."""
    (count,) = _interpreted("-c", _CONFORMANCE.format(ops=_OPS))
    assert int(count) > 50


@_WITH_TRITON
def test_ops_along_axes_and_by_place() -> None:
    told = _interpreted(str(Path(__file__).parent / "axes_worker.py"))
    assert len(told) == 22
    assert {"argmax", "cumsum", "cat", "pad", "tril", "prod"} <= set(told)
