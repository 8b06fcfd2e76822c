"""Promises, end to end on a tiny model: kept and recorded, or a typed error that leaves nothing behind."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from mixplan.cli import main
from mixplan.compiler.frontends.tiny import tiny_model
from mixplan.compiler.pipeline import compile as compile_plan
from mixplan.compiler.report import CompileReport
from mixplan.runtime import load
from mixplan.runtime.errors import OptionError, PromiseError
from mixplan.runtime.plan_io import read_plan
from mixplan.runtime.receipt import Receipt, read_receipt

_MENU = ("W4A16:g32", "W8A16", "BF16")


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Words in random order."""
    generator = np.random.default_rng(0)
    words = [bytes(generator.integers(97, 123, 5).tolist()).decode() for _ in range(50)]
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text(" ".join(generator.choice(words, 1200).tolist()), encoding="utf-8")
    return path


@pytest.fixture
def promised(tiny_llama_dir: Path, text: Path, tmp_path: Path) -> Callable[..., CompileReport]:
    """Compiles the tiny llama under a promise."""

    def run(**options: Any) -> CompileReport:
        given = {"text": text, "candidates": _MENU, "targets": ("reference",), "output": tmp_path / "x.plan", "force": True}
        return compile_plan(tiny_llama_dir, **{**given, **options})

    return run


def _receipt(plan: Path) -> Receipt:
    with read_plan(plan) as loaded:
        found = read_receipt(loaded)
    assert found is not None
    return found


def test_bits_are_kept_and_all_is_recorded(promised: Callable[..., CompileReport]) -> None:
    report = promised(bits=7.0, pins=("model.layers.1.mlp.down_proj=BF16",))
    assert report.promise is not None and report.effective_bits <= 7.0
    with read_plan(report.output) as loaded:
        plan = loaded.plan
        assert {"receipt.json", "report.html"} <= set(plan.files) and plan.effective_bits == report.effective_bits
        assert plan.name == "tiny-llama-7bits" and plan.provenance.options["promise"] == "--bits 7"
        rules = {decision.layer: decision for decision in plan.decisions}
        page = loaded.read_file("report.html").decode()
    pinned = rules["model.layers.1.mlp.down_proj"]
    assert (pinned.scheme, pinned.rule) == ("BF16", "pin")
    assert pinned.reason == "pinned by model.layers.1.mlp.down_proj=BF16"
    assert {d.rule for d in plan.decisions} == {"pin", "solver"} and all(d.reason for d in plan.decisions)
    assert rules["model.layers.0.self_attn.q_proj"].scheme == rules["model.layers.0.self_attn.k_proj"].scheme
    receipt = _receipt(report.output)
    assert receipt.promise == {"bits": "7"} and receipt.achieved["bits"] == pytest.approx(plan.effective_bits, rel=1e-5)
    assert receipt.solver.status == "optimal" and (receipt.solver.gap or 0.0) <= 1e-3 and receipt.solver.seconds is None
    assert receipt.measured["kld_mean"] > 0 and receipt.measured["perplexity"] > 1
    for choice in receipt.layers:
        assert choice.chosen in {one.scheme for one in choice.candidates}
        assert all(rules[layer].scheme == choice.chosen for layer in choice.layer.split(" + "))
    assert {point.kind.partition(" ")[0] for point in receipt.curve} == {"bits", "latency", "uniform", "chosen", "measured"}
    assert page.count("<svg") == 2 and "http" not in page.replace("http://www.w3.org", "")
    assert all(choice.layer in page for choice in receipt.layers)


def test_the_plan_that_was_measured_is_the_plan(promised: Callable[..., CompileReport]) -> None:
    report = promised(max_kld=0.05)
    assert report.promise is not None and report.promise.achieved["kld"] <= 0.05
    assert not [path for path in report.output.iterdir() if path.name.startswith(("search", "rates"))]
    with load(report.output) as model:
        assert np.isfinite(model.prefill([1, 2, 3])).all()


def test_an_original_larger_than_memory_is_streamed(promised: Callable[..., CompileReport], monkeypatch: pytest.MonkeyPatch) -> None:
    held = _receipt(promised(bits=7.0).output).measured
    monkeypatch.setattr("mixplan.compiler.search.prepare._IN_MEMORY", 0)
    streamed = _receipt(promised(bits=7.0).output).measured
    assert streamed == pytest.approx(held, rel=1e-3)


def test_the_same_bytes_again(promised: Callable[..., CompileReport], tmp_path: Path) -> None:
    first = promised(max_loss="5%", scaling="awq", output=tmp_path / "a.plan")
    second = promised(max_loss="5%", scaling="awq", output=tmp_path / "b.plan")
    assert first.digest == second.digest and first.matches["scale_inputs"] == second.matches["scale_inputs"]
    for path in (tmp_path / "a.plan").rglob("*"):
        if path.is_file():
            assert path.read_bytes() == (tmp_path / "b.plan" / path.relative_to(tmp_path / "a.plan")).read_bytes()


