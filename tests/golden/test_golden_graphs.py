"""Whole graphs as text: captured, and as the pipeline leaves them, with the exact number of rewrites per pass.

After a wanted change: MIXPLAN_REGENERATE=1 pytest tests/golden, and read the difference.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from mixplan.compiler.capture import capture_decoder
from mixplan.compiler.frontends.tiny import tiny_model
from mixplan.passes.base import PassContext, PassOptions
from mixplan.passes.dump import graph_text
from mixplan.passes.pipeline import pass_manager
from mixplan.passes.precision.schemes import parse_scheme

GRAPHS = Path(__file__).parent / "graphs"
MODELS = [
    ("llama", "FP32"),
    ("llama", "W4A8"),
    ("phi3", "FP32"),
    ("gpt2", "FP32"),
    ("gemma2", "FP32"),
    ("cohere", "W8A8"),
    ("deepseek_v3", "FP32"),
    ("mixtral", "W4A16"),
]


@pytest.mark.parametrize(("model", "scheme"), MODELS)
def test_graph(model: str, scheme: str) -> None:
    """The text is that of the stored file, line by line."""
    torch.set_num_threads(1)
    captured = capture_decoder(tiny_model(model, num_hidden_layers=1))
    before = graph_text(captured.graph.graph)
    context = PassContext(PassOptions(parse_scheme(scheme)))
    report = pass_manager(context.options).run(captured.graph, context)
    counts = "".join(f"{name}: {count}\n" for name, count in report.matches.items())
    rejections = "".join(f"{rejection}\n" for rejection in context.rejections)
    parts = {"captured": before, f"final, {scheme}": graph_text(report.graph.graph), "matches": counts, "rejections": rejections}
    text = "\n".join(f"== {title}\n{body}" for title, body in parts.items())
    path = GRAPHS / f"{model}-{scheme}.txt"
    if os.environ.get("MIXPLAN_REGENERATE"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert path.exists(), f"{path.name} is missing; MIXPLAN_REGENERATE=1 writes it"
    assert text == path.read_text(encoding="utf-8"), f"{path.name} differs; if that is wanted, MIXPLAN_REGENERATE=1 writes it anew"
