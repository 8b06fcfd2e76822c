"""Ops written once: the same numbers as torch, by numpy and on every target, alone and inside a model."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

import mixplan
from mixplan.compiler.custom.kernel import Kernel
from mixplan.compiler.frontends.tiny import tiny_model
from mixplan.runtime.errors import MixplanError, OptionError, UnsupportedError

TARGETS = ("cpu", "npu", "reference")
Array = NDArray[Any]


@mixplan.kernel
def snake(x: Tensor, alpha: float = 0.5) -> Tensor:
    return x + torch.sin(alpha * x) ** 2 / alpha


@mixplan.kernel(dtype="bf16")
def centered_norm(x: Tensor, weight: Tensor, residual: Tensor, eps: float = 1e-5) -> tuple[Tensor, Tensor]:
    total = x + residual
    centered = total - total.mean(-1, keepdim=True)
    return centered * torch.rsqrt(centered.square().mean(-1, keepdim=True) + eps) * weight, total


@mixplan.kernel
def dequantizing_product(x: Tensor, codes: Tensor, scales: Tensor) -> Tensor:
    n, k = codes.shape
    wide = (codes.float().reshape(n, k // 32, 32) - 8) * scales[..., None]
    return nn.functional.silu(x @ wide.reshape(n, k).T)


@mixplan.kernel
def rows_of_a_table(table: Tensor, indices: Tensor) -> Tensor:
    found = table[indices]
    return torch.where(found > 0, found, 0.1 * found) / found.abs().amax(-1, keepdim=True)


@mixplan.kernel
def constant(x: Tensor) -> Tensor:
    return torch.tensor(2.5)


def _normal(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


_CODES = np.random.default_rng(1).integers(0, 16, (24, 64)).astype(np.uint8)
CASES: dict[str, tuple[Kernel, tuple[Array, ...]]] = {
    "activation": (snake, (_normal(5, 67),)),
    "norm": (centered_norm, (_normal(7, 65), _normal(65, seed=1), _normal(7, 65, seed=2))),
    "product": (dequantizing_product, (_normal(3, 64), _CODES, np.abs(_normal(24, 2)))),
    "constant": (constant, (_normal(3),)),
    "gather": (rows_of_a_table, (_normal(11, 33), np.array([3, 0, 10, 3]))),
}


def _rounded(x: Tensor, kernel: Kernel) -> Tensor:
    return x.bfloat16().float() if kernel.dtype == "bf16" and x.is_floating_point() else x


def _tuple(x: Any) -> tuple[Any, ...]:
    return x if isinstance(x, tuple) else (x,)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", CASES)
def test_every_target_gives_what_torch_does(name: str, target: str) -> None:
    """A result in bf16 may fall on either side of a border: one of its steps, 2^-8, off."""
    kernel, arrays = CASES[name]
    wanted = _tuple(kernel(*(_rounded(torch.from_numpy(one), kernel) for one in arrays)))
    step = 2.0**-8 if kernel.dtype == "bf16" else 1e-5
    on = kernel.on(target)
    for found in (kernel.reference(*arrays), on(*arrays)):
        for got, want in zip(_tuple(found), wanted, strict=True):
            np.testing.assert_allclose(got, want.numpy(), rtol=step, atol=step)
    if kernel.dtype == "bf16":
        bits = _tuple(on(*arrays))[0].view(np.uint32)
        assert not (bits & 0xFFFF).any(), "results lie in memory as bf16"
    on.close()


def test_numbers_change_what_is_computed() -> None:
    x = _normal(4, 9)
    assert np.abs(snake(x) - snake(x, alpha=2.0)).max() > 0.1
    np.testing.assert_allclose(snake(x, alpha=2.0), snake(torch.from_numpy(x), alpha=2.0).numpy(), atol=1e-5)


def test_a_chain_is_one_loop() -> None:
    """What the CPU target generates for five pointwise ops."""
    x = _normal(4, 9)
    assert snake.ops(x) == ("mul", "sin", "square", "div", "add")
    assert snake.source(x).count("for (int64_t i = lo") == 1


def _branch(x: Tensor) -> Tensor:
    y = x * 2
    if y.sum() > 0:
        return x
    return y


def _singular(x: Tensor) -> Tensor:
    y = x + 1
    return torch.linalg.svd(y)[1]


def _numpy(x: Tensor) -> Tensor:
    return np.interp(x, [0, 1], [2, 3])  # type: ignore[return-value]


@pytest.mark.parametrize(("function", "line"), [(_branch, 2), (_singular, 2), (_numpy, 1)])
def test_what_cannot_be_a_kernel_is_told_with_its_line(function: Callable[..., Any], line: int) -> None:
    where = f"{Path(__file__).name}:{function.__code__.co_firstlineno + line}"
    with pytest.raises(UnsupportedError, match=where) as caught:
        mixplan.kernel(function)(_normal(3, 3))
    assert "elementwise functions of torch" in str(caught.value)


def _no_tensor(alpha: float = 1.0) -> float:
    return alpha


def _many(*tensors: Tensor) -> Tensor:
    return tensors[0]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: mixplan.kernel(_no_tensor), "at least one tensor"),
        (lambda: mixplan.kernel(_many), r"\*tensors.* not allowed"),
        (lambda: mixplan.kernel(dtype="fp4")(_branch), "dtype of kernel _branch is 'fp4'"),
        (lambda: snake.on("tpu"), "no target 'tpu'"),
        (lambda: snake(_normal(2, 2), _normal(2, 2)), r"takes 1 tensors \(x\); got 2"),
        (lambda: snake(_normal(2, 2), beta=1.0), "no number 'beta'; it has alpha"),
        (lambda: snake(np.zeros(3, np.complex64)), "complex64; allowed are float32"),
        (lambda: snake.replacing(), "replaces nothing"),
    ],
)
def test_wrong_use_is_told(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        make()


def _activation(model: Any, ops: Any) -> None:
    for layer in model.model.layers:
        layer.mlp.act_fn.forward = ops.snake


def _norms(model: Any, ops: Any) -> None:
    for module in model.modules():
        if "RMSNorm" in type(module).__name__:
            module.forward = lambda x, weight=module.weight: ops.centered_norm(x, weight)


def _products(model: Any, ops: Any) -> None:
    for layer in model.model.layers:
        layer.mlp.down_proj.forward = lambda x, weight=layer.mlp.down_proj.weight: ops.four_bit_product(x, weight)


def _rows(model: Any, ops: Any) -> None:
    table = model.model.embed_tokens
    table.forward = lambda ids, weight=table.weight: rows_of_a_table(weight, ids)


rows_for_embedding = rows_of_a_table.replacing(torch.ops.aten.embedding.default)
# Passes, how torch's model is changed to the same, and matches a layer and elsewhere.
IN_MODELS: dict[str, tuple[Callable[[Any, Any], None], int, int]] = {
    "kernels_once:snake_for_silu@after=drop_noops": (_activation, 1, 0),
    "kernels_once:norm_for_rms@after=fuse_norms": (_norms, 2, 1),
    "kernels_once:four_bits_down@after=drop_noops": (_products, 1, 0),
    "test_custom_kernels:rows_for_embedding@after=drop_noops": (_rows, 0, 1),
}


def check_in_model(spec: str, target: str, folder: Path, *, isa: str | None = None, layers: int = 2, tokens: int = 17) -> None:
    """A model compiled with a pass, against the model changed in torch. isa: of the device."""
    import kernels_once

    change, each, once = IN_MODELS[spec]
    model = tiny_model("llama", num_hidden_layers=layers)
    level = {"cpu": ("native",), "gpu": ("jit",)}.get(target)
    report = mixplan.compile(model, output=folder, scheme="FP32", passes=(spec,), targets=(target,), isa=level, force=True)
    assert report.matches[spec.partition("@")[0]] == each * layers + once
    ids = torch.arange(3, 3 + tokens)
    with mixplan.runtime.load(folder, device=target, isa=isa) as plan:
        assert {region.device for region in plan.plan.regions} == {target}  # nothing is left to numpy
        found = np.array(plan.step(ids.tolist(), range(tokens), [0] * tokens, "all"))
    changed = copy.deepcopy(model)
    change(changed, kernels_once)
    with torch.no_grad():
        wanted, plain = (one(ids[None]).logits[0].numpy() for one in (changed, model))
    np.testing.assert_allclose(found, wanted, atol=1e-4)
    assert np.abs(wanted - plain).max() > 0.01


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("spec", IN_MODELS)
def test_in_a_model(spec: str, target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in (Path(__file__).parents[2] / "examples", Path(__file__).parent):
        monkeypatch.syspath_prepend(str(folder))
    check_in_model(spec, target, tmp_path / "p", layers=1 if "rows" in spec else 2)
    for name in ("kernels_once", "test_custom_kernels"):
        sys.modules.pop(name, None)


def test_a_match_that_does_not_fit_names_the_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "wrong_rule.py").write_text(
        "import torch, mixplan\n"
        "@mixplan.kernel\ndef halved(x):\n    return x[..., :4]\n"
        "shorter = halved.replacing(torch.ops.aten.silu.default)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(MixplanError, match=r"Kernel halved gives \[1, .*\] in the place of node \w*silu"):
        mixplan.compile(tiny_model("llama"), output=tmp_path / "x", scheme="FP32", passes=("wrong_rule:shorter@after=drop_noops",))
    assert not (tmp_path / "x").exists()


_INTERPRETED = """
import sys
sys.path[:0] = sys.argv[1:3]
from pathlib import Path
import numpy as np
from test_custom_kernels import CASES, IN_MODELS, check_in_model, snake
for name, (kernel, arrays) in CASES.items():
    on = kernel.on("gpu", isa="interpret")
    found, wanted = on(*arrays), kernel.reference(*arrays)
    for got, want in zip(*((one if isinstance(one, tuple) else (one,)) for one in (found, wanted)), strict=True):
        np.testing.assert_allclose(got, want, rtol=2.0**-8 if kernel.dtype == "bf16" else 1e-5, atol=1e-5, err_msg=name)
    print(name)
assert snake.on("gpu", isa="interpret").source(np.ones((4, 9), np.float32)).count("chain") == 1
for spec in IN_MODELS:
    check_in_model(spec, "gpu", Path(sys.argv[3]), isa="interpret", layers=1, tokens=5)
    print(spec)
"""


def test_triton_kernels_in_the_interpreter(tmp_path: Path) -> None:
    """Alone and in a model, in a process of its own: Triton decides on its import whether it interprets."""
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    folders = [Path(__file__).parents[2] / "examples", Path(__file__).parent, tmp_path / "p"]
    command = [sys.executable, "-W", "ignore", "-c", _INTERPRETED, *map(str, folders)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.split() == [*CASES, *IN_MODELS]
