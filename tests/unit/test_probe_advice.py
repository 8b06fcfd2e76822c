"""Advice: every rule speaks where its threshold is passed, names what it is about, and is silent otherwise. Plots: sound markup."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from dataclasses import replace
from typing import Any

import pytest

from mixplan.compiler.probing.advice import advise
from mixplan.compiler.probing.html import _place
from mixplan.compiler.probing.plots import bars, heat_map, histogram, spark
from mixplan.compiler.probing.record import Advice, HeadRecord, LayerRecord, TensorRecord, WorkRecord
from mixplan.compiler.probing.sensitivity import Sensitivity
from mixplan.compiler.probing.work import stored_bits

TENSOR = TensorRecord(
    name="x",
    kind="activation",
    op="mul",
    count=1000,
    low=-3.0,
    high=3.0,
    mean=0.0,
    std=1.0,
    rms=1.0,
    skew=0.0,
    kurtosis=0.0,
    percentiles={"50": 0.7},
    zero_fraction=0.0,
    near_zero_fraction=0.0,
    long_run_fraction=0.0,
    longest_zero_run=0,
    channels=10,
    outlier_channels=(),
    outlier_count=0,
    channel_ratio=2.0,
    dead_channels=0,
    row_ratio=2.0,
    nonfinite=0,
)
GOOD = {"tensor": 38.0, "token": 40.0, "group": 44.0}
LAYER = LayerRecord("a", "linear", (), 8, 8, 64, "F32", "x", "a", WorkRecord(128, 320), WorkRecord(), 1.0, 0.5, 0.5, GOOD)
HEAD = HeadRecord(0, 0, 0, 1, 1, 1, 1, 1, 1, -5, 5, -5, 5, 10.0, 4.0)


def of_topic(topic: str, **given: Any) -> list[Advice]:
    parts = {"tensors": [TENSOR], "layers": [LAYER], "heads": [HEAD], "sensitivity": Sensitivity(), **given}
    return [one for one in advise(**parts) if one.topic == topic]


def losses(additive: bool = False, **by_layer: float) -> Sensitivity:
    bits = {name: {"W8A16": 8.0, "W4A16:g32": 4.5, "W3A16:g32": 3.5} for name in by_layer}
    rows = {name: {"W8A16": loss / 300, "W4A16:g32": loss, "W3A16:g32": loss * 5} for name, loss in by_layer.items()}
    return Sensitivity(schemes=("W8A16", "W4A16:g32", "W3A16:g32"), loss=rows, bits=bits, additive=additive)


def test_wide_and_narrow_layers() -> None:
    found = losses(a=1.0, b=1.0, c=1.0, head=9.0, small=0.1)
    (wide,) = of_topic("stay wide", sensitivity=found)
    assert wide.subjects == ("head",) and "W4A16:g32" in wide.text and "9 times in head" in wide.text
    first, second = of_topic("may shrink", sensitivity=found)
    assert first.subjects == ("small",) and second.subjects == ("small",) and "W3A16:g32" in second.text
    assert not of_topic("stay wide", sensitivity=losses(a=1.0, b=2.0)) and not of_topic("stay wide")


def test_losses_that_add_up_count_for_each_weight() -> None:
    """A layer of many weights may lose more."""
    layers = [replace(LAYER, name=name, parameters=size) for name, size in (("a", 64), ("b", 64), ("c", 64), ("large", 6400))]
    found = losses(additive=True, a=1.0, b=1.0, c=9.0, large=100.0)
    (wide,) = of_topic("stay wide", sensitivity=found, layers=layers)
    assert wide.subjects == ("c",) and "each of its weights" in wide.text


def test_int8_inputs() -> None:
    """Good inputs, ones that groups mend, ones that nothing mends, ones whose range a few tokens make."""
    layers = [
        LAYER,
        replace(LAYER, name="grouped", input_snr={"tensor": 18.0, "token": 20.0, "group": 40.0}),
        replace(LAYER, name="lost", input_snr={"tensor": 5.0, "token": 20.0, "group": 24.0}),
    ]
    grouped, lost, fine, static = of_topic("activations", layers=layers)
    assert grouped.subjects == ("grouped",) and "g32" in grouped.text
    assert lost.subjects == ("lost",) and "A16" in lost.text and "20 dB" in lost.text
    assert fine.subjects == ("a",) and "1 of 3 layers" in fine.text
    assert static.subjects == ("lost",) and "One scale" in static.text


@pytest.mark.parametrize(
    ("change", "topic", "words"),
    [
        ({"nonfinite": 3}, "broken", "NaN"),
        ({"channel_ratio": 50.0, "outlier_channels": (7,), "outlier_count": 1}, "outliers", "channel 7, 50 times"),
        ({"row_ratio": 300.0}, "outliers", "300 times"),
        ({"kurtosis": 1e4}, "outliers", "kurtosis"),
        ({"high": 1e5}, "range", "bf16"),
    ],
)
def test_tensors(change: dict[str, Any], topic: str, words: str) -> None:
    (advice,) = of_topic(topic, tensors=[replace(TENSOR, **change)])
    assert words in advice.text and advice.subjects == ("x",)
    assert not of_topic(topic)


def test_sparse_needs_all_three() -> None:
    """Skew, zeros in long runs, and a reader that waits for memory."""
    sparse = replace(TENSOR, skew=4.0, zero_fraction=0.8, long_run_fraction=0.7, longest_zero_run=90)
    (found,) = of_topic("sparse", tensors=[sparse])
    assert found.subjects == ("x", "a") and "truly sparse" in found.text and "90" in found.text
    for change in ({"skew": 2.9}, {"zero_fraction": 0.59, "long_run_fraction": 0.59}, {"long_run_fraction": 0.5}):
        (none,) = of_topic("sparse", tensors=[replace(sparse, **change)])
        assert "No activation" in none.text
    busy = replace(LAYER, decode=WorkRecord(320, 320))
    (weak,) = of_topic("sparse", tensors=[sparse], layers=[busy])
    assert "truly" not in weak.text and weak.subjects == ("x",)


def test_heads() -> None:
    wide = replace(HEAD, head=3, span=99.0)
    first, second = of_topic("attention", heads=[HEAD, wide])
    assert first.subjects == ("attention.0 head 3",) and "99" in first.text and "1 of 2" in second.text
    assert not of_topic("attention", heads=[])


def test_plots_are_sound_markup() -> None:
    """Whatever the names are."""
    name = '<b>&"x'
    drawn = [
        heat_map([name], ["0", name], {(name, "0"): 1.0, (name, name): float("nan")}, unit=name),
        heat_map(["a"], ["0"], {("a", "0"): 0.0, ("a", "1"): 5.0}, log=True),
        histogram([(0.5, 0, 3), (1.0, 2, 9)], {name: 0.7, "gone": 0.0}),
        spark([(0.5, 0, 3), (1.0, 2, 9)]),
        bars([(name, 2.0), ("zero", 0.0), ("nan", float("nan"))], unit="%"),
        bars([("a", 1e-3), ("b", 1.0)], log=True),
    ]
    for svg in drawn:
        assert ET.fromstring(str(svg)).tag == "svg"
    for nothing in (heat_map([], [], {}), histogram([], {}), spark([]), bars([("a", 0.0)])):
        assert not nothing


def test_places() -> None:
    assert _place("model.layers.12.self_attn.q_proj / rope") == ("self_attn.q_proj / rope", "12")
    assert _place("attention.3") == ("attention", "3")
    assert _place("lm_head") == ("lm_head", "")
    assert _place("transformer.h.0 / add (2)") == ("/ add (2)", "0")


def test_stored_bits() -> None:
    assert (stored_bits("BF16"), stored_bits("Q4_0"), stored_bits("Q8_0"), stored_bits("odd")) == (16, 4.5, 8.5, 32)
