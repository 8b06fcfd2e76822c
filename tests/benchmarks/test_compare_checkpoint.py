"""Turning the residual stream leaves the function as it is, and no weight on a quantization grid."""

from __future__ import annotations

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from benchmarks.compare.convert.checkpoint import plane_rotations, turn_residual_stream
from benchmarks.compare.convert.llama import write_gguf


def _tiny():
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        tie_word_embeddings=True,
    )
    model = LlamaForCausalLM(config).eval()
    for name, parameter in model.named_parameters():
        parameter.data = (1 + torch.rand_like(parameter)) if "norm" in name else torch.round(parameter.data * 100) / 100
    return model


def test_rotations_are_orthogonal_and_repeatable():
    matrix = plane_rotations(33, 7)
    assert torch.allclose(matrix @ matrix.T, torch.eye(33, dtype=torch.float64), atol=1e-12)
    assert torch.equal(matrix, plane_rotations(33, 7))
    assert not torch.equal(matrix, plane_rotations(33, 8))


def test_the_turned_model_is_the_same_function():
    model, ids = _tiny(), torch.arange(1, 21)[None]
    with torch.no_grad():
        before = model(ids).logits
        turn_residual_stream(model, 0)
        after = model(ids).logits
    assert torch.allclose(before, after, atol=1e-4)
    assert not model.config.tie_word_embeddings
    weight = model.model.layers[0].mlp.gate_proj.weight
    assert torch.unique(torch.round(weight * 1e5)).numel() > 500  # it was on a grid of about 10 values


def test_the_gguf_holds_every_tensor_once(tmp_path):
    from gguf import GGUFReader

    _tiny().save_pretrained(tmp_path / "hf")
    write_gguf(tmp_path / "hf", tmp_path / "F32.gguf")
    reader = GGUFReader(tmp_path / "F32.gguf")
    names = [tensor.name for tensor in reader.tensors]
    assert len(names) == len(set(names)) == 2 + 2 * 9
    assert "output.weight" not in names  # tied
    assert list(next(t for t in reader.tensors if t.name == "blk.1.attn_k.weight").shape) == [32, 16]
