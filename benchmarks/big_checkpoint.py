"""Write a random, sharded bf16 checkpoint of Llama shape, to see what compiling and running a large model costs.

    python benchmarks/big_checkpoint.py OUT_DIR [--size 8b|1b|tiny]

8b is Llama-3-8B's shape (16 GB on disk). Weights are normal with the usual initial spread, written shard by shard in little memory.
"""

from __future__ import annotations

import argparse
import json
import struct
from pathlib import Path

import numpy as np

from mixplan.runtime.dtypes import f32_to_bf16

SIZES = {
    "8b": {
        "vocab_size": 128256,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
    },
    "1b": {
        "vocab_size": 128256,
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
    },
    "tiny": {
        "vocab_size": 512,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
    },
}
SHARD_BYTES = 4 << 30


def tensor_shapes(config: dict[str, int]) -> dict[str, tuple[int, ...]]:
    """Every tensor's name and shape."""
    h, i = config["hidden_size"], config["intermediate_size"]
    kv = h // config["num_attention_heads"] * config["num_key_value_heads"]
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (config["vocab_size"], h)}
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        shapes |= {
            prefix + "input_layernorm.weight": (h,),
            prefix + "self_attn.q_proj.weight": (h, h),
            prefix + "self_attn.k_proj.weight": (kv, h),
            prefix + "self_attn.v_proj.weight": (kv, h),
            prefix + "self_attn.o_proj.weight": (h, h),
            prefix + "post_attention_layernorm.weight": (h,),
            prefix + "mlp.gate_proj.weight": (i, h),
            prefix + "mlp.up_proj.weight": (i, h),
            prefix + "mlp.down_proj.weight": (h, i),
        }
    return shapes | {"model.norm.weight": (h,), "lm_head.weight": (config["vocab_size"], h)}


def shards(shapes: dict[str, tuple[int, ...]]) -> list[list[str]]:
    """Names cut into shards of at most SHARD_BYTES."""
    out: list[list[str]] = [[]]
    size = 0
    for name, shape in shapes.items():
        nbytes = 2 * int(np.prod(shape))
        if size + nbytes > SHARD_BYTES and out[-1]:
            out.append([])
            size = 0
        out[-1].append(name)
        size += nbytes
    return out


def write_shard(path: Path, names: list[str], shapes: dict[str, tuple[int, ...]], rng: np.random.Generator) -> None:
    """One safetensors file, streamed by rows."""
    header, offset = {}, 0
    for name in names:
        nbytes = 2 * int(np.prod(shapes[name]))
        header[name] = {"dtype": "BF16", "shape": list(shapes[name]), "data_offsets": [offset, offset + nbytes]}
        offset += nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for name in names:
            if len(shapes[name]) == 1:
                file.write(f32_to_bf16(np.ones(shapes[name], np.float32)).tobytes())
                continue
            rows, columns = shapes[name]
            for start in range(0, rows, 4096):
                chunk = rng.standard_normal((min(4096, rows - start), columns), dtype=np.float32) * np.float32(0.02)
                file.write(f32_to_bf16(chunk).tobytes())


def write_tokenizer(folder: Path) -> None:
    """A byte-level tokenizer: every text has ids, whatever the vocabulary's size."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))


def main() -> None:
    """Parse the command line and write the checkpoint."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--size", choices=sorted(SIZES), default="8b")
    args = parser.parse_args()
    config = SIZES[args.size]
    args.out.mkdir(parents=True)
    shapes = tensor_shapes(config)
    groups = shards(shapes)
    rng = np.random.default_rng(0)
    weight_map = {}
    for number, names in enumerate(groups, 1):
        file = f"model-{number:05d}-of-{len(groups):05d}.safetensors"
        write_shard(args.out / file, names, shapes, rng)
        weight_map |= dict.fromkeys(names, file)
        print(file, flush=True)
    total = sum(2 * int(np.prod(s)) for s in shapes.values())
    (args.out / "model.safetensors.index.json").write_text(json.dumps({"metadata": {"total_size": total}, "weight_map": weight_map}))
    text = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "torch_dtype": "bfloat16",
        "rms_norm_eps": 1e-5,
        "rope_theta": 500000.0,
        "max_position_embeddings": 8192,
        "tie_word_embeddings": False,
        "hidden_act": "silu",
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    (args.out / "config.json").write_text(json.dumps(text | config, indent=1))
    write_tokenizer(args.out)


if __name__ == "__main__":
    main()
