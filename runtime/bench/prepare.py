"""Before anything is measured: the requests of each phase, and a model with room for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mixplan.runtime.bench.options import BenchOptions
from mixplan.runtime.bench.trace import TraceLine, read_trace
from mixplan.runtime.bench.workload import BenchRequest, Workload, from_text, from_trace, from_vocabulary
from mixplan.runtime.devices.cpu_info import allowed_cores
from mixplan.runtime.errors import OptionError
from mixplan.runtime.hal import PAGE_SIZE
from mixplan.runtime.hardware import hardware
from mixplan.runtime.loading import load
from mixplan.runtime.model import Model
from mixplan.runtime.plan import Plan

__all__ = ["Prepared", "plan_facts", "prepare", "token_limit"]

_REQUESTS = 1000


def plan_facts(model: Model) -> dict[str, Any]:
    """The plan, as far as a figure needs it beside it."""
    plan = model.plan
    return {
        "name": plan.name,
        "digest": model.loaded.digest,
        "scheme": _scheme(plan),
        "effective_bits": round(plan.effective_bits, 4),
        "parameters": plan.model.parameters,
        "weight_bytes": model.metrics().weight_bytes,
        "kv_bytes_per_token": model.metrics().kv_bytes_per_token,
        "context_length": plan.model.context_length,
    }


def _scheme(plan: Plan) -> str:
    """The scheme of most parameters."""
    totals: dict[str, int] = {}
    for decision in plan.decisions:
        totals[decision.scheme] = totals.get(decision.scheme, 0) + decision.parameters
    return max(totals, key=lambda name: totals[name], default="")


@dataclass(frozen=True)
class Prepared:
    """The loaded model, the threads it runs on, and the requests of the phases."""

    model: Model
    threads: int
    steady: Workload
    stress: Workload


def prepare(path: Path, options: BenchOptions) -> Prepared:
    """Read the requests, and load the plan with sequences and KV pages for all of them.

    Raises OptionError for a text or a trace that does not fit the plan, and whatever `load` raises.
    """
    lines = read_trace(options.trace) if options.trace is not None else None
    # Requests need the tokenizer and limits of the plan, and the size of the KV cache needs the requests.
    with load(path, device="null", max_sequences=1, kv_tokens=1) as plan:
        room = options.kv_tokens or _most_kv_tokens(plan)
        limit = min(plan.plan.model.context_length, -(-room // PAGE_SIZE) * PAGE_SIZE)
        steady, stress = _workloads(plan, options, lines, limit)
        wanted = options.kv_tokens or min(room, max(limit, _kv_tokens(stress.requests), options.in_flight * _kv_tokens(steady.requests, 1)))
    model = load(
        path,
        device=options.device,
        threads=options.threads,
        trust=options.trust,
        strict=options.strict,
        isa=options.isa,
        max_sequences=max(options.concurrency, options.in_flight),
        kv_tokens=wanted,
        verify="manifest",
    )
    return Prepared(model, options.threads or allowed_cores(), steady, stress)


def token_limit(model: Model) -> int:
    """The most tokens that one sequence holds, prompt and answer together."""
    return min(model.plan.model.context_length, model.caches.max_pages_per_sequence * model.caches.page_size)


def _most_kv_tokens(plan: Model) -> int:
    """What a quarter of the memory holds."""
    return max(PAGE_SIZE, (hardware().memory_limit or 0) // 4 // max(plan.metrics().kv_bytes_per_token, 1))


def _kv_tokens(requests: Sequence[BenchRequest], largest: int | None = None) -> int:
    """Tokens of the pages that the requests take at once, or the `largest` of them."""
    sizes = sorted((-(-(len(request.token_ids) + request.max_tokens) // PAGE_SIZE) for request in requests), reverse=True)
    return sum(sizes[:largest]) * PAGE_SIZE


def _workloads(model: Model, options: BenchOptions, lines: Sequence[TraceLine] | None, limit: int) -> tuple[Workload, Workload]:
    if lines is not None and options.trace is not None:
        count = options.requests or len(lines)
        if count > len(lines):
            raise OptionError(
                f"{count} requests were asked for; the trace {options.trace} has {len(lines)}.", hint="Give fewer --requests."
            )
        steady = from_trace(model, lines[:count], options.trace.name, options.seed, limit)
        together = [replace(steady.requests[k % count], arrival=None) for k in range(options.concurrency)]
        return steady, replace(steady, requests=tuple(together))
    both = (options.requests or _REQUESTS) + options.concurrency
    if options.text is not None:
        text = _read_text(options.text)
        drawn = from_text(model, text, options.text.name, both, options.lengths, options.seed, limit)
    else:
        drawn = from_vocabulary(model, both, options.lengths, options.seed, limit)
    first = both - options.concurrency
    return replace(drawn, requests=drawn.requests[:first]), replace(drawn, requests=drawn.requests[first:])


def _read_text(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8")
    except OSError as error:
        raise OptionError(f"The text {path} cannot be read: {error.strerror or error}.") from error
    except UnicodeDecodeError as error:
        raise OptionError(f"The text {path} is not UTF-8: {error}.") from error
