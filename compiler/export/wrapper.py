"""The module that is exported: the four step inputs in, logits out."""

from __future__ import annotations

import inspect
from typing import Any

from torch import Tensor, nn

from mixplan.compiler.export.context import ExportContext
from mixplan.compiler.export.positions import counts_padding

__all__ = ["PREFIX", "DecoderStep"]

# The attribute that holds the model; unlifting cuts it off the parameters' names.
PREFIX = "model_"


class DecoderStep(nn.Module):
    """Calls a transformers causal LM with what its forward accepts."""

    def __init__(self, model: nn.Module, context: ExportContext) -> None:
        super().__init__()
        setattr(self, PREFIX, model)
        parameters = inspect.signature(model.forward).parameters
        catch_all = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())
        self.takes_positions = "position_ids" in parameters and not counts_padding(model)
        self.takes_rows = "logits_to_keep" in parameters
        self.takes_cache = "use_cache" in parameters or catch_all
        self.context = context

    def forward(self, token_ids: Tensor, position_ids: Tensor, sequence_lengths: Tensor, logit_rows: Tensor) -> Tensor:
        """token_ids, position_ids, sequence_lengths i64 [1, T], logit_rows i64 [R] -> logits f32 [1, R, V]."""
        self.context.position_ids = position_ids
        self.context.sequence_lengths = sequence_lengths
        kwargs: dict[str, Any] = {"input_ids": token_ids}
        if self.takes_positions:
            kwargs["position_ids"] = position_ids
        if self.takes_cache:
            kwargs["use_cache"] = False
        if self.takes_rows:
            kwargs["logits_to_keep"] = logit_rows
        output = getattr(self, PREFIX)(**kwargs)
        logits: Tensor = output if isinstance(output, Tensor) else output.logits if hasattr(output, "logits") else output[0]
        if not self.takes_rows:
            logits = logits[:, logit_rows]
        return logits.float()
