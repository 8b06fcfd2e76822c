"""What every front end gives: a checkpoint that can be captured."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from torch import fx

from mixplan.compiler.weights.base import WeightSource
from mixplan.runtime.plan import Model

__all__ = ["Captured", "Checkpoint", "Source"]


@dataclass(frozen=True)
class Source:
    """Where a plan comes from: goes into its provenance, the files by their SHA-256. `files` maps their base names to where they are."""

    format: str
    name: str
    files: dict[str, Path] = field(default_factory=dict)


@dataclass
class Captured:
    """A checkpoint as a graph.

    graph: placeholders token_ids, position_ids, sequence_lengths (i64 [1, T]), logit_rows (i64 [R]); one output, logits f32 [1, R, V].
    Parameters are get_attr nodes whose targets are names of `weights`, holding meta tensors; buffers hold real CPU tensors.
    tied: a tied parameter's other names -> the one that the graph and `weights` use.
    files: what the runtime needs for text, by the name it gets inside the plan (tokenizer.json, chat_template.jinja, ...).
    """

    graph: fx.GraphModule
    weights: WeightSource
    model: Model
    source: Source
    files: dict[str, bytes] = field(default_factory=dict)
    tied: dict[str, str] = field(default_factory=dict)


class Checkpoint(Protocol):
    """An opened checkpoint. Opening has checked that its files are there and well-formed; weights are read later."""

    @property
    def notes(self) -> tuple[str, ...]:
        """What the user should know about it: text files that are missing, were converted, or cannot be used as they are."""

    def capture(self) -> Captured:
        """Export the model. May be called once."""

    def close(self) -> None:
        """Close the files."""
