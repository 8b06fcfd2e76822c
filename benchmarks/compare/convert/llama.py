"""A Llama-shaped Hugging Face checkpoint as GGUF files for llama.cpp.

`python -m benchmarks.compare.convert.llama CHECKPOINT OUT [--format Q4_0]` writes an fp32 GGUF with the package `gguf`, and has llama.cpp's
own quantizer make the rest of it. Runs in the peers' environment.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["FORMATS", "gguf_name", "interleave_rotary_rows", "main", "write_gguf"]

# llama.cpp's file types by the name that people know them by.
FORMATS = {"Q4_0": 2, "Q8_0": 7, "BF16": 32}

_LAYER_NAMES = {
    "input_layernorm.weight": "attn_norm.weight",
    "self_attn.q_proj.weight": "attn_q.weight",
    "self_attn.k_proj.weight": "attn_k.weight",
    "self_attn.v_proj.weight": "attn_v.weight",
    "self_attn.o_proj.weight": "attn_output.weight",
    "post_attention_layernorm.weight": "ffn_norm.weight",
    "mlp.gate_proj.weight": "ffn_gate.weight",
    "mlp.up_proj.weight": "ffn_up.weight",
    "mlp.down_proj.weight": "ffn_down.weight",
}
_TOP_NAMES = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}


def gguf_name(name: str) -> str:
    """The GGUF's name of a tensor of the checkpoint."""
    if name in _TOP_NAMES:
        return _TOP_NAMES[name]
    head, layer, rest = name.split(".", 3)[1:] if name.startswith("model.layers.") else ("", "", "")
    if head != "layers" or rest not in _LAYER_NAMES:
        raise SystemExit(f"{name} is no tensor of a Llama-shaped checkpoint")
    return f"blk.{layer}.{_LAYER_NAMES[rest]}"


def interleave_rotary_rows(weight: NDArray[np.float32], heads: int) -> NDArray[np.float32]:
    """Query or key rows [heads * d, in] in llama.cpp's order: it turns row 2i of a head with 2i + 1, Hugging Face i with i + d/2."""
    rows, columns = weight.shape
    pairs = weight.reshape(heads, 2, rows // heads // 2, columns)
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(rows, columns)


def _tensors(folder: Path) -> Iterator[tuple[str, NDArray[Any]]]:
    from safetensors import safe_open

    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, "np") as tensors:
            for name in tensors.keys():  # noqa: SIM118 - not a dict
                yield name, tensors.get_tensor(name)


def write_gguf(checkpoint: Path, out: Path) -> None:
    """The fp32 GGUF. It holds no tokenizer: the benchmark gives token ids."""
    from gguf import GGUFWriter

    config = json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))
    heads = config["num_attention_heads"]
    kv_heads = config["num_key_value_heads"]
    head_size = config.get("head_dim") or config["hidden_size"] // heads
    rope = config.get("rope_parameters") or {}
    writer = GGUFWriter(out, "llama")
    writer.add_name(checkpoint.name)
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_key_length(head_size)
    writer.add_value_length(head_size)
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(float(rope.get("rope_theta") or config.get("rope_theta") or 10000.0))
    writer.add_rope_dimension_count(head_size)
    writer.add_vocab_size(config["vocab_size"])
    writer.add_file_type(0)
    writer.add_tokenizer_model("none")
    tied = config.get("tie_word_embeddings", False)
    for name, tensor in _tensors(checkpoint):
        if tied and name == "lm_head.weight":
            continue
        array = tensor.astype(np.float32)
        if name.endswith("q_proj.weight"):
            array = interleave_rotary_rows(array, heads)
        elif name.endswith("k_proj.weight"):
            array = interleave_rotary_rows(array, kv_heads)
        writer.add_tensor(gguf_name(name), array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def quantize(source: Path, out: Path, name: str) -> None:
    """One of FORMATS, by llama.cpp's quantizer with its defaults (the head of a Q4_0 file is 6 or 8 bits wide)."""
    import llama_cpp

    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype = FORMATS[name]
    if llama_cpp.llama_model_quantize(str(source).encode(), str(out).encode(), ctypes.byref(params)):
        raise SystemExit(f"llama.cpp could not quantize {source} to {name}")


def main() -> None:
    """Write the files that are asked for, and the fp32 one if it is not there."""
    parser = argparse.ArgumentParser(description="Write GGUF files.")
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("out", type=Path, help="a folder")
    parser.add_argument("--format", nargs="+", choices=list(FORMATS), default=list(FORMATS))
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    whole = given.out / "F32.gguf"
    write_gguf(given.checkpoint, whole)
    for name in given.format:
        quantize(whole, given.out / f"{name}.gguf", name)
        sys.stdout.write(f"{given.out / name}.gguf\n")
    whole.unlink()


if __name__ == "__main__":
    main()
