"""Trains a small model of a given shape on a text, so that other architectures than SmolLM2 have real structure to quantize.

    python -m benchmarks.train_small qwen2 TEXT OUT [--steps 400] [--seed 0]

A byte-level BPE tokenizer of 2,048 tokens is trained on the text first. Two cores take some minutes. OUT becomes a Hugging Face directory.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoModelForCausalLM, Phi3Config, PreTrainedTokenizerFast, Qwen2Config

__all__ = ["SHAPES", "main"]

VOCABULARY, CONTEXT, BATCH = 2048, 256, 16
_SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 256,
    "intermediate_size": 704,
    "num_hidden_layers": 6,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "max_position_embeddings": 2048,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "pad_token_id": 0,
}
SHAPES: dict[str, Any] = {
    "qwen2": lambda: Qwen2Config(**_SIZES, tie_word_embeddings=True),
    "phi3": lambda: Phi3Config(**_SIZES, tie_word_embeddings=False, original_max_position_embeddings=2048),
}


def train_tokenizer(text: Path) -> Tokenizer:
    """Byte-level BPE; token 0 is <|endoftext|>."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train([str(text)], trainers.BpeTrainer(vocab_size=VOCABULARY, special_tokens=["<|endoftext|>"], initial_alphabet=alphabet))
    return tokenizer


def train(shape: str, ids: torch.Tensor, steps: int, seed: int) -> Any:
    """The trained model. AdamW with a cosine schedule, random windows of the ids."""
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(SHAPES[shape]()).float().train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.95), weight_decay=0.1)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, steps, pct_start=0.1)
    starts = torch.Generator().manual_seed(seed)
    for step in range(steps):
        at = torch.randint(0, len(ids) - CONTEXT - 1, (BATCH,), generator=starts)
        window = torch.stack([ids[i : i + CONTEXT] for i in at.tolist()])
        loss = model(input_ids=window, labels=window).loss
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 50 == 0 or step + 1 == steps:
            sys.stderr.write(f"step {step}: {loss.item():.3f} nats\n")
    return model.eval()


def main(arguments: list[str] | None = None) -> int:
    """0 when the checkpoint is written."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.train_small", description="Train a small model on a text.")
    parser.add_argument("shape", choices=sorted(SHAPES))
    parser.add_argument("text", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(arguments)
    tokenizer = train_tokenizer(given.text)
    ids = torch.tensor(tokenizer.encode(given.text.read_text(encoding="utf-8")).ids)
    sys.stderr.write(f"{len(ids)} tokens\n")
    model = train(given.shape, ids, given.steps, given.seed)
    model.save_pretrained(given.out)
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|endoftext|>", bos_token="<|endoftext|>").save_pretrained(given.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
