"""A plan appears whole or not at all, the same each time."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mixplan.compiler.emit as emit
from mixplan.compiler.output import new_directory
from mixplan.compiler.pipeline import compile as compile_plan
from mixplan.compiler.report import CompileReport
from mixplan.runtime import load
from mixplan.runtime.errors import CheckpointError, OptionError, OutputError


def _compile(model: Path, output: Path, **options: Any) -> CompileReport:
    return compile_plan(model, output=output, **{"scheme": "FP32", "targets": ("reference",), **options})


def _logits(plan: Path, tokens: int = 9) -> np.ndarray:
    ids = np.arange(3, 3 + tokens)
    with load(plan, device="reference") as model:
        return model.step(ids, np.arange(tokens), np.zeros(tokens, int), "all")


def _left_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("scheme", ["FP32", "W4A8:g64,asym"])
def test_two_compiles_are_byte_identical(tiny_llama_dir: Path, tmp_path: Path, scheme: str) -> None:
    contents = []
    for name in ("one.plan", "two.plan"):
        _compile(tiny_llama_dir, tmp_path / name, scheme=scheme)
        root = tmp_path / name
        contents.append({path.relative_to(root): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()})
    assert contents[0] == contents[1]
    assert {"plan.json", "weights.safetensors", "tokenizer.json"} <= {str(path) for path in contents[0]}


def test_output_that_exists_needs_force(tiny_llama_dir: Path, tmp_path: Path) -> None:
    output = tmp_path / "out.plan"
    _compile(tiny_llama_dir, output)
    with pytest.raises(OutputError, match=r"exists.*\n.*--force"):
        _compile(tiny_llama_dir, output)
    report = _compile(tiny_llama_dir, output, scheme="W4A16", force=True)
    assert _left_in(tmp_path) == ["out.plan"]
    assert report.effective_bits < 6  # the tiny model's head, in 8 bits, is a large part of it
    assert np.isfinite(_logits(output)).all()


@pytest.mark.parametrize("make", ["folder", "file", "link"])
def test_force_replaces_plans_only(tiny_llama_dir: Path, tmp_path: Path, make: str) -> None:
    output = tmp_path / "out.plan"
    if make == "folder":
        output.mkdir()
        (output / "thesis.txt").write_text("years of work")
    elif make == "file":
        output.write_text("years of work")
    else:
        output.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OutputError, match="not a plan, so it is not replaced"):
        _compile(tiny_llama_dir, output, force=True)
    assert _left_in(tmp_path) == ["out.plan"]


def test_output_below_a_file_cannot_be_written(tiny_llama_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="cannot be written"):
        _compile(tiny_llama_dir, tmp_path / "file" / "out.plan")


def test_folders_made_for_a_compile_that_failed_go_with_it(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError):
        _compile(tmp_path / "nothing", tmp_path / "new" / "newer" / "out.plan")
    assert _left_in(tmp_path) == []


def test_too_little_room_is_told_before_writing(tiny_llama_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(emit.shutil, "disk_usage", lambda _: usage._replace(free=1000))
    with pytest.raises(OutputError, match=r"they need \d\.\d\d MB, and 0\.00 MB are free"):
        _compile(tiny_llama_dir, tmp_path / "out.plan")
    assert _left_in(tmp_path) == []


@pytest.mark.parametrize(("code", "words"), [(errno.ENOSPC, "no room for"), (errno.EIO, "cannot be written: Input/output error")])
def test_a_disk_that_fails_half_way_leaves_nothing(
    tiny_llama_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, words: str
) -> None:
    real = emit._File.write

    def write(self: emit._File, data: bytes | memoryview) -> None:
        if self.size > 100_000:
            raise OSError(code, os.strerror(code))
        real(self, data)

    monkeypatch.setattr(emit._File, "write", write)
    with pytest.raises(OutputError, match=words):
        _compile(tiny_llama_dir, tmp_path / "out.plan")
    assert _left_in(tmp_path) == []


def test_interrupt_leaves_nothing(tiny_llama_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(emit._Writer, "write", interrupted)
    with pytest.raises(KeyboardInterrupt):
        _compile(tiny_llama_dir, tmp_path / "out.plan")
    assert _left_in(tmp_path) == []


_KILLED = """
import os, signal, sys
import mixplan.compiler.emit as emit
from mixplan.compiler.pipeline import compile
real = emit._Writer.write
def write(self, file, group):
    real(self, file, group)
    if file.size > 100_000:
        os.kill(os.getpid(), signal.SIGKILL)
