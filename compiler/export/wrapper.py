"""The modules that are exported: the four step inputs in, logits out."""

from __future__ import annotations

import inspect
from typing import Any

from torch import Tensor, nn

from mixplan.compiler.export.context import ExportContext
from mixplan.compiler.export.positions import counts_padding
from mixplan.runtime.errors import UnsupportedError

__all__ = ["PREFIX", "DecoderStep", "ModuleStep", "position_argument"]

# The attribute that holds the model; unlifting cuts it off the parameters' names.
PREFIX = "model_"
_POSITIONS = ("position_ids", "positions", "pos", "input_pos")


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


class ModuleStep(nn.Module):
    """Calls any module whose forward takes token ids, and maybe positions."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        setattr(self, PREFIX, module)
        self.positions = position_argument(module)

    def forward(self, token_ids: Tensor, position_ids: Tensor, sequence_lengths: Tensor, logit_rows: Tensor) -> Tensor:
        """As DecoderStep.forward."""
        kwargs = {self.positions: position_ids} if self.positions else {}
        output = getattr(self, PREFIX)(token_ids, **kwargs)
        logits: Tensor = output if isinstance(output, Tensor) else output.logits if hasattr(output, "logits") else output[0]
        if logits.ndim != 3:
            raise UnsupportedError(f"the module's output has shape {list(logits.shape)}, expected logits [1, T, vocabulary]")
        return logits[:, logit_rows].float()


def position_argument(module: nn.Module) -> str | None:
    """The name of the forward's argument for positions, if it has one; UnsupportedError where it needs other arguments."""
    parameters = list(inspect.signature(module.forward).parameters.values())
    names = [p.name for p in parameters]
    wanted = [p.name for p in parameters[1:] if p.default is p.empty and p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    if not names or any(name not in _POSITIONS for name in wanted):
        raise UnsupportedError(
            f"{type(module).__name__}.forward takes ({', '.join(names)}); mixplan compiles modules whose forward takes token ids [1, T], "
            f"and maybe positions ({', '.join(_POSITIONS)})",
            hint="Wrap the module in one with such a forward, and give other arguments their values there.",
        )
    return next((name for name in names[1:] if name in _POSITIONS), None)
