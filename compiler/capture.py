"""Capture: a causal LM as a `torch.fx` graph of one ragged step.

The graph's placeholders are `token_ids`, `position_ids`, `sequence_lengths` (i64 [1, T]) and `logit_rows` (i64 [R]); its one output is the
logits f32 [1, R, V]. `mixplan::attention` is the only node that mixes tokens. Parameters are get_attr nodes under the model's names and hold
meta tensors; buffers hold real tensors.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx, nn

from mixplan.compiler.export.complex_numbers import rewrite_complex
from mixplan.compiler.export.context import ExportContext, exporting
from mixplan.compiler.export.eager_attention import number_attention, rewrite_eager_attention
from mixplan.compiler.export.exporter import export
from mixplan.compiler.export.interfaces import set_implementations
from mixplan.compiler.export.mixing import check_mixing
from mixplan.compiler.export.positions import rewrite_positions
from mixplan.compiler.export.rope import patch_rotary
from mixplan.compiler.export.skeleton import skeleton
from mixplan.compiler.export.unlift import unlift
from mixplan.compiler.export.wrapper import DecoderStep
from mixplan.compiler.frontends.text import context_length

__all__ = ["CapturedGraph", "capture_decoder"]

_MAX = 1 << 20
# Prompt length at which attention biases outside the interface are read: longer than their windows.
_WINDOW = 300


@dataclass
class CapturedGraph:
    """The graph, the names of its parameters, and the number of attention nodes."""

    graph: fx.GraphModule
    parameters: tuple[str, ...]
    layers: int
    tied: dict[str, str] = field(default_factory=dict)


def capture_decoder(model: nn.Module) -> CapturedGraph:
    """Capture a transformers causal LM (with parameters on any device, meta included), which is left as it is."""
    copy: Any = skeleton(model)
    set_implementations(copy)
    patch_rotary(copy)
    context = ExportContext()
    line = torch.zeros(1, 11, dtype=torch.long)
    args = (line, torch.arange(11)[None], line + 11, torch.arange(3))
    with exporting(context), torch.no_grad():
        program = export(DecoderStep(copy, context), args, (_MAX, _longest(model)), context)
    tied = tied_names(model)
    graph = unlift(program, tied, dict(copy.named_buffers()))
    rewrite_complex(graph)
    rewrite_eager_attention(graph, _WINDOW)
    rewrite_positions(graph)
    check_mixing(graph, next(n.meta["val"].shape[1] for n in graph.graph.nodes if n.name == "token_ids"))
    names = {node.target for node in graph.graph.nodes if node.op == "get_attr"}
    parameters = tuple(name for name, _ in model.named_parameters() if name in names)
    return CapturedGraph(graph, parameters, number_attention(graph), tied)


def _longest(model: Any) -> int:
    """One less than the model's context length: the second try, for models whose code compares T with the size of a table."""
    return max(64, context_length(model.config.get_text_config()) - 1)


def tied_names(model: nn.Module) -> dict[str, str]:
    """For every parameter that shares its tensor with an earlier one, the earlier one's name."""
    first: dict[int, str] = {}
    tied: dict[str, str] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if first.setdefault(id(parameter), name) != name:
            tied[name] = first[id(parameter)]
    return tied
