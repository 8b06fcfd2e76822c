"""An nn.Module in memory."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from mixplan.compiler.capture import CapturedGraph, capture_decoder, capture_module
from mixplan.compiler.export.wrapper import position_argument
from mixplan.compiler.frontends.base import Captured, Source
from mixplan.compiler.frontends.text import check_record, model_record
from mixplan.compiler.weights.memory import ModuleWeights
from mixplan.runtime.errors import OptionError, UnsupportedError
from mixplan.runtime.plan import Model

__all__ = ["ModuleCheckpoint"]


class ModuleCheckpoint:
    """A transformers causal LM, or any module whose forward takes token ids [1, T] (and maybe positions) and gives logits [1, T, V].

    `example_inputs` is only looked at to refuse modules that take something else. The module is not changed.
    """

    def __init__(self, module: nn.Module, example_inputs: tuple[Any, ...] | None = None) -> None:
        if not isinstance(module, nn.Module):
            raise OptionError(f"expected a path or an nn.Module, got {type(module).__name__}")
        self.module: Any = module
        self.weights = ModuleWeights(module)
        self.transformers = hasattr(module, "config") and hasattr(module, "set_attn_implementation")
        if self.transformers:
            self._check_head()
        else:
            _check_inputs(module, example_inputs)

    @property
    def notes(self) -> tuple[str, ...]:
        """A module in memory has no tokenizer with it."""
        return ("a module in memory has no tokenizer, so the plan takes token ids only",)

    def capture(self) -> Captured:
        """Export the module."""
        captured = capture_decoder(self.module) if self.transformers else capture_module(self.module)
        source = Source("module", type(self.module).__name__)
        return Captured(captured.graph, self.weights, self._model(captured), source, tied=captured.tied)

    def close(self) -> None:
        """Let go of the module."""
        self.weights.close()

    def _check_head(self) -> None:
        if not self.module.can_generate() and self.module.get_output_embeddings() is None:
            raise UnsupportedError(
                f"{type(self.module).__name__} gives no logits over a vocabulary",
                hint="Load it as a causal language model: AutoModelForCausalLM.from_pretrained(...).",
            )

    def _model(self, captured: CapturedGraph) -> Model:
        parameters = sum(parameter.numel() for parameter in self.module.parameters())
        if self.transformers:
            generation = getattr(self.module, "generation_config", None)
            record = model_record(self.module.config, generation.to_diff_dict() if generation is not None else {}, parameters)
            check_record(record, type(self.module).__name__)
            return record
        nodes = list(captured.graph.graph.nodes)
        return Model(
            architecture=type(self.module).__name__,
            vocab_size=int(nodes[-1].args[0].meta["val"].shape[-1]),
            context_length=_table_length(nodes),
            parameters=parameters,
        )


def _table_length(nodes: list[Any]) -> int:
    """The length of the shortest table that is read at the positions; 2048 where there is none."""
    lengths = []
    for node in nodes:
        if node.op != "call_function" or len(node.args) < 2:
            continue
        name, position = str(node.target), None
        if "embedding" in name:
            axis, position = 0, node.args[1]
        elif "index_select" in name:
            axis, position = node.args[1], node.args[2]
        if position is not None and _from_positions(position):
            lengths.append(int(node.args[0].meta["val"].shape[axis]))
    return min(lengths, default=2048)


def _from_positions(node: Any) -> bool:
    while node.op == "call_function" and node.all_input_nodes:
        node = node.all_input_nodes[0]
    return bool(node.op == "placeholder" and node.name == "position_ids")


def _check_inputs(module: nn.Module, example_inputs: tuple[Any, ...] | None) -> None:
    position_argument(module)
    if example_inputs is None:
        return
    first = example_inputs[0] if example_inputs else None
    if not isinstance(first, torch.Tensor) or first.is_floating_point() or first.ndim != 2 or first.shape[0] != 1:
        got = f"{first.dtype} {list(first.shape)}" if isinstance(first, torch.Tensor) else type(first).__name__
        raise UnsupportedError(
            f"the first example input of {type(module).__name__} is {got}, expected token ids int64 [1, T]",
            hint="mixplan compiles language models so far: modules from token ids to logits over a vocabulary.",
        )
