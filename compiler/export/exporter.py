"""The call of torch.export, with errors that name the model's source line."""

from __future__ import annotations

import traceback
from typing import Any

import torch
from torch import nn
from torch.export import ExportedProgram

from mixplan.compiler.export.context import ExportContext
from mixplan.runtime.errors import InternalError, MixplanError, UnsupportedError

__all__ = ["export"]


def export(module: nn.Module, args: tuple[Any, ...], bounds: tuple[int, ...], context: ExportContext) -> ExportedProgram:
    """Export a step without strict tracing, with T and R dynamic and T bounded by the first of `bounds` that the model's code allows.

    UnsupportedError gives the deepest line of the model's own code and the reason.
    """
    for bound in bounds:
        tokens, rows = torch.export.Dim("T", min=2, max=bound), torch.export.Dim("R", min=1, max=bounds[0])
        context.layers = 0
        try:
            return torch.export.export(module, args, dynamic_shapes=({1: tokens}, {1: tokens}, {1: tokens}, {0: rows}), strict=False)
        except MixplanError:
            raise
        except Exception as error:
            if isinstance(error, torch._dynamo.exc.UserError) and "Constraints violated" in str(error) and bound != bounds[-1]:
                continue
            raise _refusal(error) from error
    raise InternalError("export was called without a bound for T")


def _refusal(error: Exception) -> UnsupportedError:
    text = " ".join(line.strip() for line in str(error).strip().splitlines()[:3])[:600]
    where = model_line(error)
    return UnsupportedError(
        f"the model cannot be captured as one graph: {type(error).__name__}: {text}{f' (at {where})' if where else ''}",
        hint="Decoders that mix tokens by causal attention alone are supported; other state and data-dependent control flow are not.",
    )


def model_line(error: BaseException) -> str:
    """file:line of the deepest frame that is neither torch's nor mixplan's, with the source text; "" where there is none."""
    found = ""
    for frame in traceback.extract_tb(error.__traceback__):
        path = frame.filename.replace("\\", "/")
        if "/torch/" in path or "/mixplan/" in path or path.startswith("<"):
            continue
        if "/models/" in path or "site-packages" not in path:
            found = f"{'/'.join(path.split('/')[-2:])}:{frame.lineno}: {(frame.line or '').strip()}"
    return found
