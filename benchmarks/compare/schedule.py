"""The run: every launch a process of its own, stacks taking turns, the machine's ceilings measured in mixplan's own launches."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.compare.client import Client, WorkerError
from benchmarks.compare.results import Results, StackResult, perplexity
from benchmarks.compare.sizes import Shape, step_bytes
from benchmarks.compare.stacks import Stack
from benchmarks.compare.workload import Measure, figure, quality_windows, request

__all__ = ["Plan", "run"]

_OVERHEAD_STEPS = 200


@dataclass
class Plan:
    """What to run. pythons: family -> the interpreter of its environment. turn: entered around each launch, for who shares the machine."""

    stacks: Sequence[Stack]
    measures: Sequence[Measure]
    ids: Sequence[int]
    work: Path
    pythons: dict[str, str]
    shape: Shape
    threads: int = 2
    rounds: int = 5
    windows: int = 40
    turn: Callable[[], AbstractContextManager[Any]] = nullcontext
    environment: dict[str, str] = field(default_factory=dict)


def run(plan: Plan, results: Results, say: Callable[[str], None] | None = None, save: Callable[[], None] = lambda: None) -> None:
    """Fills `results`; `save` is called after each round. A launch that fails is noted with its words, and the run goes on."""
    tell = say or (lambda words: sys.stderr.write(f"{words}\n"))
    for stack in plan.stacks:
        results.stacks.setdefault(stack.name, StackResult(stack.name, stack.family, stack.width))
    steady = [m for m in plan.measures if m.kind not in ("cold", "memory")]
    fresh = [m for m in plan.measures if m.kind in ("cold", "memory")]
    for number in range(plan.rounds):
        # Each round starts with another stack, so that none always follows the same one.
        turn = number % max(1, len(plan.stacks))
        for stack in [*plan.stacks[turn:], *plan.stacks[:turn]]:
            with plan.turn():
                began = time.perf_counter()
                _steady(plan, stack, steady, results.stacks[stack.name])
            if fresh:
                with plan.turn():
                    _fresh(plan, stack, fresh, results.stacks[stack.name])
            tell(f"round {number + 1} of {plan.rounds}: {stack.name} ({time.perf_counter() - began:.0f} s)")
        save()
    if plan.windows:
        for stack in plan.stacks:
            with plan.turn():
                _quality(plan, stack, results.stacks[stack.name])
            tell(f"perplexity: {stack.name} {results.stacks[stack.name].perplexity:.2f}")


def _client(plan: Plan, stack: Stack) -> Client:
    config = {"model": str((plan.work / stack.model).resolve()), "threads": plan.threads, **stack.config}
    threads = str(plan.threads)
    environment = {"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads, **plan.environment}
    module = [stack.worker] if stack.worker.endswith(".py") else ["-m", f"benchmarks.compare.workers.{stack.worker}"]
    command = [plan.pythons[stack.family], *module]
    return Client(command, config, environment=environment, log=plan.work / "workers.log")


def _steady(plan: Plan, stack: Stack, measures: Sequence[Measure], result: StackResult) -> None:
    """One launch: a warm-up, then every measure, in the manner that is best for this stack."""
    found = {m.name: math.nan for m in measures}
    ours = stack.family == "mixplan"
    try:
        with _client(plan, stack) as client:
            client.ask("decode", ids=list(plan.ids[:128]), steps=16)
            if not result.facts:
                result.facts = client.ask("facts")
            if ours:
                size = int(step_bytes(stack, plan.shape))
                result.ceilings.append(client.ask("ceilings", bytes=size))
            for measure in measures:
                if measure.name not in stack.skip:
                    found[measure.name] = _best(plan, stack, measure, client, result)
            if ours:
                share = client.ask("overhead", ids=list(plan.ids[:128]), steps=_OVERHEAD_STEPS)["share"]
                result.figures.setdefault("overhead", []).append(share)
    except WorkerError as error:
        result.failures.append(str(error))
    if ours:
        # A launch that ended early must not shift the rounds that follow it.
        rounds = len(result.figures.get(measures[0].name, [])) + 1 if measures else 0
        result.ceilings += [{}] * (rounds - len(result.ceilings))
        overhead = result.figures.setdefault("overhead", [])
        overhead += [math.nan] * (rounds - len(overhead))
    for name, value in found.items():
        result.figures.setdefault(name, []).append(value)


def _best(plan: Plan, stack: Stack, measure: Measure, client: Client, result: StackResult) -> float:
    """The figure under the stack's best settings among those that the measure names for it: all in the first round, then the best."""
    choices = measure.options.get(stack.family, ({},))
    if measure.name in result.settings:
        choices = (result.settings[measure.name],)
    found: list[tuple[float, Mapping[str, Any]]] = []
    for options in choices:
        try:
            client.ask("tune", options=dict(options))
            asked = request(measure, plan.ids)
            found.append((figure(measure, client.ask(asked.pop("do"), **asked)["seconds"]), options))
        except WorkerError as error:
            if "ended" in str(error):
                raise
            result.failures.append(f"{measure.name}: {error}")
    client.ask("tune", options={})
    if not found:
        return math.nan
    best = (max if measure.more_is_better else min)(found, key=lambda one: one[0])
    result.settings[measure.name] = dict(best[1])
    return best[0]


def _fresh(plan: Plan, stack: Stack, measures: Sequence[Measure], result: StackResult) -> None:
    """One launch from nothing: process start to the first token of a 128-token prompt, then some steps, then the peak of its memory."""
    found = {m.name: math.nan for m in measures}
    try:
        with _client(plan, stack) as client:
            client.ask("first", ids=list(plan.ids[:128]))
            seconds = time.perf_counter() - client.started
            for measure in measures:
                if measure.kind == "cold" and measure.name not in stack.skip:
                    found[measure.name] = seconds
                elif measure.kind == "memory":
                    client.ask("decode", ids=list(plan.ids[: measure.tokens]), steps=measure.steps)
                    found[measure.name] = client.ask("memory")["peak_rss"] / 1e6
    except WorkerError as error:
        result.failures.append(str(error))
    for name, value in found.items():
        result.figures.setdefault(name, []).append(value)


def _quality(plan: Plan, stack: Stack, result: StackResult) -> None:
    losses: list[float] = []
    tokens: list[int] = []
    try:
        with _client(plan, stack) as client:
            for window in quality_windows(plan.ids, plan.windows):
                reply = client.ask("nll", windows=[window])
                losses += reply["nll"]
                tokens += reply["tokens"]
        result.perplexity = perplexity(losses, tokens)
    except WorkerError as error:
        result.failures.append(f"perplexity: {error}")
