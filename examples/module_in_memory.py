"""Compile a module that is in memory: here a transformers decoder with random weights.

python examples/module_in_memory.py [OUT.plan]
"""

import sys

import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM

import mixplan

SIZES = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 256,
}


def main() -> None:
    torch.manual_seed(0)
    module = AutoModelForCausalLM.from_config(AutoConfig.for_model("qwen2", **SIZES)).eval()
    plan = sys.argv[1] if len(sys.argv) > 1 else "module.plan"
    mixplan.compile(module, output=plan, scheme="FP32", isa=("native",), force=True)

    ids = torch.arange(12)[None]
    with torch.no_grad():
        expected = module(ids).logits[0].numpy()
    with mixplan.runtime.load(plan) as model:
        logits = model.step(ids[0].numpy(), np.arange(12), np.zeros(12, int), logits="all")
    print(f"largest difference to torch: {np.abs(logits - expected).max():.2e}")


if __name__ == "__main__":
    main()
