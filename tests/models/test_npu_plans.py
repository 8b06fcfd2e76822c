"""Whole models compiled for the NPU, run by onnxruntime's CPU provider, against the reference device."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mixplan.compiler.frontends.tiny import tiny_model
from mixplan.compiler.pipeline import compile as compile_plan
from mixplan.runtime import load
from mixplan.runtime.errors import MixplanError, OptionError, ProviderError
from mixplan.runtime.model import Model
from mixplan.runtime.plan_io import read_plan

TEXT = np.random.default_rng(7).integers(3, 250, 400).tolist()


def _steps(model: Model) -> np.ndarray:
    """A prefill, a ragged step of two sequences, decodes, a step back in one of them, and one without logits."""
    ids = np.random.default_rng(1).integers(3, 250, 64)
    rows = [model.step(ids[:23], np.arange(23), np.zeros(23, int), "all")]
    rows.append(model.step(ids[23:30], [0, 1, 2, 3, 4, 23, 24], [7, 7, 7, 7, 7, 0, 0], "all"))
    rows += [model.step(ids[30 + i : 32 + i], [5 + i, 25 + i], [7, 0], "last") for i in range(3)]
    model.step(ids[40:42], [20, 21], [0, 0], "none")
    rows.append(model.step(ids[42:43], [22], [0], "last"))
    return np.concatenate(rows)


def _compile(path: Path, model_type: str, scheme: str, **options: Any) -> Path:
    compile_plan(tiny_model(model_type), output=path, scheme=scheme, targets=("npu",), **options)
    return path


def _both(plan: Path) -> tuple[np.ndarray, np.ndarray]:
    results = []
    for device in ("auto", "reference"):
        with load(plan, device=device, max_sequences=4, kv_tokens=512) as model:
            results.append(_steps(model))
            if device == "auto":
                assert {p.device for p in model.placement} == {"npu"}
                assert all(set(where.values()) == {"CPUExecutionProvider"} for where in model.node_providers().values())
    return results[0], results[1]


# llama: rotary embedding, grouped queries. gemma2: softcap, window. bloom: ALiBi. The products are f32 on both sides, and sums differ in
# their order; keys in f16 may fall to the other side of a rounding, a relative 5e-4 of some keys.
@pytest.mark.parametrize(
    ("model_type", "scheme", "tolerance"),
    [
        ("llama", "FP32", 2e-5),
        ("gemma2", "W4A16", 5e-3),
        ("bloom", "W8A16:asym", 5e-3),
        ("qwen2", "W4A16:min", 5e-3),
        ("mixtral", "W4A16", 5e-3),
        ("qwen2_moe", "W8A16", 5e-3),
    ],
)
def test_logits_are_those_of_the_reference(tmp_path: Path, model_type: str, scheme: str, tolerance: float) -> None:
    got, wanted = _both(_compile(tmp_path / "m.plan", model_type, scheme))
    assert np.abs(got - wanted).max() < tolerance * max(1.0, np.abs(wanted).max())


def test_static_activations(tmp_path: Path) -> None:
    """16 bits are as good as exact, so what is left is the reference's own rounding to 8 bits; with 8 bits it is twice that and more."""
    plans = {kind: _compile(tmp_path / kind, "qwen2", "W8A8", text=TEXT, activation_type=kind) for kind in ("uint16", "uint8")}
    errors = {}
    for kind, plan in plans.items():
        got, wanted = _both(plan)
        errors[kind] = float(np.sqrt(np.mean((got - wanted) ** 2)) / wanted.std())
    assert errors["uint16"] < 0.06
    assert errors["uint16"] < errors["uint8"] < 0.4


