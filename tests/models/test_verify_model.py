"""`mixplan verify PLAN MODEL`: node by node and by logits against torch."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from mixplan.cli import main
from mixplan.compiler.frontends.tiny import tiny_model
from mixplan.compiler.pipeline import compile as compile_plan
from mixplan.compiler.verify import verify_plan
from mixplan.compiler.verify_report import LogitReport, NodeReport, failures
from mixplan.runtime.errors import PlanError, RequestError


@pytest.fixture(scope="module")
def fp32_plan(tiny_llama_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    plan = tmp_path_factory.mktemp("verify") / "fp32.plan"
    compile_plan(tiny_llama_dir, output=plan, scheme="FP32", targets=("reference",), max_step_tokens=16)
    return plan


@pytest.fixture(scope="module")
def w4a8_plan(tiny_llama_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    plan = tmp_path_factory.mktemp("verify") / "w4a8.plan"
    compile_plan(tiny_llama_dir, output=plan, scheme="W4A8", targets=("reference",))
    return plan


def _verify(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["verify", *map(str, arguments)])


def test_an_fp32_plan_agrees_with_its_model(fp32_plan: Path, tiny_llama_dir: Path) -> None:
    report = verify_plan(fp32_plan, tiny_llama_dir, tokens=40)
    assert report.logits.tokens == 40
    assert report.logits.relative < 1e-5
    assert report.logits.same_top == 1
    assert report.logits.kl < 1e-8
    assert report.logits.perplexity == pytest.approx(report.logits.model_perplexity, rel=1e-4)
    assert all(node.snr > 90 for node in report.nodes)
    assert {"attention", "gated_linear", "linear", "rms_norm"} <= {node.op for node in report.nodes}
    assert report.warnings == () and report.passed and report.max_diff == 2e-4


def test_every_node_is_compared_or_counted_with_its_reason(w4a8_plan: Path, tiny_llama_dir: Path) -> None:
    report = verify_plan(w4a8_plan, tiny_llama_dir, tokens=20)
    coverage = report.coverage
    assert coverage.compared == len(report.nodes) > coverage.total // 3
    assert coverage.compared + sum(coverage.skipped.values()) == coverage.total
    assert coverage.skipped["made by fusion, without a counterpart"] > 0
    assert 0 < coverage.fused < coverage.captured
    assert [node.snr for node in report.nodes] == sorted(node.snr for node in report.nodes)
    data = json.loads(json.dumps(report.to_dict(), allow_nan=False))
    assert data["coverage"]["compared"] == coverage.compared and data["passed"] is True


def test_a_quantized_plan_shows_its_noise(w4a8_plan: Path, tiny_llama_dir: Path) -> None:
    report = verify_plan(w4a8_plan, tiny_llama_dir, text="A record with a gap in it is half a record.")
    assert report.logits.kl > 1e-3
    noisy = [node.snr for node in report.nodes if node.op in ("linear_q", "gated_linear_q", "attention")]
    assert noisy and max(noisy) < 40
    assert report.max_diff is None and report.passed
    logits, worst, summary, verdict = report.render(_Table)
    assert ("computed by", report.placement[0]) in logits.rows and len(worst.rows) == 10
    assert "nodes were compared; the others: " in summary and verdict.startswith("no limit was set")


def test_limits_and_exit_codes(w4a8_plan: Path, fp32_plan: Path, tiny_llama_dir: Path) -> None:
    done = _verify(w4a8_plan, tiny_llama_dir, "--tokens", 8, "--max-diff", "1e-4", "--min-snr", 60)
    assert done.exit_code == 1, done.output
    assert "failed: the relative difference of the logits is" in done.stdout and "allowed is 0.0001" in done.stdout
    assert "nodes have an SNR below 60 dB; the lowest is" in done.stdout
    done = _verify(w4a8_plan, tiny_llama_dir, "--tokens", 8, "--max-diff", 100, "--min-snr", -100)
    assert done.exit_code == 0, done.output
    assert "passed: relative difference of the logits at most 100 and SNR of every node at least -100 dB" in done.stdout
    done = _verify(fp32_plan, tiny_llama_dir, "--tokens", 8, "--max-diff", 0, "--json")
    assert done.exit_code == 1 and json.loads(done.stdout)["passed"] is False
    done = _verify(fp32_plan, "--min-snr", 3)
    assert done.exit_code == 2 and "need MODEL" in done.stderr


def test_another_checkpoint_is_a_warning(fp32_plan: Path, tiny_llama_dir: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(tiny_llama_dir, other)
    tiny_model("llama", seed=1, vocab_size=512, bos_token_id=0, eos_token_id=1, pad_token_id=1).save_pretrained(other)
    (other / "generation_config.json").unlink()
    report = verify_plan(fp32_plan, other, tokens=8)
    (warning,) = report.warnings
    assert "not the checkpoint that the plan was compiled from (tiny-llama)" in warning
    assert "other content: model.safetensors; not there: generation_config.json" in warning
    # Other weights give other logits, and that is what fails.
    assert not report.passed and "relative difference" in report.failures[0]


def test_a_model_in_memory_cannot_be_told_apart(fp32_plan: Path) -> None:
    model = tiny_model("llama", vocab_size=512, bos_token_id=0, eos_token_id=1, pad_token_id=1)
    report = verify_plan(fp32_plan, model, tokens=8)
    assert report.passed and "module in memory" in report.warnings[0]


def test_what_cannot_be_verified(fp32_plan: Path, tiny_llama_dir: Path, tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="at least 2 are needed"):
        verify_plan(fp32_plan, tiny_llama_dir, text="a")
    with pytest.raises(PlanError, match="no plan at"):
        verify_plan(tmp_path / "none.plan", tiny_llama_dir)
    with pytest.raises(RequestError, match=r"vocabulary of 512, the model one of 256.*\n.*tiny-llama"):
        verify_plan(fp32_plan, tiny_model("llama"))


@pytest.mark.parametrize(("max_diff", "min_snr"), [(None, None), (1e9, -1e9)])
def test_values_that_are_not_finite_always_fail(max_diff: float | None, min_snr: float | None) -> None:
    """NaN is smaller than no limit and larger than none; it must not slip through."""
    logits = LogitReport(2, np.nan, np.nan, 0.5, np.nan, np.nan, 1.0)
    node = NodeReport("layer", "linear", "linear", np.inf, -np.inf)
    found = failures(logits, (node,), max_diff, min_snr)
    assert "1 nodes give values that are not finite" in found[0] and "logits that are not finite" in found[1]


class _Table:
    def __init__(self, title: str, *columns: str) -> None:
        self.columns = columns
        self.rows: list[tuple[str, ...]] = []

    def add_row(self, *cells: str) -> None:
        assert len(cells) == len(self.columns)
        self.rows.append(cells)