def test_size_is_that_of_the_directory(promised: Callable[..., CompileReport]) -> None:
    full = promised(bits=32).plan_bytes
    report = promised(max_size=int(full * 0.9))
    assert sum(path.stat().st_size for path in report.output.rglob("*") if path.is_file()) <= full * 0.9


def test_two_promises(promised: Callable[..., CompileReport]) -> None:
    report = promised(max_kld=0.05, bits=15)
    assert report.promise is not None and set(report.promise.achieved) == {"kld", "bits"}
    with pytest.raises(PromiseError, match="--bits 5 is not kept") as caught:
        promised(max_kld=0.0005, bits=5)
    assert "expect the mean KL divergence of about" in str(caught.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"bits": 3}, r"--bits 3 cannot be kept: these candidates give \d\.\d+ bits at least"),
        ({"max_kld": 1e-9, "candidates": ("W4A16:g32", "W8A16")}, "--max-kld 1e-09 is not kept"),
        ({"max_size": "1kB"}, "--max-size 1kB cannot be kept"),
    ],
)
def test_a_promise_that_cannot_be_kept_leaves_nothing(
    promised: Callable[..., CompileReport], tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(PromiseError, match=message) as caught:
        promised(**options)
    assert caught.value.exit_code == 2 and caught.value.hint
    assert list(tmp_path.iterdir()) == []


def test_latency(promised: Callable[..., CompileReport], tiny_llama_dir: Path, text: Path, tmp_path: Path) -> None:
    """On the machine's own kernels."""
    report = promised(max_latency="50ms", batch=2, context=32, targets=("cpu",), isa=("native",))
    assert report.promise is not None and 0 < report.promise.achieved["latency"] <= 0.05
    with pytest.raises(PromiseError, match=r"--max-latency 0.1us is not kept"):
        promised(max_latency="0.1us", context=32, targets=("cpu",), isa=("native",))
    with pytest.raises(OptionError, match="context is 5000; the model takes"):
        promised(max_latency="1ms", context=5000)


def test_token_ids_for_a_model_without_text(tmp_path: Path) -> None:
    ids = np.random.default_rng(0).integers(0, 256, 800).tolist()
    given: dict[str, Any] = {"output": tmp_path / "x.plan", "targets": ("reference",), "candidates": _MENU, "bits": 9}
    report = compile_plan(tiny_model("gpt2"), text=ids, eval_text=ids[:100], **given)
    assert report.effective_bits <= 9 and _receipt(report.output).text["held_out"] == "1 windows of 100 tokens"
    for text, message in ((ids[:20], "held-out half"), ([1, 999], "allowed are 0 to 255"), (["a"], "neither a file nor a list")):
        with pytest.raises(OptionError, match=message):
            compile_plan(tiny_model("gpt2"), text=text, force=True, **given)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--bits", "4.5"], "needs a text to measure on"),
        (["--bits", "many", "--text", "TEXT"], "it is written as 4.5"),
        (["--max-loss", "3", "--text", "TEXT"], "such as 1% or 0.01"),
        (["--bits", "4", "--scheme", "W4A8", "--text", "TEXT"], "scheme W4A8 and a promise were given"),
        (["--candidates", "W4A16"], "nothing is promised"),
        (["--bits", "4", "--text", "TEXT", "--candidates", "W9A16"], "'W9A16' is not known"),
        (["--bits", "8", "--text", "TEXT", "--pin", "re:nothing=W8A16"], "matches no layer"),
        (["--bits", "8", "--text", "TEXT", "--exclude", "nothing"], "matches no layer"),
        (["--bits", "3", "--text", "TEXT", "--candidates", "W8A16,BF16"], "cannot be kept"),
    ],
)
def test_bad_options_end_with_2(options: list[str], message: str, tiny_llama_dir: Path, text: Path, tmp_path: Path) -> None:
    words = [str(text) if word == "TEXT" else word for word in options]
    result = CliRunner().invoke(main, ["compile", str(tiny_llama_dir), "-o", str(tmp_path / "x.plan"), "--target", "reference", *words])
    assert result.exit_code == 2 and message in result.stderr
    assert not (tmp_path / "x.plan").exists()


def test_the_command(tiny_llama_dir: Path, text: Path, tmp_path: Path) -> None:
    words = ["compile", str(tiny_llama_dir), "-o", str(tmp_path / "x.plan"), "--target", "reference", "--text", str(text)]
    result = CliRunner().invoke(main, [*words, "--max-kld", "0.05", "--candidates", "W4A16:g32,asym,W8A16,BF16", "--json"])
    assert result.exit_code == 0, result.stderr
    promise = json.loads(result.stdout)["promise"]
    assert promise["achieved"]["kld"] <= promise["asked"]["kld"] == 0.05 and promise["attempts"] >= 1
    shown = CliRunner().invoke(main, [*words, "--bits", "9", "--candidates", "W4A16:g32,W8A16", "--force"])
    assert "of the promise" in shown.stdout and "plans built" in shown.stdout
