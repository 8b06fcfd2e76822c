"""Every "no" of the pipeline: a rule that nearly applied, a layer that was not quantized, a node that was not placed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

__all__ = ["Rejection", "Rejections"]


@dataclass(frozen=True)
class Rejection:
    """`rule` did not apply at `node` because of `reason`; `source` is the model's source line of the node, where known."""

    rule: str
    node: str
    reason: str
    source: str = ""

    def __str__(self) -> str:
        return f"{self.rule}: {self.node}: {self.reason}"


@dataclass
class Rejections:
    """Collects rejections in the order they were made; a repeated one is kept once."""

    _seen: dict[Rejection, None] = field(default_factory=dict)

    def add(self, rule: str, node: str, reason: str, source: str = "") -> None:
        """Record one."""
        self._seen.setdefault(Rejection(rule, node, reason, source))

    def rename(self, names: Mapping[str, str]) -> None:
        """Follow nodes that got other names."""
        self._seen = {replace(one, node=names.get(one.node, one.node)): None for one in self._seen}

    def of(self, rule: str) -> list[Rejection]:
        """Those of one rule."""
        return [rejection for rejection in self._seen if rejection.rule == rule]

    def __iter__(self) -> Iterator[Rejection]:
        return iter(self._seen)

    def __len__(self) -> int:
        return len(self._seen)
