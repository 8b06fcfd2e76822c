"""A Hugging Face checkpoint as OpenVINO models: `python -m benchmarks.compare.convert.openvino CHECKPOINT OUT [--format int4]`.

By optimum-intel and nncf with their defaults (the embedding and the head stay at 8 bits). Runs in the peers' environment.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from optimum.intel import OVModelForCausalLM, OVWeightQuantizationConfig
from transformers import AutoTokenizer

__all__ = ["main"]


def export(checkpoint: Path, out: Path, name: str) -> None:
    """int4: groups of 64 (576 is no multiple of 128), asymmetric, every layer. int8: per channel, asymmetric."""
    config = (
        OVWeightQuantizationConfig(bits=4, group_size=64, sym=False, ratio=1.0)
        if name == "int4"
        else OVWeightQuantizationConfig(bits=8, sym=False)
    )
    model = OVModelForCausalLM.from_pretrained(checkpoint, export=True, compile=False, quantization_config=config)
    model.save_pretrained(out)
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    tokenizer.save_pretrained(out)
    # GenAI wants a tokenizer model even where it is given token ids.
    from openvino import save_model
    from openvino_tokenizers import convert_tokenizer

    encoder, decoder = convert_tokenizer(tokenizer, with_detokenizer=True)
    save_model(encoder, out / "openvino_tokenizer.xml")
    save_model(decoder, out / "openvino_detokenizer.xml")


def main() -> None:
    """Write the models that are asked for."""
    parser = argparse.ArgumentParser(description="Export to OpenVINO.")
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("out", type=Path, help="a folder, which gets one folder for each format")
    parser.add_argument("--format", nargs="+", choices=("int4", "int8"), default=["int4", "int8"])
    given = parser.parse_args()
    for name in given.format:
        export(given.checkpoint, given.out / name, name)
        sys.stdout.write(f"{given.out / name}\n")


if __name__ == "__main__":
    main()
