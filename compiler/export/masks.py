"""What kind of attention a transformers mask function asks for.

The mask interface is given a function of (batch, head, query, key) indices that transformers composes from a few building blocks. Its
structure (closures, not values) is read here, so that no [T, T] mask ever enters the graph.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

__all__ = ["MaskKind", "mask_kind"]


@dataclass(frozen=True)
class MaskKind:
    """Stands in for the mask tensor on its way through the model to the attention op.

    kind "causal" (window 0: none; w: key position > query position - w) or "chunked" (same chunk of `window` positions). `refused` names
    what the model asked for where it is neither; models may make such masks without using them.
    """

    kind: str = "causal"
    window: int = 0
    refused: str = ""

    def __getitem__(self, index: Any) -> MaskKind:
        """Slicing a mask to the keys' length changes nothing here."""
        return self

    def to(self, *args: Any, **kwargs: Any) -> MaskKind:
        """Device and dtype mean nothing here."""
        return self


def mask_kind(mask_function: Callable[..., Any]) -> MaskKind:
    """Read a mask function; anything but causal, causal within a window, or causal within chunks is refused in the result."""
    parts = _conjuncts(mask_function)
    causal, window, chunk, unknown = False, 0, 0, []
    for name, cells in parts:
        if name == "causal_mask_function":
            causal = True
        elif name == "sliding_window_overlay.<locals>.inner_mask":
            window = min(window or cells["sliding_window"], cells["sliding_window"])
        elif name == "chunked_overlay.<locals>.inner_mask":
            chunk = cells["chunk_size"]
        else:
            unknown.append(name.replace(".<locals>.inner_mask", ""))
    if unknown or not causal or (window and chunk):
        return MaskKind(refused=" and ".join(unknown or [name.replace(".<locals>.inner_mask", "") for name, _ in parts]))
    return MaskKind("chunked", int(chunk)) if chunk else MaskKind("causal", int(window))


def _conjuncts(function: Callable[..., Any]) -> list[tuple[str, dict[str, Any]]]:
    """The (qualified name, closure variables) of the functions whose intersection `function` is."""
    name = getattr(function, "__qualname__", repr(function))
    cells = dict(inspect.getclosurevars(function).nonlocals) if inspect.isfunction(function) else {}
    if name == "and_masks.<locals>.and_mask":
        return [part for inner in cells["mask_functions"] for part in _conjuncts(inner)]
    if name in ("add_offsets_to_mask_function.<locals>.inner_mask", "remap_positions_for_packed_sequence.<locals>.inner_mask"):
        return _conjuncts(cells["mask_function"])
    if name == "packed_sequence_mask_function.<locals>.inner_mask":
        # Several sequences in one row, told apart by their positions: the runtime keeps sequences apart itself.
        return []
    return [(name, cells)]
