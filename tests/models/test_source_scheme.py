"""`--scheme source`: a plan of a GGUF file holds the file's own numbers, whatever the architecture does to rows and whatever it merges."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Q

import mixplan
from mixplan.compiler.compressed_tensors.layers import codes_of, plan_layers
from mixplan.compiler.frontends import open_checkpoint
from mixplan.compiler.frontends.tiny import tiny_model
from mixplan.compiler.report import CompileReport
from mixplan.runtime import load
from mixplan.runtime.errors import OptionError
from mixplan.runtime.packing import dequantize
from mixplan.runtime.plan_io import read_plan

_BASE = {
    "context_length": 128,
    "embedding_length": 64,
    "block_count": 2,
    "feed_forward_length": 96,
    "attention.head_count": 4,
    "attention.head_count_kv": 2,
    "attention.layer_norm_rms_epsilon": 1e-5,
    "attention.layer_norm_epsilon": 1e-5,
    "rope.freq_base": 10000.0,
    "rope.dimension_count": 16,
    "vocab_size": 320,
}
_VECTOR = {"attn_norm.weight": (64,), "ffn_norm.weight": (64,), "output_norm.weight": (64,)}
_HEADS = {"attn_q.weight": (64, 64), "attn_k.weight": (32, 64), "attn_v.weight": (32, 64), "attn_output.weight": (64, 64)}
_MLP = {"ffn_gate.weight": (96, 64), "ffn_up.weight": (96, 64), "ffn_down.weight": (64, 96)}
_LLAMA = {"token_embd.weight": (320, 64), "output.weight": (320, 64), **_VECTOR, **_HEADS, **_MLP}
_GPT2 = {
    "token_embd.weight": (320, 64),
    "position_embd.weight": (128, 64),
    **_VECTOR,
    **{name.replace("weight", "bias"): shape for name, shape in _VECTOR.items()},
    "attn_qkv.weight": (192, 64),
    "attn_qkv.bias": (192,),
    "attn_output.weight": (64, 64),
    "attn_output.bias": (64,),
    "ffn_up.weight": (256, 64),
    "ffn_up.bias": (256,),
    "ffn_down.weight": (64, 256),
    "ffn_down.bias": (64,),
}
_PHI3 = {
    "token_embd.weight": (320, 64),
    "output.weight": (320, 64),
    **_VECTOR,
    "attn_qkv.weight": (128, 64),
    "attn_output.weight": (64, 64),
    "ffn_up.weight": (192, 64),
    "ffn_down.weight": (64, 96),
}
_MOE = {
    **{name: shape for name, shape in _LLAMA.items() if name not in _MLP},
    "attn_q_norm.weight": (16,),
    "attn_k_norm.weight": (16,),
    "ffn_gate_inp.weight": (4, 64),
    "ffn_gate_exps.weight": (4, 32, 64),
    "ffn_up_exps.weight": (4, 32, 64),
    "ffn_down_exps.weight": (4, 64, 32),
}
_MODELS: dict[str, tuple[dict[str, Any], dict[str, tuple[int, ...]]]] = {
    "llama": ({}, _LLAMA),
    "gemma2": (
        {"attention.key_length": 16, "attention.sliding_window": 64},
        {
            **{name: shape for name, shape in _LLAMA.items() if name != "output.weight"},
            "post_attention_norm.weight": (64,),
            "post_ffw_norm.weight": (64,),
        },
    ),
    "gpt2": ({}, _GPT2),
    "phi3": ({"attention.sliding_window": 128}, _PHI3),
    "qwen3moe": ({"attention.key_length": 16, "expert_count": 4, "expert_used_count": 2, "expert_feed_forward_length": 32}, _MOE),
}
_IDS = [3, 17, 101, 42, 7, 9, 250, 33]


def _write(path: Path, model: str, kinds: dict[str, Q], default: Q = Q.Q4_1) -> Path:
    """A tiny GGUF file. kinds: types of matrices by their names' beginning, without the block's number."""
    metadata, tensors = _MODELS[model]
    rng = np.random.default_rng(0)
    writer = gguf.GGUFWriter(path, model)
    for key, value in {**_BASE, **metadata}.items():
        (writer.add_uint32 if isinstance(value, int) else writer.add_float32)(f"{model}.{key}", value)
    for name, shape in tensors.items():
        whole = name.partition(".")[0] in ("token_embd", "output_norm", "output", "position_embd")
        kind = next((kind for start, kind in kinds.items() if name.startswith(start)), default) if len(shape) > 1 else Q.F32
        for full in [name] if whole else [f"blk.{layer}.{name}" for layer in range(2)]:
            array = rng.standard_normal(shape, np.float32) * 0.3
            if kind in (Q.Q4_K, Q.Q6_K):
                writer.add_tensor(full, _random_blocks(kind, shape), raw_dtype=kind)
            else:
                writer.add_tensor(full, array if kind is Q.F32 else gguf.quantize(array, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _random_blocks(kind: Q, shape: tuple[int, ...]) -> np.ndarray:
    block, size = gguf.GGML_QUANT_SIZES[kind]
    rng = np.random.default_rng(1)
    raw = rng.integers(0, 256, (*shape[:-1], shape[-1] // block, size), np.uint8)
    for at in (0, 2) if kind is Q.Q4_K else (size - 2,):
        halves = (rng.random(raw.shape[:-1]) * 1e-3).astype(np.float16)
        raw[..., at : at + 2] = halves[..., None].view(np.uint8)
    return raw.reshape(*shape[:-1], -1)


def _compile(file: Path, output: Path, scheme: str = "source", *overrides: str) -> CompileReport:
    return mixplan.compile(
        file, output=output, scheme=scheme, overrides=overrides, targets=("reference",), max_step_tokens=32, kv_dtype="f32", force=True
    )


def _logits(plan: Path) -> np.ndarray:
    with load(plan, device="reference") as model:
        return model.step(_IDS, list(range(len(_IDS))), [0] * len(_IDS), "all")


def _assert_same_numbers(file: Path, plan: Path) -> None:
    """Of every parameter whose rows can be found in the plan."""
    captured = open_checkpoint(file).capture()
    seen = 0
    with read_plan(plan) as loaded:
        for layer in plan_layers(loaded, captured):
            if layer.tangled or not layer.format.quantized:
                continue
            held = dequantize(layer.format, codes_of(loaded, layer))
            np.testing.assert_array_equal(held, captured.weights.read(layer.parameter), err_msg=layer.parameter)
            seen += 1
    assert seen


def _schemes(plan: Path) -> dict[str, str]:
    with read_plan(plan) as loaded:
        return {decision.layer: decision.scheme for decision in loaded.plan.decisions}


@pytest.mark.parametrize(
    ("model", "kinds"),
    [
        ("llama", {}),
        ("llama", {"attn_q": Q.Q4_0, "attn_k": Q.Q5_0, "attn_v": Q.Q8_0, "ffn_gate": Q.Q5_1, "output.": Q.Q8_0, "ffn_down": Q.F16}),
        ("gemma2", {"token_embd": Q.Q8_0, "ffn": Q.Q5_0}),
        ("gpt2", {}),
        ("phi3", {"attn_qkv": Q.Q5_0}),
        ("qwen3moe", {"ffn_gate_inp": Q.F32}),
        ("qwen3moe", {"ffn_gate_inp": Q.F32, "ffn_gate_exps": Q.Q5_0, "ffn_down_exps": Q.Q8_0}),
    ],
    ids=["llama", "llama mixed", "gemma2", "gpt2", "phi3", "experts", "mixed experts"],
)
def test_the_plan_computes_what_the_file_says(tmp_path: Path, model: str, kinds: dict[str, Q]) -> None:
    file = _write(tmp_path / "x.gguf", model, kinds)
    report = _compile(file, tmp_path / "a.plan")
    assert not [note for note in report.warnings if "rounded" in note]
    if model != "gpt2":  # its attention is turned
        _assert_same_numbers(file, tmp_path / "a.plan")
    _compile(file, tmp_path / "b.plan", "FP32")
    ours, exact = _logits(tmp_path / "a.plan"), _logits(tmp_path / "b.plan")
    np.testing.assert_allclose(ours, exact, atol=2e-6 * float(np.abs(exact).max()), rtol=0)


def test_effective_bits_are_the_files(tmp_path: Path) -> None:
    kinds = {"token_embd": Q.Q8_0, "attn_k": Q.Q5_1, "attn_v": Q.Q5_0, "ffn_up": Q.BF16}
    file = _write(tmp_path / "x.gguf", "llama", kinds)
    report = _compile(file, tmp_path / "a.plan")
    tensors = gguf.GGUFReader(file).tensors
    frequencies = 4 * 8  # the plan's own
    bits = 8 * (sum(int(tensor.n_bytes) for tensor in tensors) + frequencies) / sum(int(tensor.n_elements) for tensor in tensors)
    assert report.effective_bits == pytest.approx(bits, abs=1e-9)
    assert report.requested_bits == pytest.approx(bits, abs=1e-9)
    assert report.name == "x-source"


def test_layers_of_different_types_stay_apart(tmp_path: Path) -> None:
    report = _compile(_write(tmp_path / "x.gguf", "llama", {"attn_v": Q.Q8_0, "ffn_up": Q.Q4_0}), tmp_path / "a.plan")
    with read_plan(tmp_path / "a.plan") as loaded:
        plan = loaded.plan
    assert {
        decision.layer: (decision.scheme, decision.rule, decision.reason)
        for decision in plan.decisions
        if "layers.0.self" in decision.layer
    } == {
        "model.layers.0.self_attn.q_proj": ("W4A16:g32,min", "source", "Q4_1 in the file"),
        "model.layers.0.self_attn.k_proj": ("W4A16:g32,min", "source", "Q4_1 in the file"),
        "model.layers.0.self_attn.v_proj": ("W8A16:g32", "source", "Q8_0 in the file"),
        "model.layers.0.self_attn.o_proj": ("W4A16:g32,min", "source", "Q4_1 in the file"),
    }
    assert report.matches.get("merge_qkv") == 2 and "fuse_gated" not in report.matches
    assert any("different schemes" in text for text in plan.rejections)


def test_inputs_in_int8(tmp_path: Path) -> None:
    file = _write(tmp_path / "x.gguf", "llama", {"attn_o": Q.Q8_0, "ffn_down": Q.F32})
    report = _compile(file, tmp_path / "a.plan", "source:a8")
    _assert_same_numbers(file, tmp_path / "a.plan")
    schemes = _schemes(tmp_path / "a.plan")
    assert report.name == "x-source:A8"
    assert schemes["model.layers.1.self_attn.q_proj"] == "W4A8:g32,min"
    assert schemes["model.layers.1.self_attn.o_proj"] == "W8A8:g32"
    assert schemes["model.layers.1.mlp.down_proj"] == "FP32"
    with read_plan(tmp_path / "a.plan") as loaded:
        assert {"linear_q", "gated_linear_q", "linear"} <= {node.op for node in loaded.plan.nodes}


def test_overrides_come_first(tmp_path: Path) -> None:
    file = _write(tmp_path / "x.gguf", "llama", {})
    _compile(file, tmp_path / "a.plan", "source", "lm_head=W8A16", "re:layers[.]0[.]mlp=W6A16:g32,s8")
    schemes = _schemes(tmp_path / "a.plan")
    assert schemes["lm_head"] == "W8A16"
    assert schemes["model.layers.0.mlp.up_proj"] == "W6A16:g32,s8"
    assert schemes["model.layers.1.mlp.up_proj"] == "W4A16:g32,min"


def test_half_precision_is_bf16_where_that_loses_nothing(tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    metadata, tensors = _MODELS["llama"]
    writer = gguf.GGUFWriter(path, "llama")
    for key, value in {**_BASE, **metadata}.items():
        (writer.add_uint32 if isinstance(value, int) else writer.add_float32)(f"llama.{key}", value)
    for name, shape in tensors.items():
        for full in [name] if name.startswith(("token", "output")) else [f"blk.{i}.{name}" for i in range(2)]:
            rounded = np.round(np.random.default_rng(0).standard_normal(shape, np.float32) * 64) / 64
            values = rounded if "attn" in full else rounded + np.float32(2**-9)
            writer.add_tensor(full, values.astype(np.float16 if len(shape) > 1 else np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    _compile(path, tmp_path / "a.plan")
    schemes = _schemes(tmp_path / "a.plan")
    assert schemes["model.layers.0.self_attn.q_proj"] == "BF16"
    assert schemes["model.layers.0.mlp.up_proj"] == "FP32"


def test_k_blocks_are_kept_as_far_as_formats_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    metadata, tensors = _MODELS["llama"]
    wide = {**tensors, "ffn_down.weight": (64, 256), "ffn_gate.weight": (256, 64), "ffn_up.weight": (256, 64)}
    monkeypatch.setitem(_MODELS, "llama", ({**metadata, "feed_forward_length": 256}, wide))
    four = _write(tmp_path / "four.gguf", "llama", {"ffn_down": Q.Q4_K}, Q.Q8_0)
    report = _compile(four, tmp_path / "four.plan")
    (note,) = [text for text in report.warnings if "rounded" in text]
    assert note.startswith("Q4_K (model.layers.0.mlp.down_proj.weight, model.layers.1.mlp.down_proj.weight): codes are the file's")
    assert _schemes(tmp_path / "four.plan")["model.layers.0.mlp.down_proj"] == "W4A16:g32,min"
    _compile(four, tmp_path / "exact.plan", "FP32")
    exact = _logits(tmp_path / "exact.plan")
    assert np.abs(_logits(tmp_path / "four.plan") - exact).max() < 1e-3 * np.abs(exact).max()
    six = _write(tmp_path / "six.gguf", "llama", {"ffn_down": Q.Q6_K}, Q.Q8_0)
    report = _compile(six, tmp_path / "six.plan")
    (note,) = [text for text in report.warnings if "rounded" in text]
    assert "Q6_K" in note and "8 bits in groups of 32" in note
    assert _schemes(tmp_path / "six.plan")["model.layers.0.mlp.down_proj"] == "W8A16:g32"


def test_only_a_gguf_has_blocks(tmp_path: Path, tiny_llama_dir: Path) -> None:
    with pytest.raises(OptionError, match=r"tiny-llama is none(.|\n)*W4A16"):
        mixplan.compile(tiny_llama_dir, output=tmp_path / "a.plan", scheme="source", targets=("reference",))
    with pytest.raises(OptionError, match="blocks of a GGUF file"):
        mixplan.compile(tiny_model("llama").to(torch.float32), output=tmp_path / "a.plan", scheme="source", targets=("reference",))


@pytest.mark.parametrize(
    ("scheme", "overrides", "message"),
    [("source:g64", (), "allowed: A16, A8|allowed: a16, a8"), ("W4A16", ("lm_head=source",), "for a whole model")],
)
def test_spelling(tmp_path: Path, scheme: str, overrides: tuple[str, ...], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        mixplan.compile(tmp_path / "none.gguf", output=tmp_path / "a.plan", scheme=scheme, overrides=overrides)
