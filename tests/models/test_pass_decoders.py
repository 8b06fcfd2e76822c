"""The pipeline over whole decoders: fused graphs run by torch against the models, and which ops are left of a layer."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from mixplan.compiler.capture import capture_decoder
from mixplan.compiler.frontends.tiny import tiny_model
from mixplan.passes.base import PassContext, PassOptions
from mixplan.passes.manager import PipelineReport
from mixplan.passes.patterns import is_constant, mark_constants
from mixplan.passes.pipeline import pass_manager
from mixplan.passes.precision.schemes import parse_scheme

# Fused and unfused sums are taken in other orders; nothing else may differ.
TOLERANCE = 5e-6
TOKENS, ROWS = 13, [0, 5, 12]
VIEWS = ("reshape", "slice", "getitem")

# What is left of two layers besides views, for models that fuse wholly.
LLAMA = {"rms_norm": 5, "rope": 4, "attention_tm": 2, "linear": 7, "gated_linear": 2, "embedding": 1, "index_select": 2}
ANGLES = {"to": 1, "mul": 1, "cat": 1, "cos": 1, "sin": 1}
EXPECTED: dict[str, dict[str, int] | None] = {
    "llama": LLAMA | ANGLES,
    "mistral": LLAMA | ANGLES,
    "qwen2": LLAMA | ANGLES,
    "granite": LLAMA | ANGLES,
    "phi3": LLAMA | ANGLES,
    "qwen3": LLAMA | ANGLES | {"rms_norm": 9},
    "olmo2": LLAMA | ANGLES | {"rms_norm": 9, "add": 4},
    "stablelm": {name.replace("rms_norm", "layer_norm"): count for name, count in LLAMA.items()} | ANGLES,
    "starcoder2": {"layer_norm": 5, "rope": 4, "attention_tm": 2, "linear": 9, "gelu": 2, "embedding": 1, "index_select": 2} | ANGLES,
    "gpt2": {"layer_norm": 5, "attention_tm": 2, "linear": 9, "gelu": 2, "embedding": 2, "add": 1, "index_select": 2},
    "gpt_neox": None,
    "gemma2": None,
    "gemma3_text": None,
    "cohere": None,
    "glm4": None,
    "mixtral": None,
    "qwen2_moe": None,
    "deepseek_v3": None,
    "gpt_oss": None,
}


def passed(model: nn.Module, scheme: str) -> tuple[PipelineReport, PassContext]:
    """The model's graph after the pipeline, with the model's weights in it."""
    torch.set_num_threads(1)
    captured = capture_decoder(model)
    context = PassContext(PassOptions(parse_scheme(scheme)))
    report = pass_manager(context.options).run(captured.graph, context)
    for name, value in model.named_parameters(remove_duplicate=False):
        *path, last = name.split(".")
        owner: Any = report.graph
        for part in path:
            owner = getattr(owner, part, None)
        if owner is not None and hasattr(owner, last):
            delattr(owner, last)
            owner.register_buffer(last, value.detach())
    return report, context


def difference(model: nn.Module, report: PipelineReport) -> float:
    """Largest difference of logits, relative to the largest logit."""
    ids = torch.randint(3, 200, (1, TOKENS), generator=torch.Generator().manual_seed(0))
    positions, rows = torch.arange(TOKENS)[None], torch.tensor(ROWS)
    with torch.no_grad():
        expected: Tensor = model(input_ids=ids, position_ids=positions, use_cache=False).logits[:, rows]
        found = report.graph(ids, positions, torch.full((1, TOKENS), TOKENS), rows)
    return float((expected - found).abs().max() / expected.abs().max())


def ops(report: PipelineReport) -> dict[str, int]:
    """Calls by name; views and constant expressions are left out."""
    mark_constants(report.graph.graph)
    calls = [node for node in report.graph.graph.nodes if node.op == "call_function" and not is_constant(node)]
    names = [getattr(getattr(node.target, "overloadpacket", node.target), "__name__", "") for node in calls]
    return dict(Counter(name for name in names if name not in VIEWS))


@pytest.mark.parametrize("name", EXPECTED)
def test_fused_decoder(name: str) -> None:
    """Equal logits, and for models that fuse wholly nothing but the fused ops."""
    model = tiny_model(name)
    report, _ = passed(model, "FP32")
    assert difference(model, report) < TOLERANCE
    expected = EXPECTED[name]
    found = ops(report)
    assert expected is None or found == expected
    assert not {"rsqrt", "mean", "neg", "permute", "attention"} & set(found)


@pytest.mark.parametrize("name", ["llama", "gpt2", "cohere", "mixtral"])
def test_quantized_decoder(name: str) -> None:
    """With int8 activations every layer reads a quantized input, norms write it, and the logits stay near."""
    model = tiny_model(name)
    report, context = passed(model, "W8A8")
    found = ops(report)
    assert "linear" not in found and "gated_linear" not in found
    assert found.get("rms_norm_quant", 0) + found.get("layer_norm_quant", 0) >= 2
    assert 0 < difference(model, report) < 0.1
    assert all(str(decision.scheme) == "W8A8" for decision in context.decisions.values())