@pytest.mark.parametrize(
    ("provider", "kind", "op"),
    [
        ("qnn", "uint8", "QLinearMatMul"),
        ("vitisai", "int8", "QLinearMatMul"),
        ("cann", "int8", "MatMulIntegerToFloat"),
        ("openvino", "uint8", "MatMulIntegerToFloat"),
    ],
)
def test_quantized_models_of_every_provider(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, provider: str, kind: str, op: str) -> None:
    """Their QDQ pairs stand where onnxruntime looks for them: of every product it makes one of integers."""
    import onnx
    import onnxruntime as ort

    plan, optimized = tmp_path / "m.plan", tmp_path / "optimized.onnx"
    report = compile_plan(
        tiny_model("llama"), output=plan, scheme="W8A8", targets=("npu",), provider=provider, activation_type=kind, text=TEXT
    )
    assert not report.refused and not [text for text in report.warnings if "stand in the model" in text]
    make = ort.InferenceSession

    def written(model: bytes, options: Any, **more: Any) -> Any:
        options.optimized_model_filepath = str(optimized)
        return make(model, options, **more)

    monkeypatch.setattr(ort, "InferenceSession", written)
    ids = np.random.default_rng(1).integers(3, 250, 40)
    step = (ids, np.arange(40), np.zeros(40, int), "all")
    with load(plan, allow_cpu_fallback=True, kv_tokens=64) as model, load(plan, device="reference", kv_tokens=64) as other:
        got, wanted = model.step(*step), other.step(*step)
    ops = [node.op_type for node in onnx.load(optimized, load_external_data=False).graph.node]
    assert ops.count(op) == 9 and ops.count("MatMul") == 2  # attention's own are floats
    # The reference rounds by itself, row by row. Scales that are powers of two, for results too, lose up to a bit more.
    assert np.sqrt(np.mean((got - wanted) ** 2)) < 0.2 * wanted.std()


def test_what_a_provider_takes_no_codes_of_stands_as_numbers(tmp_path: Path) -> None:
    plan = tmp_path / "m.plan"
    report = compile_plan(tiny_model("llama"), output=plan, scheme="W4A16", targets=("npu",), provider="vitisai")
    (told,) = (text for text in report.warnings if "float32" in text)
    assert "8 weights of i4 in groups of 32 stand in the model for vitisai as float32" in told and "quark.docs.amd.com" in told
    with read_plan(plan) as loaded:
        assert any("as float32" in text for text in loaded.plan.rejections)
    step = ([5, 6, 7], [0, 1, 2], [0, 0, 0])
    with load(plan, allow_cpu_fallback=True, kv_tokens=64) as model, load(plan, device="reference", kv_tokens=64) as other:
        np.testing.assert_allclose(model.step(*step), other.step(*step), 1e-3, 1e-3)


def test_a8_needs_a_text_and_a_promise_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="static") as caught:
        _compile(tmp_path / "m.plan", "llama", "W4A8")
    assert "--text" in str(caught.value)
    with pytest.raises(OptionError, match="promise"):
        compile_plan(tiny_model("llama"), output=tmp_path / "m.plan", targets=("npu",), bits=4.5, text=TEXT)
    assert not (tmp_path / "m.plan").exists()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"targets": ("cpu",), "provider": "qnn"}, "for the NPU"),
        ({"targets": ("npu",), "provider": "tpu"}, "no NPU provider 'tpu'"),
        ({"targets": ("npu",), "provider": "cann", "activation_type": "uint8"}, "allowed: int8"),
        ({"targets": ("npu",), "provider": "qnn", "activation_type": "int8"}, "uint16, uint8"),
    ],
)
def test_wrong_choices_are_refused_before_anything_is_opened(tmp_path: Path, options: dict[str, Any], words: str) -> None:
    with pytest.raises(OptionError, match=words):
        compile_plan("no such checkpoint", output=tmp_path / "m.plan", scheme="W8A16", **options)


def test_a_provider_that_is_not_here(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    plan = _compile(tmp_path / "m.plan", "llama", "FP32", provider="openvino")
    with pytest.raises(ProviderError, match="OpenVINOExecutionProvider") as caught:
        load(plan)
    assert "onnxruntime-openvino" in str(caught.value) and "--allow-cpu-fallback" in str(caught.value)
    with load(plan, allow_cpu_fallback=True, kv_tokens=64) as model, load(plan, device="reference", kv_tokens=64) as other:
        step = ([5, 6, 7], [0, 1, 2], [0, 0, 0])
        np.testing.assert_allclose(model.step(*step), other.step(*step), 1e-4, 1e-4)
        assert model.placement[0].isa == "onnxruntime CPUExecutionProvider"
        metrics = next(iter(model.metrics().regions.values()))
    assert metrics["onnx_nodes_CPUExecutionProvider"] > 100 and metrics["padding_tokens"] == 13


def test_an_untrusted_plan_is_not_given_to_onnxruntime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = _compile(tmp_path / "m.plan", "llama", "FP32")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "empty"))
    with pytest.raises(MixplanError, match="not trusted"):
        load(plan)
    load(plan, trust=True).close()
