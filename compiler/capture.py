"""Capture: a causal language model as a `torch.fx` graph of one ragged step.

The graph's placeholders are `token_ids`, `position_ids`, `sequence_lengths` (i64 [1, T]) and `logit_rows` (i64 [R]); its one output is the
logits f32 [1, R, V]. `mixplan::attention` is the only node that mixes tokens. Parameters are get_attr nodes under the model's names that
hold meta tensors; buffers hold real tensors.
"""

from __future__ import annotations

from dataclasses import dataclass
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
from mixplan.compiler.export.wrapper import DecoderStep, ModuleStep

__all__ = ["CapturedGraph", "capture_decoder", "capture_module"]

# Prompt length at which attention biases outside the interface are read, at least: it has to be longer than their windows.
_PROMPT = 300
_LONGEST_PROMPT = 4400


@dataclass
class CapturedGraph:
    """The graph, the number of attention nodes in it, and the other names of tied parameters, each with the name that the graph uses."""

    graph: fx.GraphModule
    layers: int
    tied: dict[str, str]


def capture_decoder(model: nn.Module) -> CapturedGraph:
    """Capture a transformers causal LM (with parameters on any device, meta included), which is left as it is.

    UnsupportedError names the line of the model's code that cannot be captured, or the node that mixes tokens outside attention.
    """
    copy: Any = skeleton(model)
    set_implementations(copy)
    patch_rotary(copy)
    context = ExportContext()
    text = copy.config.get_text_config()
    windows = [getattr(text, name, None) for name in ("sliding_window", "window_size", "attention_window")]
    prompt = max([_PROMPT, *(2 * w for w in windows if isinstance(w, int))])
    return _capture(DecoderStep(copy, context), model, copy, context, min(prompt, _LONGEST_PROMPT))


def capture_module(module: nn.Module) -> CapturedGraph:
    """Capture a module whose forward takes token ids [1, T], and maybe positions, and gives logits [1, T, V].

    Attention may be torch's scaled_dot_product_attention or written out; UnsupportedError as in `capture_decoder`.
    """
    copy = skeleton(module)
    context = ExportContext()
    return _capture(ModuleStep(copy), module, copy, context, _PROMPT)


def _capture(step: nn.Module, model: nn.Module, copy: nn.Module, context: ExportContext, prompt: int) -> CapturedGraph:
    line = torch.zeros(1, 11, dtype=torch.long)
    args = (line, torch.arange(11)[None], line + 11, torch.arange(3))
    with exporting(context), torch.no_grad():
        program = export(step, args, context)
    tied = _tied_names(model)
    graph = unlift(program, tied, dict(copy.named_buffers()))
    rewrite_complex(graph)
    tokens = next(node.meta["val"].shape[1] for node in graph.graph.nodes if node.name == "token_ids")
    longest = int(program.range_constraints[tokens.node.expr].upper)
    rewrite_eager_attention(graph, min(prompt, longest))
    rewrite_positions(graph)
    check_mixing(graph, tokens)
    return CapturedGraph(graph, number_attention(graph), tied)


def _tied_names(model: nn.Module) -> dict[str, str]:
    """For every parameter that shares its tensor with an earlier one, the earlier one's name."""
    first: dict[int, str] = {}
    tied: dict[str, str] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if first.setdefault(id(parameter), name) != name:
            tied[name] = first[id(parameter)]
    return tied
