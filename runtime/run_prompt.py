"""What `mixplan run` does: load a plan, answer one prompt as a stream, sum up size, memory and speed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from time import perf_counter
from typing import Any, TypeAlias

from mixplan.runtime.errors import MissingExtraError, OptionError
from mixplan.runtime.generate import Prompt
from mixplan.runtime.loading import load
from mixplan.runtime.model import Model
from mixplan.runtime.plan_io import LoadedPlan
from mixplan.runtime.sampling import SamplingParams

__all__ = ["RenderChat", "run_prompt"]

RenderChat: TypeAlias = Callable[[LoadedPlan, list[dict[str, str]]], str]


def run_prompt(
    plan: Path,
    prompt: str,
    *,
    emit: Callable[[str], object] | None = None,
    render_chat: RenderChat | None = None,
    chat: bool | None = None,
    system: str | None = None,
    threads: int | None = None,
    device: str = "auto",
    isa: str | None = None,
    trust: bool = False,
    strict: bool = False,
    allow_cpu_fallback: bool = False,
    **sampling: Any,
) -> dict[str, Any]:
    """Generate from `prompt`, calling emit(text) as text becomes known; gives text, figures and a summary of one line each.

    chat: put the prompt into the plan's chat template; None does so where the plan has one. render_chat(plan, messages) renders a
    template that the runtime itself cannot (chat.json says so); without it such a template is an error. `sampling`: see SamplingParams.
    """
    started = perf_counter()
    with load(plan, device=device, threads=threads, isa=isa, trust=trust, strict=strict, allow_cpu_fallback=allow_cpu_fallback) as model:
        loaded = perf_counter() - started
        request = _prompt(model, prompt, chat, system, render_chat)
        params = SamplingParams(**{**sampling, "stop": tuple(sampling.get("stop", ()))})
        pieces: list[str] = []
        ids: list[int] = []
        last = None
        for last in model.generate(request, params):
            ids.append(last.token_id)
            pieces.append(last.text)
            if emit is not None and last.text:
                emit(last.text)
        metrics = model.metrics()
        plan_bytes = sum(entry.size for entry in model.plan.files.values())
        placement = [{"region": p.region, "device": p.device, "isa": p.isa, "reason": p.reason} for p in model.placement]
    stats = last.stats if last is not None else None
    if last is None or stats is None:  # generate() always ends a request with a reason and its figures
        raise AssertionError("generation ended without a last chunk")
    figures = {
        "plan_bytes": plan_bytes,
        "peak_rss_bytes": metrics.peak_rss_bytes,
        "load_seconds": round(loaded, 4),
        "prompt_tokens": stats.prompt_tokens,
        "new_tokens": stats.new_tokens,
        "ttft_seconds": round(stats.ttft, 4),
        "prompt_tokens_per_second": round(stats.prompt_tokens_per_second, 1),
        "tokens_per_second": round(stats.tokens_per_second, 1),
    }
    return {
        "text": "".join(pieces),
        "token_ids": ids,
        "finish_reason": last.finish_reason,
        "placement": placement,
        "fallbacks": [asdict(fallback) for fallback in metrics.fallbacks],
        **figures,
        "summary": _summary(figures),
    }


def _prompt(model: Model, prompt: str, chat: bool | None, system: str | None, render: RenderChat | None) -> Prompt:
    has_template = "chat.json" in model.plan.files
    if chat and not has_template:
        raise OptionError("--chat was given, but this plan has no chat template.", hint="Leave --chat out, or compile a chat model.")
    if not (has_template if chat is None else chat):
        if system is not None:
            raise OptionError("A system message needs a chat template.", hint="Leave --system out, or use --chat with a chat model.")
        return prompt
    messages = [{"role": "system", "content": system}] if system is not None else []
    messages.append({"role": "user", "content": prompt})
    try:
        return model.tokenizer.encode_chat(messages)
    except MissingExtraError:  # only the Jinja template itself can render these messages
        if render is None:
            raise
        return model.tokenizer.encode(render(model.loaded, messages), add_special_tokens=False)


def _summary(figures: dict[str, Any]) -> str:
    mib = 1 << 20
    return (
        f"plan size            {figures['plan_bytes'] / mib:10.1f} MiB\n"
        f"peak memory          {figures['peak_rss_bytes'] / mib:10.1f} MiB\n"
        f"load                 {figures['load_seconds'] * 1e3:10.1f} ms\n"
        f"time to first token  {figures['ttft_seconds'] * 1e3:10.1f} ms ({figures['prompt_tokens']} prompt tokens)\n"
        f"decode speed         {figures['tokens_per_second']:10.1f} tokens/s ({figures['new_tokens']} tokens)"
    )
