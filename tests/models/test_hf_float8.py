"""Checkpoints of 8-bit floats: scales of every shape are multiplied in, and an exported FP8 plan compiles to the same plan again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from mixplan.compiler.compressed_tensors.export import export_plan
from mixplan.compiler.frontends import open_checkpoint
from mixplan.compiler.frontends.tiny import tiny_model
from mixplan.compiler.pipeline import compile as compile_plan
from mixplan.runtime import load
from mixplan.runtime.errors import CheckpointError, UnsupportedError
from mixplan.runtime.float8 import encode

NAME = "model.layers.0.mlp.down_proj.weight"
FP8 = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "static"}


def _with_float8(folder: Path, shape: tuple[int, ...], end: str, quantization: Any = FP8) -> np.ndarray:
    """A tiny llama one of whose weights [160, 320] is stored in 8-bit floats with scales of this shape; what it stands for."""
    tiny_model("llama", hidden_size=160, intermediate_size=320).save_pretrained(folder)
    tensors = load_file(folder / "model.safetensors")
    rng = np.random.default_rng(0)
    codes = encode(rng.standard_normal((160, 320)) * 50)
    scale = np.asarray(rng.random(shape) / 1000 + 1e-4, np.float32)
    tensors[NAME] = torch.from_numpy(codes).view(torch.float8_e4m3fn)
    tensors[NAME + end] = torch.from_numpy(scale)
    tensors[NAME.replace("weight", "input_scale")] = torch.tensor(0.5)
    save_file(tensors, folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"quantization_config": quantization}))
    whole = np.ones((1, 1), np.float32) if shape == (7, 1) else scale.reshape(-1, 1) if scale.ndim < 2 else scale
    if whole.shape[0] > 1 and whole.shape[1] > 1:
        whole = np.repeat(np.repeat(whole, 128, 0), 128, 1)[:160, :320]
    return torch.from_numpy(codes).view(torch.float8_e4m3fn).float().numpy() * whole


@pytest.mark.parametrize(("shape", "end"), [((), "_scale"), ((1,), "_scale"), ((160, 1), "_scale"), ((2, 3), "_scale_inv")])
def test_scales_are_multiplied_in(shape: tuple[int, ...], end: str, tmp_path: Path) -> None:
    want = _with_float8(tmp_path, shape, end)
    weights = open_checkpoint(tmp_path).capture().weights
    np.testing.assert_array_equal(weights.read(NAME), want)
    np.testing.assert_array_equal(weights.read_rows(NAME, 120, 140), want[120:140])
    assert weights.dtype(NAME) == "F8_E4M3" and not any("scale" in name for name in weights.names())


def test_what_is_not_read(tmp_path: Path) -> None:
    _with_float8(tmp_path, (7, 1), "_scale")
    with pytest.raises(CheckpointError, match=r"of shape \[160, 320\] has a scale of shape \[7, 1\]"):
        open_checkpoint(tmp_path).capture().weights.read(NAME)
    integers = {"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": {"a": {"weights": {"type": "int"}}}}
    for quantization in (integers, FP8 | {"fmt": "e5m2"}):
        config = json.loads((tmp_path / "config.json").read_text())
        (tmp_path / "config.json").write_text(json.dumps(config | {"quantization_config": quantization}))
        with pytest.raises(UnsupportedError, match="already quantized"):
            open_checkpoint(tmp_path)


def test_an_exported_plan_compiles_to_itself(tiny_llama_dir: Path, tmp_path: Path) -> None:
    ids = [3, 17, 101, 42, 7]
    made = []
    for model, name in ((tiny_llama_dir, "a"), (tmp_path / "out", "b")):
        compile_plan(model, output=tmp_path / name, scheme="FP8", targets=("reference",), max_step_tokens=32)
        with load(tmp_path / name) as plan:
            made.append(plan.step(ids, list(range(5)), [0] * 5, "all").copy())
        if name == "a":
            export_plan(tmp_path / name, tiny_llama_dir, tmp_path / "out", dtype="float32")
    np.testing.assert_allclose(made[1], made[0], atol=1e-4 * float(np.abs(made[0]).max()))
