"""Attention over several steps: prompts, single tokens, several sequences at once, pages in any order, going back."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from mixplan.runtime.kv_format import KvFormat
from mixplan.runtime.plan import AttentionLayer, Attr
from mixplan.targets.conformance.case import Case, Given, Input, Steps, T, Tolerance, fixed

__all__ = ["attention_cases"]


def _steps(*parts: tuple[tuple[int, int, int], ...]) -> tuple[Steps, ...]:
    """Each step's (slot, first position, end)."""
    made = []
    for step in parts:
        positions = [position for _, start, stop in step for position in range(start, stop)]
        slots = [slot for slot, start, stop in step for _ in range(start, stop)]
        made.append(Steps(tuple(positions), tuple(slots), 1))
    return tuple(made)


_STEPS = _steps(
    ((1, 0, 40),),
    ((1, 40, 41), (3, 0, 9)),
    ((1, 41, 42), (3, 9, 10)),
    ((3, 10, 43), (1, 42, 57)),
    ((3, 30, 31),),  # going back
)
# By what the cache holds: equal numbers on both sides, whose products are summed in another order; codes are met in numbers of 16 bits.
_TOLERANCES = {
    KvFormat.f32: Tolerance(1e-4, 1e-4),
    KvFormat.f16: Tolerance(1e-3, 1e-3),
    KvFormat.bf16: Tolerance(1e-3, 1e-3),
    KvFormat.i8: Tolerance(5e-3, 5e-3),
    KvFormat.i4: Tolerance(5e-2, 5e-2),
    KvFormat.k8v4: Tolerance(5e-2, 5e-2),
    KvFormat.fp8: Tolerance(1e-2, 1e-2),
}


def attention_cases() -> Iterator[Case]:
    """Head layouts, masks and what goes into the scores, then every cache format."""
    sinks = fixed(np.linspace(0.1, 1.0, 6))
    yield _case("one head of keys a query head", (4, 4, 16, 16), KvFormat.f32, {})
    yield _case("grouped heads, k and v of other sizes", (6, 2, 24, 10), KvFormat.f32, {})
    yield _case("window and softcap", (6, 2, 24, 10), KvFormat.f32, {"window": 20, "softcap": 5.0})
    yield _case("chunks and sinks", (6, 2, 24, 10), KvFormat.f32, {"window": 16, "mask": "chunked"}, (sinks,))
    yield _case("slopes", (6, 2, 24, 10), KvFormat.f32, {}, (None, sinks))
    for held in (KvFormat.f16, KvFormat.i8, KvFormat.i4, KvFormat.k8v4, KvFormat.fp8):
        yield _case(f"KV in {held.value}", (8, 4, 40, 20), held, {})
    yield _case("integer scores", (8, 4, 40, 20), KvFormat.i8, {"scores": "i8"}, tolerance=Tolerance(2e-2, 2e-2))
    formats = (KvFormat.i8, KvFormat.f16, KvFormat.f32, KvFormat.i4)
    yield _case("heads of several formats", (8, 4, 40, 20), KvFormat.i8, {}, heads=formats, tolerance=_TOLERANCES[KvFormat.i4])


def _case(
    label: str,
    sizes: tuple[int, int, int, int],
    held: KvFormat,
    attrs: dict[str, Attr],
    more: tuple[Input, ...] = (),
    heads: tuple[KvFormat, ...] = (),
    tolerance: Tolerance | None = None,
) -> Case:
    """sizes: query heads, KV heads, dims of keys, dims of values."""
    query_heads, kv_heads, k_dim, v_dim = sizes
    inputs = (Given((1, T, query_heads, k_dim)), Given((1, T, kv_heads, k_dim)), Given((1, T, kv_heads, v_dim)), *more)
    window = attrs.get("window", 0)
    assert isinstance(window, int)
    return Case(
        "attention",
        label,
        inputs,
        {"scale": 0.2, "layer": 0, **attrs},
        tolerances=(tolerance or _TOLERANCES[held],),
        products=True,
        steps=_STEPS,
        layer=AttentionLayer(kv_heads, k_dim, v_dim, held, window, heads),
    )
