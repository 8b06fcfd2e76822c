"""`mixplan verify PLAN MODEL`: node by node and by logits against torch."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mixplan.compiler.pipeline import compile as compile_plan
from mixplan.compiler.verify import verify_plan
from mixplan.runtime.errors import PlanError, RequestError


def test_an_fp32_plan_agrees_with_its_model(tiny_llama_dir: Path, tmp_path: Path) -> None:
    compile_plan(tiny_llama_dir, output=tmp_path / "out.plan", scheme="FP32", targets=("reference",), max_step_tokens=16)
    report = verify_plan(tmp_path / "out.plan", tiny_llama_dir, tokens=40)
    assert report.logits.tokens == 40
    assert report.logits.relative < 1e-5
    assert report.logits.same_top == 1
    assert report.logits.kl < 1e-8
    assert report.logits.perplexity == pytest.approx(report.logits.model_perplexity, rel=1e-4)
    assert report.compared > report.total // 2
    assert all(node.snr > 90 for node in report.nodes)
    assert {"attention", "gated_linear", "linear", "rms_norm"} <= {node.op for node in report.nodes}
    assert json.loads(json.dumps(report.to_dict()))["compared"] == report.compared


def test_a_quantized_plan_shows_its_noise(tiny_llama_dir: Path, tmp_path: Path) -> None:
    compile_plan(tiny_llama_dir, output=tmp_path / "out.plan", scheme="W4A8", targets=("reference",))
    report = verify_plan(tmp_path / "out.plan", tiny_llama_dir, text="A record with a gap in it is half a record.")
    assert report.logits.kl > 1e-3
    noisy = [node.snr for node in report.nodes if node.op in ("linear_q", "gated_linear_q", "attention")]
    assert noisy and max(noisy) < 40
    table = report.render(_Table)
    assert len(table) == 2 and all(rows.rows for rows in table)


def test_what_cannot_be_verified(tiny_llama_dir: Path, tmp_path: Path) -> None:
    compile_plan(tiny_llama_dir, output=tmp_path / "out.plan", scheme="FP32", targets=("reference",))
    with pytest.raises(RequestError, match="at least 2 are needed"):
        verify_plan(tmp_path / "out.plan", tiny_llama_dir, text="a")
    with pytest.raises(PlanError, match="no plan at"):
        verify_plan(tmp_path / "none.plan", tiny_llama_dir)


class _Table:
    def __init__(self, title: str, *columns: str) -> None:
        self.columns = columns
        self.rows: list[tuple[str, ...]] = []

    def add_row(self, *cells: str) -> None:
        assert len(cells) == len(self.columns)
        self.rows.append(cells)
