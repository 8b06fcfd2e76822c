"""How large a loaded plan may become: tokens in a step, sequences, pages of KV cache."""

from __future__ import annotations

import os

from mixplan.runtime.cgroup import cgroup_limits
from mixplan.runtime.errors import OptionError
from mixplan.runtime.hal import PAGE_SIZE, CacheSpec
from mixplan.runtime.plan import Plan

__all__ = ["cache_spec", "kv_bytes_per_token", "kv_formats", "step_limit"]

_DEFAULT_KV_TOKENS = 1 << 20
_MAX_SEQUENCES = 1 << 16


def step_limit(plan: Plan, wanted: int | None) -> int:
    """Tokens that a step takes at most: `wanted`, or what the plan allows. OptionError where the plan allows less."""
    if wanted is None:
        return plan.max_step_tokens
    if not 1 <= wanted <= plan.max_step_tokens:
        raise OptionError(
            f"max_step_tokens is {wanted}; this plan allows 1 to {plan.max_step_tokens}.",
            hint="Compile it with a larger --max-step-tokens.",
        )
    return wanted


def cache_spec(plan: Plan, max_sequences: int, kv_tokens: int | None) -> CacheSpec:
    """Pages of KV cache for `kv_tokens` tokens; by default the context, in a quarter of the memory. OptionError out of range."""
    if not 1 <= max_sequences <= _MAX_SEQUENCES:
        raise OptionError(f"max_sequences is {max_sequences}; allowed are 1 to {_MAX_SEQUENCES}.")
    if kv_tokens is None:
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        fitting = min(memory, cgroup_limits().memory or memory) // 4 // max(kv_bytes_per_token(plan), 1)
        kv_tokens = max(1, min(plan.model.context_length, fitting, _DEFAULT_KV_TOKENS))
    elif not 1 <= kv_tokens < 1 << 31:
        raise OptionError(f"kv_tokens is {kv_tokens}; allowed are 1 to 2^31 - 1.")
    pages = -(-kv_tokens // PAGE_SIZE)
    context_pages = -(-plan.model.context_length // PAGE_SIZE)
    return CacheSpec(pages=pages, page_size=PAGE_SIZE, max_sequences=max_sequences, max_pages_per_sequence=min(pages, context_pages))


def kv_bytes_per_token(plan: Plan) -> int:
    """Bytes of keys and values that a token leaves in all layers."""
    return sum(layer.token_bytes for layer in plan.attention)


def kv_formats(plan: Plan) -> str:
    """The formats of keys and values that some head has, in words."""
    return " ".join(sorted({held.value for layer in plan.attention for held, _ in layer.runs}))