emit._Writer.write = write
compile(sys.argv[1], output=sys.argv[2], scheme="FP32", targets=("reference",))
"""


def test_a_killed_compile_leaves_no_plan_and_the_next_cleans_up(tiny_llama_dir: Path, tmp_path: Path) -> None:
    output = tmp_path / "out.plan"
    done = subprocess.run([sys.executable, "-c", _KILLED, str(tiny_llama_dir), str(output)], capture_output=True, check=False)
    assert done.returncode == -9, done.stderr.decode()
    assert not output.exists()
    (left,) = _left_in(tmp_path)
    assert left.startswith(".out.plan.tmp-")
    _compile(tiny_llama_dir, output)
    assert _left_in(tmp_path) == ["out.plan"]


def test_a_living_compile_is_left_alone(tmp_path: Path) -> None:
    other = tmp_path / f".out.plan.tmp-{os.getppid()}"
    other.mkdir()
    with new_directory(tmp_path / "out.plan", force=False) as root:
        (root / "plan.json").write_text("{}")
        with pytest.raises(OutputError, match="being written by another compile"), new_directory(tmp_path / "out.plan", force=False):
            pass
    assert other.exists()
    assert (tmp_path / "out.plan" / "plan.json").exists()


def test_shards(tiny_llama_dir: Path, tmp_path: Path) -> None:
    _compile(tiny_llama_dir, tmp_path / "one.plan", scheme="W4A16:g32")
    _compile(tiny_llama_dir, tmp_path / "many.plan", scheme="W4A16:g32", shard_bytes=20_000)
    files = sorted(path.name for path in (tmp_path / "many.plan").glob("*.safetensors"))
    assert len(files) > 2
    assert files[0] == f"weights-00001-of-{len(files):05d}.safetensors"
    np.testing.assert_array_equal(_logits(tmp_path / "one.plan"), _logits(tmp_path / "many.plan"))


def test_every_tensor_is_aligned(tiny_llama_dir: Path, tmp_path: Path) -> None:
    from safetensors.numpy import load_file

    _compile(tiny_llama_dir, tmp_path / "out.plan", scheme="W4A8:g32,asym")
    with load(tmp_path / "out.plan", device="reference") as model:
        assert all(value.tensor.offset % 64 == 0 for value in model.plan.values if value.tensor is not None)
    data = (tmp_path / "out.plan" / "weights.safetensors").read_bytes()
    assert (8 + int.from_bytes(data[:8], "little")) % 64 == 0
    assert len(load_file(tmp_path / "out.plan" / "weights.safetensors")) > 20


def test_nan_weights_are_named(tiny_llama_dir: Path, tmp_path: Path) -> None:
    import torch
    from safetensors.torch import load_file, save_file

    model = tmp_path / "model"
    shutil.copytree(tiny_llama_dir, model)
    tensors = load_file(model / "model.safetensors")
    tensors["model.layers.1.mlp.up_proj.weight"][3, 5] = torch.nan
    save_file(tensors, model / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match=r"model\.layers\.1\.mlp\.up_proj\.weight"):
        _compile(model, tmp_path / "out.plan", scheme="W4A8")
    assert _left_in(tmp_path) == ["model"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"scheme": "W7A8"}, "W7A8.*not known"),
        ({"overrides": ["model.layers.7.mlp=FP32"]}, "matches no layer"),
        ({"targets": ("tpu",)}, "no target 'tpu'"),
        ({"targets": ()}, "targets is empty"),
        ({"max_step_tokens": 0}, "max_step_tokens is 0"),
        ({"kv_dtype": "f8"}, "kv_dtype has 'f8'"),
        ({"kv_dtype": "i8,2=f16"}, "names attention layer 2; the model has attention layers 0 to 1"),
        ({"kv_dtype": "i8,1.2=f16"}, "names KV head 2; attention layer 1 has KV heads 0 to 1"),
        ({"kv_dtype": "i8,1=f16", "attention_scores": "i8"}, "attention layer 1, whose keys are kept in f16"),
        ({"passes": ["no_such_module:fn"]}, "no_such_module"),
        ({"group_size": 48, "scheme": "W4A16"}, "group_size 48"),
    ],
)
def test_wrong_options(tiny_llama_dir: Path, tmp_path: Path, options: dict[str, Any], words: str) -> None:
    with pytest.raises(OptionError, match=words):
        _compile(tiny_llama_dir, tmp_path / "out.plan", **options)
    assert _left_in(tmp_path) == []


def test_report_and_decisions(tiny_llama_dir: Path, tmp_path: Path) -> None:
    report = _compile(tiny_llama_dir, tmp_path / "out.plan", scheme="W4A8", overrides=["lm_head=W8A16", "re:down_proj=FP32"])
    layers = {summary.scheme: summary for summary in report.schemes}
    assert set(layers) == {"W4A8:g32", "W8A16", "FP32"}
    assert layers["FP32"].layers == 2 and layers["FP32"].bits == 32
    assert layers["W4A8:g32"].bits == 4.5
    assert all(summary.requested_bits == summary.bits for summary in report.schemes)
    assert report.requested_bits == pytest.approx(report.effective_bits)
    assert report.to_dict()["schemes"][0]["layers"] == layers[report.schemes[0].scheme].layers
    with load(tmp_path / "out.plan", device="reference") as model:
        decided = {decision.layer: decision.scheme for decision in model.plan.decisions}
        assert model.plan.effective_bits == report.effective_bits
    assert decided["lm_head"] == "W8A16"
    assert decided["model.layers.0.mlp.down_proj"] == "FP32"
    assert decided["model.layers.0.mlp.up_proj"] == "W4A8:g32"
    stored = sum(path.stat().st_size for path in (tmp_path / "out.plan").glob("*.safetensors"))
    assert report.weight_bytes == stored


def test_a_module_in_memory(tmp_path: Path) -> None:
    import torch

    from mixplan.compiler.frontends.tiny import tiny_model

    module = tiny_model("qwen2")
    compile_plan(module, output=tmp_path / "out.plan", scheme="FP32", targets=("reference",))
    ids = np.arange(3, 12)
    with torch.no_grad():
        wanted = module(input_ids=torch.from_numpy(ids)[None], use_cache=False).logits[0].numpy()
    assert np.abs(_logits(tmp_path / "out.plan") - wanted).max() <= 2e-4 * np.abs(wanted).max()


def test_a_ledger_that_cannot_be_written_is_a_warning(tiny_llama_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "file"))
    report = _compile(tiny_llama_dir, tmp_path / "out.plan")
    assert len(report.warnings) == 1 and "trusted" in report.warnings[0]
    assert (tmp_path / "out.plan" / "plan.json").is_file()
