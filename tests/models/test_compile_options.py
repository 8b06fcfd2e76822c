"""Wrong options are told before anything is opened, overrides before anything is read; what a compile says about its source."""

from __future__ import annotations

import hashlib
import json
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from mixplan.cli import main
from mixplan.compiler import draft, pipeline
from mixplan.compiler.frontends.tiny import tiny_model
from mixplan.compiler.pipeline import compile as compile_plan
from mixplan.compiler.sources import SourceHashes
from mixplan.runtime.errors import CheckpointError, OptionError
from mixplan.runtime.plan_io import read_plan


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"isa": ("avx10",)}, "no ISA level 'avx10'.\nLevels: portable"),
        ({"isa": ("native", "sse9"), "targets": ("reference", "cpu")}, "no ISA level 'sse9'"),
        ({"passes": ("json:typo",)}, "module 'json' has no function 'typo'"),
        ({"passes": ("json:loads@after=fuse_ropes",)}, "there is no pass 'fuse_ropes'"),
        ({"passes": ("json:loads", "json:loads")}, "a pass named 'json:loads' already"),
        ({"overrides": ("lm_head",)}, "not of the form LAYER=SCHEME"),
        ({"overrides": ("re:[=W8A16",)}, "not a regular expression"),
        ({"overrides": ("lm_head=W5",)}, "Scheme 'W5' is not known"),
        ({"overrides": ("lm_head=W4A16:g48",)}, "group_size 48 is not supported"),
        ({"group_size": 33}, "group_size 33 is not supported; allowed: 32, 64, 128"),
        ({"group_size": 33, "scheme": "FP32"}, "group_size is 33; allowed are 32, 64, 128"),
        ({"scheme": "W9A9"}, "Scheme 'W9A9' is not known"),
        ({"targets": ("tpu",)}, "no target 'tpu'"),
        ({"targets": ()}, "targets is empty"),
        ({"kv_dtype": "i9"}, "kv_dtype has 'i9'; allowed are f32, f16, i8, i4, k8v4, fp8"),
        ({"kv_dtype": ""}, "kv_dtype has ''"),
        ({"kv_dtype": "i8,f16"}, "says twice what holds everywhere: i8 and f16"),
        ({"kv_dtype": "i8,first=f16"}, "kv_dtype has 'first=f16'; what stands before = is LAYER, FIRST-LAST or LAYER.HEAD"),
        ({"kv_dtype": "i8,5-3=f16"}, "there are no layers from 5 to 3"),
        ({"attention_scores": "i4"}, "attention_scores has 'i4'; allowed are f32, i8"),
        ({"attention_scores": "2.1=i8"}, "what stands before = is LAYER or FIRST-LAST"),
        ({"max_step_tokens": 0}, "max_step_tokens is 0"),
    ],
)
def test_wrong_options_are_told_before_the_checkpoint_is_opened(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(OptionError) as caught:
        compile_plan("/no/such/model", output=tmp_path / "x.plan", **options)
    assert message in str(caught.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("option", "text"), [("--arch", ""), ("--arch", "sm_90,"), ("--isa", ""), ("--isa", "portable,,native"), ("--isa", " , ")]
)
def test_a_list_of_levels_without_a_name(option: str, text: str, tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["compile", "none", "-o", str(tmp_path / "x.plan"), "--target", "cpu,gpu", option, text])
    assert result.exit_code == 2 and f"{option} is {text!r}, where a name is missing" in result.stderr, result.output
    assert f"Leave {option} out" in result.stderr


@pytest.mark.parametrize(
    ("override", "near"),
    [
        ("model.layers.0.mlp.down_projection=W8A16", "model.layers.0.mlp.down_proj"),
        ("re:q_prj$=W8A16", "Layers with near names: model.layers.0.self_attn.q_proj"),
    ],
)
def test_an_override_of_no_layer_is_told_before_weights_are_read(
    override: str, near: str, tiny_llama_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module, late in ((draft, "write_weights"), (draft, "build_regions"), (pipeline, "SourceHashes")):
        monkeypatch.setattr(module, late, lambda *_, **__: pytest.fail("too late"))
    with pytest.raises(OptionError, match="matches no layer") as caught:
        compile_plan(tiny_llama_dir, output=tmp_path / "x.plan", overrides=(override,))
    assert near in str(caught.value.hint)
    assert list(tmp_path.iterdir()) == []


def test_notes_of_the_checkpoint_reach_the_user(tiny_llama_dir: Path, tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    shutil.copytree(tiny_llama_dir, bare)
    for path in (*bare.glob("tokenizer*"), *bare.glob("*.jinja")):
        path.unlink()
    arguments = ["compile", str(bare), "--scheme", "FP32", "--target", "reference", "--force", "-o", str(tmp_path / "x.plan")]
    shown = CliRunner().invoke(main, arguments)
    assert shown.exit_code == 0, shown.output
    note = "the checkpoint has no tokenizer, so the plan takes token ids only"
    assert shown.stdout.rstrip().endswith(f"Warnings\nwarning: {note}")
    assert json.loads(CliRunner().invoke(main, [*arguments, "--json"]).stdout)["warnings"] == [note]


def test_a_module_in_memory_has_no_text(tmp_path: Path) -> None:
    report = compile_plan(tiny_model("llama"), output=tmp_path / "x.plan", scheme="FP32", targets=("reference",))
    assert "no tokenizer" in report.warnings[0]
    assert read_plan(tmp_path / "x.plan").plan.provenance.source_files == {}


def test_source_files_are_hashed_beside_the_weights(tiny_llama_dir: Path, tmp_path: Path) -> None:
    report = compile_plan(tiny_llama_dir, output=tmp_path / "x.plan", scheme="W4A8", targets=("reference",))
    recorded = read_plan(tmp_path / "x.plan").plan.provenance.source_files
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= set(recorded)
    assert list(recorded) == sorted(recorded)
    assert recorded == {name: hashlib.sha256((tiny_llama_dir / name).read_bytes()).hexdigest() for name in recorded}
    assert report.parallel == ("sources", "kernels") and report.seconds["sources"] > 0
    times = next(row[1] for row in report.render(_Table)[0].rows if row[0] == "time")
    assert "weights" in times and times.count("(in parallel)") == 2


def test_a_source_file_that_vanishes(tmp_path: Path) -> None:
    with SourceHashes({"weights": tmp_path / "none"}) as hashes, pytest.raises(CheckpointError, match=r"none cannot be read: No such file"):
        hashes.result()


def test_hashing_ends_with_the_compile_that_failed(tmp_path: Path) -> None:
    """Within a chunk of the file, not at its end: the user waits for the message."""
    large = tmp_path / "large"
    with large.open("wb") as file:
        file.truncate(1 << 40)
    start = time.perf_counter()
    with pytest.raises(ZeroDivisionError), SourceHashes({f"part {i}": large for i in range(9)}):
        raise ZeroDivisionError
    assert time.perf_counter() - start < 5


class _Table:
    def __init__(self, title: str, *columns: str) -> None:
        self.rows: list[tuple[str, ...]] = []

    def add_row(self, *cells: str) -> None:
        self.rows.append(cells)
