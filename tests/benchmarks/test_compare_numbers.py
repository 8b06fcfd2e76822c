"""The comparison's arithmetic: ratios, medians, perplexity, figures of measures, and the GGUF's order of rows."""

from __future__ import annotations

import math

import numpy as np
import pytest

from benchmarks.compare.convert.llama import gguf_name, interleave_rotary_rows
from benchmarks.compare.results import StackResult, perplexity, ratio_of
from benchmarks.compare.table import format_figure
from benchmarks.compare.workers.protocol import negative_log_likelihood
from benchmarks.compare.workload import MEASURES, default_text, figure, quality_windows, request

BY_NAME = {measure.name: measure for measure in MEASURES}


def test_ratios_are_taken_within_rounds():
    ratio = ratio_of([200.0, 100.0, 330.0], [100.0, 100.0, 110.0], more_is_better=True)
    assert (ratio.median, ratio.least, ratio.most) == (2.0, 1.0, 3.0)
    assert ratio_of([0.2], [0.6], more_is_better=False).median == pytest.approx(3.0)
    assert ratio_of([math.nan, 50.0], [10.0, 10.0], more_is_better=True).median == 5.0
    assert math.isnan(ratio_of([math.nan], [1.0], more_is_better=True).median)


def test_medians_and_spread_leave_out_failed_launches():
    stack = StackResult("a", "b", 4, {"decode": [90.0, math.nan, 110.0]})
    assert stack.median("decode") == 100.0
    assert stack.spread("decode") == pytest.approx(0.2)
    assert math.isnan(stack.median("prefill_512"))


def test_perplexity_is_that_of_all_predicted_tokens():
    logits = np.log(np.array([[0.5, 0.25, 0.25], [0.1, 0.8, 0.1], [1.0, 1.0, 1.0]], np.float32))
    loss = negative_log_likelihood(logits, [2, 0, 1])
    assert loss == pytest.approx(-math.log(0.5) - math.log(0.8), abs=1e-6)
    assert perplexity([loss], [2]) == pytest.approx(1 / math.sqrt(0.4), abs=1e-5)
    assert math.isnan(perplexity([], []))


def test_figures_of_measures():
    assert figure(BY_NAME["prefill_512"], [1.0, 0.5, 0.4]) == 1024.0
    assert figure(BY_NAME["decode"], [0.01, 0.03]) == pytest.approx(50.0)  # a slow step counts in full
    assert figure(BY_NAME["batch_16"], [0.1, 0.1]) == pytest.approx(160.0)
    assert figure(BY_NAME["ttft_128"], [0.3, 0.1, 0.2]) == 0.2


def test_requests_cut_the_same_ids_for_everyone():
    ids = list(range(100_000))
    assert request(BY_NAME["decode_4096"], ids) == {"do": "decode", "ids": ids[:4096], "steps": 32}
    prompts = request(BY_NAME["batch_32"], ids)["prompts"]
    assert len(prompts) == 32 and prompts[1] == ids[128:256]
    windows = quality_windows(ids)
    assert len(windows) == 40 and windows[2] == ids[1024:1536]


def test_the_default_text_is_long_enough():
    assert len(default_text()) > 300_000


def test_units_in_tables():
    assert format_figure(1234.5, "tok/s") == "1234"
    assert format_figure(12.34, "tok/s") == "12.3"
    assert format_figure(0.25, "s") == "250 ms"
    assert format_figure(math.nan, "s") == "-"
    assert format_figure(0.017, "of the step") == "1.7%"


def _turned(vector, position, order):
    """Rotary embedding of one head: `order` lists the pairs of rows that are turned together."""
    out = vector.copy()
    for number, (a, b) in enumerate(order):
        angle = position / 100.0 ** (2 * number / len(vector))
        out[a] = vector[a] * np.cos(angle) - vector[b] * np.sin(angle)
        out[b] = vector[a] * np.sin(angle) + vector[b] * np.cos(angle)
    return out


def test_rows_in_llama_order_give_the_same_scores():
    rng, heads, size, hidden = np.random.default_rng(0), 2, 8, 16
    query, key = rng.normal(size=(2, heads * size, hidden)).astype(np.float32)
    x, y = rng.normal(size=(2, hidden))
    half, neighbours = [(i, i + size // 2) for i in range(size // 2)], [(2 * i, 2 * i + 1) for i in range(size // 2)]
    turned_q, turned_k = interleave_rotary_rows(query, heads), interleave_rotary_rows(key, heads)
    for head in range(heads):
        rows = slice(head * size, (head + 1) * size)
        theirs = _turned(query[rows] @ x, 5, half) @ _turned(key[rows] @ y, 3, half)
        ours = _turned(turned_q[rows] @ x, 5, neighbours) @ _turned(turned_k[rows] @ y, 3, neighbours)
        assert ours == pytest.approx(theirs, rel=1e-5)


def test_tensor_names():
    assert gguf_name("model.layers.12.self_attn.q_proj.weight") == "blk.12.attn_q.weight"
    assert gguf_name("lm_head.weight") == "output.weight"
    with pytest.raises(SystemExit, match="no tensor"):
        gguf_name("model.layers.0.self_attn.q_proj.bias")
