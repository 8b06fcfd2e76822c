"""How a fused op is declared: an eager function, which is its meaning, and a function that gives the output's shape and dtype."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

__all__ = ["define"]


def define(name: str, eager: Callable[..., Any], fake: Callable[..., Any]) -> Any:
    """Register `mixplan::name` with torch and return its default overload, the target that fx nodes carry.

    The schema comes from the eager function's annotations. Any stage of the pipeline can thus be executed by torch.
    """
    torch.library.custom_op(f"mixplan::{name}", eager, mutates_args=()).register_fake(fake)
    return getattr(torch.ops.mixplan, name).default
