"""`mixplan explain` and `mixplan diff`: what they say with a receipt and without, and what is refused."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner, Result

from mixplan.cli import main
from mixplan.compiler.pipeline import compile as compile_plan
from mixplan.runtime.plan_io import read_plan, write_manifest
from mixplan.runtime.receipt import Candidate, CurvePoint, LayerChoice, Receipt, Solver, encode_receipt, read_receipt

Q, K, V = (f"model.layers.0.self_attn.{name}_proj" for name in "qkv")
RECEIPT = Receipt(
    promise={"bits": "4.5"},
    achieved={"bits": 4.49},
    solver=Solver(status="optimal", gap=0.0, predicted=0.17),
    layers=(
        LayerChoice(
            f"{Q} + {K} + {V}",
            "W4A8:g32",
            "a wider one costs more bits than it saves",
            (Candidate("W8A8", 8.06, 0.001, 2e-5), Candidate("W4A8:g32", 4.5, 0.0123, 1e-5)),
        ),
    ),
    curve=(CurvePoint(4.0, 0.3), CurvePoint(4.5, 0.17, 0.01, "measured")),
    measured={"kld_mean": 0.169},
    text={"calibration": "valid.txt"},
)


def _with(plan: Path, where: Path, files: dict[str, bytes]) -> Path:
    shutil.copytree(plan, where)
    for name, data in files.items():
        (where / name).write_bytes(data)
    with read_plan(plan) as loaded:
        write_manifest(where, msgspec.structs.replace(loaded.plan, files={}))
    return where


@pytest.fixture(scope="module")
def plan(tiny_llama_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("explain") / "a.plan"
    compile_plan(tiny_llama_dir, output=path, scheme="W4A8", targets=("reference",))
    return path


@pytest.fixture(scope="module")
def receipted(plan: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _with(plan, tmp_path_factory.mktemp("explain") / "b.plan", {"receipt.json": encode_receipt(RECEIPT)})


def _run(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def _json(*arguments: object) -> Any:
    done = _run(*arguments, "--json")
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def test_the_receipt_is_part_of_the_plan(plan: Path, receipted: Path) -> None:
    with read_plan(receipted) as loaded, read_plan(plan) as other:
        assert "receipt.json" in loaded.plan.files
        assert read_receipt(loaded) == RECEIPT and read_receipt(other) is None


def test_explain_a_plan(plan: Path, receipted: Path) -> None:
    data = _json("explain", receipted)
    assert data["promise"] == {"bits": "4.5"} and data["achieved"] == {"bits": 4.49} and data["measured"] == {"kld_mean": 0.169}
    layers = {layer["layer"]: layer for layer in data["layers"]}
    assert layers[Q]["predicted_loss"] == 0.0123 and layers[Q]["decided_with"] == [K, V]
    assert layers[Q]["bytes"] == round(64 * 64 * layers[Q]["bits"] / 8) and layers["lm_head"]["predicted_loss"] is None
    done = _run("explain", receipted)
    for words in (
        "promised: bits",
        "measured: kld_mean",
        "solver: status",
        "optimal",
        "a wider one costs more",
        "Curve",
        "4.500",
    ):
        assert words in done.stdout
    done = _run("explain", plan)
    assert done.exit_code == 0 and "none: the formats are those that the options name" in done.stdout and "option: scheme" in done.stdout


def test_explain_a_layer(plan: Path, receipted: Path) -> None:
    (layer,) = _json("explain", receipted, K)["layers"]
    assert [one["scheme"] for one in layer["candidates"]] == ["W4A8:g32", "W8A8"]  # the narrowest first
    assert [one["chosen"] for one in layer["candidates"]] == [True, False]
    (node,) = layer["nodes"]
    assert node["op"] == "linear_q" and node["format"] == "i4" and node["group_size"] == 32 and node["device"] == "reference"
    done = _run("explain", receipted, f"{K}.weight")
    for words in ("W4A8:g32 (requested: W4A8:g32)", "decided with", "Candidates", "0.0123", "linear_q in i4, group_size 32"):
        assert words in done.stdout
    assert "No candidates" in _run("explain", plan, K).stdout
    both = _json("explain", plan, r"re:.*\.(gate|up)_proj")["layers"]
    assert len(both) == 4 and all(len(one["nodes"]) == 1 for one in both)
    for name in ("model.embed_tokens", "lm_head", "model.layers.1.mlp.down_proj"):
        assert len(_json("explain", plan, name)["layers"][0]["nodes"]) == 1


def test_diff_tells_what_differs(plan: Path, receipted: Path, tiny_llama_dir: Path, tmp_path: Path) -> None:
    other = tmp_path / "c.plan"
    compile_plan(tiny_llama_dir, output=other, scheme="W4A8", overrides=("model.layers.1.mlp.down_proj=W8A8",), targets=("reference",))
    data = _json("diff", receipted, other)
    assert data["same"] is False
    assert set(data["layers"]) == {"model.layers.1.mlp.down_proj"}
    sides = data["layers"]["model.layers.1.mlp.down_proj"]
    assert sides["a"]["scheme"] == "W4A8:g32" and sides["b"]["scheme"].startswith("W8A8") and sides["b"]["bytes"] > sides["a"]["bytes"]
    assert data["measured"] == {"kld_mean": {"a": 0.169, "b": None}}
    assert data["provenance"]["option overrides"]["b"] == "model.layers.1.mlp.down_proj=W8A8"
    assert "effective bits" in data["facts"] and "weights.safetensors" in data["files"]
    done = _run("diff", receipted, other)
    assert done.exit_code == 0, done.output
    for words in ("Layers: 1 differ", "Measured", "0.169", "option overrides", "effective bits"):
        assert words in done.stdout
    done = _run("diff", plan, receipted)
    assert "layers have equal formats" in done.stdout and "receipt.json" in done.stdout


def test_equal_plans(plan: Path, tmp_path: Path) -> None:
    again = _with(plan, tmp_path / "again.plan", {})
    assert "are equal to the last byte" in _run("diff", plan, again).stdout
    data = _json("diff", plan, again)
    assert data["same"] is True and not any(data[key] for key in ("facts", "layers", "ops", "regions", "kernels", "files", "provenance"))


def test_what_is_refused(plan: Path, receipted: Path, tmp_path: Path) -> None:
    broken = _with(plan, tmp_path / "broken.plan", {"receipt.json": b'{"promise":1}'})
    changed = tmp_path / "changed.plan"
    shutil.copytree(receipted, changed)
    (changed / "receipt.json").write_bytes(encode_receipt(RECEIPT).replace(b"0.169", b"0.001"))
    for arguments, message in [
        (("explain", tmp_path / "none.plan"), "no plan at"),
        (("explain", plan, "model.layers.0.self_attn.kproj"), "Near it: model.layers.0.self_attn."),
        (("explain", plan, "k_proj"), "No layer of tiny-llama-W4A8:g32 is 'k_proj'"),
        (("explain", plan, "re:nothing"), "re:PATTERN names several"),
        (("explain", plan, "re:("), "is not a regular expression"),
        (("explain", broken), "is not a valid receipt"),
        (("explain", changed), "does not match its SHA-256"),
        (("diff", plan, tmp_path / "none.plan"), "no plan at"),
        (("diff", broken, plan), "is not a valid receipt"),
        (("diff", plan), "Missing argument 'B'"),
    ]:
        done = _run(*arguments)
        assert done.exit_code == 2 and message in done.output, done.output


def test_they_need_no_compiler(receipted: Path) -> None:
    code = (
        "import sys; sys.modules.update(dict.fromkeys(['torch', 'jinja2', 'transformers', 'scipy', 'gguf']));"
        "from mixplan.cli import main; main()"
    )
    for arguments in (["explain", str(receipted), K], ["diff", str(receipted), str(receipted)]):
        done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
