"""A plan as one ONNX model: checked, and run by onnxruntime alone, with the KV cache held by the caller."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from mixplan.compiler.frontends.tiny import tiny_model
from mixplan.compiler.onnx_export import export_onnx
from mixplan.compiler.pipeline import compile as compile_plan
from mixplan.runtime import load
from mixplan.runtime.errors import OutputError, UnsupportedError
from mixplan.targets.npu.lower.table import LOWERINGS

IDS = np.random.default_rng(4).integers(3, 250, 12)


class _Loop:
    """One sequence, as docs/reference/onnx-model.md tells a caller to run it."""

    def __init__(self, path: Path) -> None:
        options = ort.SessionOptions()
        options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", "1")
        self.session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        self.ports = {one.name: one for one in self.session.get_inputs()}
        self.past = {name: np.zeros((0, *one.shape[1:]), np.float32) for name, one in self.ports.items() if name.startswith("past_")}
        self.length = 0

    def __call__(self, ids: np.ndarray) -> np.ndarray:
        at = np.arange(self.length, self.length + len(ids))
        bias = np.where(np.arange(self.length + len(ids))[None] <= at[:, None], 0, -30000).astype(np.float32)
        given: dict[str, Any] = {
            "token_ids": ids[None],
            "position_ids": at[None],
            "logit_rows": np.arange(len(ids)),
            "attention_bias": bias,
            **self.past,
        }
        names = [one.name for one in self.session.get_outputs()]
        made = dict(zip(names, self.session.run(names, {k: v for k, v in given.items() if k in self.ports}), strict=True))
        for name, before in self.past.items():
            self.past[name] = np.concatenate([before, made[name.replace("past", "present")]])
        self.length += len(ids)
        logits: np.ndarray = made["logits"][0]
        return logits


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("plan") / "m.plan"
    compile_plan(tiny_model("qwen2"), output=path, scheme="W4A8", targets=("reference",), kv_dtype="f32")
    return path


@pytest.mark.parametrize("external", [False, True])
def test_logits_are_the_plans(plan: Path, tmp_path: Path, external: bool) -> None:
    report = export_onnx(plan, tmp_path / "out", external_above=100 if external else 1 << 30)
    assert report.external == external == (tmp_path / "out" / "model.onnx.data").exists()
    onnx.checker.check_model(str(tmp_path / "out" / "model.onnx"), full_check=True)
    loop = _Loop(tmp_path / "out" / "model.onnx")
    got = np.concatenate([loop(IDS[:7]), *(loop(IDS[i : i + 1]) for i in range(7, 12))])
    with load(plan, kv_tokens=64) as model:
        wanted = model.step(IDS, np.arange(12), np.zeros(12, int), "all")
    # The plan rounds activations to int8 row by row, and so does the model. A number halfway between two codes may go either way, and takes
    # others with it.
    assert np.sqrt(np.mean((got - wanted) ** 2)) < 0.02 * wanted.std()
    assert report.inputs["token_ids"] == "i64 [1, T]" and report.outputs["present_key_0"] == "f32 [T, 2, 16]"


@pytest.mark.parametrize(("model_type", "scheme", "kv"), [("deepseek_v2", "W3A16:nl", "k8v4"), ("mixtral", "W4A16:min", "i8")])
def test_experts_codebooks_minima_and_integer_keys(tmp_path: Path, model_type: str, scheme: str, kv: str) -> None:
    """Where formats are exact and sums differ in their order alone, a greedy choice is the same."""
    plan, module = tmp_path / "m.plan", tiny_model(model_type, sliding_window=None)
    compile_plan(module, output=plan, scheme=scheme, targets=("reference",), kv_dtype=kv, quantizer="round")
    export_onnx(plan, tmp_path / "out")
    loop = _Loop(tmp_path / "out" / "model.onnx")
    got = np.concatenate([loop(IDS[:7]), *(loop(IDS[i : i + 1]) for i in range(7, 12))])
    with load(plan, kv_tokens=64) as model:
        wanted = model.step(IDS, np.arange(12), np.zeros(12, int), "all")
    # A key halfway between two codes may go either way.
    assert np.sqrt(np.mean((got - wanted) ** 2)) < 0.01 * wanted.std()
    np.testing.assert_array_equal(got.argmax(-1), wanted.argmax(-1))


def test_a_directory_is_not_replaced_unless_asked(plan: Path, tmp_path: Path) -> None:
    export_onnx(plan, tmp_path / "out")
    with pytest.raises(OutputError):
        export_onnx(plan, tmp_path / "out")
    export_onnx(plan, tmp_path / "out", force=True)


def test_what_has_no_lowering_is_named(plan: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(LOWERINGS, "quantize_act")
    with pytest.raises(UnsupportedError, match=r"4 nodes .*, quantize_act_3 \(op 'quantize_act' has no ONNX lowering\)") as caught:
        export_onnx(plan, tmp_path / "out", provider="cann")
    assert "docs/reference/npu.md" in str(caught.value)
    assert not (tmp_path / "out").exists()
