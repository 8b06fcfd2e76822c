"""Rules, and the pass that applies a list of them until none applies any more."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from torch import fx

from mixplan.passes.base import FunctionPass, PassContext, PassResult, Stage
from mixplan.passes.patterns import Miss, mark_constants, source_line
from mixplan.passes.rewriting import Rewriter
from mixplan.runtime.errors import InternalError, MixplanError, PassError

__all__ = ["AnyRule", "Rule", "SimpleRule", "apply_rules", "rule_pass"]

M = TypeVar("M")
_MAX_SWEEPS = 64


class AnyRule(Protocol):
    """What the applying loop needs of a rule."""

    @property
    def name(self) -> str:
        """Stands in the meta of nodes that it makes."""

    @property
    def targets(self) -> tuple[Any, ...]:
        """Targets of the nodes that it looks at."""

    def apply(self, node: fx.Node, edit: Rewriter) -> bool | Miss:
        """Rewrite at `node`: True if done, False if the pattern is not there, a Miss if it nearly is."""


class Rule(ABC, Generic[M]):
    """A rewrite in three steps. `M` is what the pattern found."""

    name: ClassVar[str]
    targets: ClassVar[tuple[Any, ...]]

    @abstractmethod
    def pattern(self, node: fx.Node) -> M | Miss | None:
        """What is found at `node`; None where the pattern is not there, a Miss where it is but for one thing."""

    def check(self, match: M) -> Miss | None:
        """Why the match must not be rewritten, None if it may be."""
        return None

    @abstractmethod
    def rewrite(self, node: fx.Node, match: M, edit: Rewriter) -> None:
        """Change the graph. New nodes go in front of `node` unless the rule sets the anchor elsewhere."""

    def apply(self, node: fx.Node, edit: Rewriter) -> bool | Miss:
        """Pattern, check, rewrite."""
        match = self.pattern(node)
        if match is None or isinstance(match, Miss):
            return match if match is not None else False
        refused = self.check(match)
        if refused is not None:
            return refused
        self.rewrite(node, match, edit)
        return True


@dataclass(frozen=True)
class SimpleRule:
    """A rewrite that is one function: gives the node that replaces `node`, or None where there is nothing to do."""

    name: str
    targets: tuple[Any, ...]
    function: Callable[[fx.Node, Rewriter], fx.Node | None]
    same_value: bool = True

    def apply(self, node: fx.Node, edit: Rewriter) -> bool | Miss:
        """Call it, and let the result stand for the node."""
        new = self.function(node, edit)
        if new is None:
            return False
        edit.replace(node, new, same_value=self.same_value)
        return True


def rule_pass(name: str, stage: Stage, summary: str, rules: Sequence[AnyRule]) -> FunctionPass:
    """A pass that applies `rules` over the whole graph, again and again until nothing changes."""

    def run(graph: fx.GraphModule, context: PassContext) -> PassResult:
        matches = apply_rules(graph, context, rules)
        return PassResult(graph, matches > 0, matches)

    return FunctionPass(name, stage, summary, run)


def apply_rules(graph: fx.GraphModule, context: PassContext, rules: Sequence[AnyRule]) -> int:
    """Apply to a fixed point; returns the number of rewrites. Near misses of the last sweep are recorded."""
    by_target: dict[Any, list[tuple[AnyRule, Rewriter]]] = {}
    for rule in rules:
        edit = Rewriter(graph, rule.name)
        for target in rule.targets:
            by_target.setdefault(target, []).append((rule, edit))
    total = 0
    for _ in range(_MAX_SWEEPS):
        misses: list[tuple[AnyRule, fx.Node, Miss]] = []
        changes = 0
        mark_constants(graph.graph)
        for node in list(graph.graph.nodes):
            if node.op != "call_function":
                continue
            for rule, edit in by_target.get(node.target, ()):
                if node._erased:
                    break
                outcome = _apply(rule, node, edit)
                if outcome is True:
                    changes += 1
                elif isinstance(outcome, Miss):
                    misses.append((rule, node, outcome))
        total += changes
        if not changes:
            for rule, node, miss in misses:
                context.rejections.add(rule.name, node.name, miss.reason, source_line(node))
            return total
    raise InternalError(f"Rules {', '.join(rule.name for rule in rules)} still change the graph after {_MAX_SWEEPS} sweeps.")


def _apply(rule: AnyRule, node: fx.Node, edit: Rewriter) -> bool | Miss:
    name, source = node.name, source_line(node)
    edit.anchor = node
    try:
        return rule.apply(node, edit)
    except MixplanError:
        raise
    except Exception as error:  # a fault of the rule, whatever it is, is told with the node
        where = f" ({source})" if source else ""
        raise PassError(f"Rule {rule.name} failed at node {name}{where}: {type(error).__name__}: {error}") from error
