"""What may be promised, how it is written, and what is then minimised under what."""

from __future__ import annotations

from typing import Any

import pytest

from mixplan.compiler.search.candidates import default_candidates, parse_candidates, runnable, split_candidates
from mixplan.compiler.search.promise import Promise, parse_promise
from mixplan.compiler.search.request import parse_request
from mixplan.passes.precision.schemes import parse_scheme
from mixplan.runtime.errors import OptionError


def _promise(**options: Any) -> Promise:
    found = parse_promise(**options)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("options", "name", "value"),
    [
        ({"bits": "4.5"}, "bits", 4.5),
        ({"bits": 5}, "bits", 5.0),
        ({"max_size": "90MB"}, "size", 90e6),
        ({"max_size": "1.5 GiB"}, "size", 1.5 * 2**30),
        ({"max_size": "700kb"}, "size", 700e3),
        ({"max_size": 12345}, "size", 12345.0),
        ({"max_loss": "1%"}, "loss", 0.01),
        ({"max_loss": 0.02}, "loss", 0.02),
        ({"max_kld": "2e-2"}, "kld", 0.02),
        ({"max_latency": "5ms"}, "latency", 0.005),
        ({"max_latency": "250us"}, "latency", 250e-6),
        ({"max_latency": 0.01}, "latency", 0.01),
    ],
)
def test_figures(options: dict[str, Any], name: str, value: float) -> None:
    promise = _promise(**options)
    assert dict(promise.limits) == {name: pytest.approx(value)}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"bits": "many"}, "--bits is 'many'; it is written as 4.5"),
        ({"bits": 33}, "at most 32"),
        ({"bits": 0}, "must be more than 0"),
        ({"bits": "4.5MB"}, "a number of bits per weight"),
        ({"max_size": "90 parsecs"}, "units of size are B, KB, MB, GB, KIB, MIB, GIB"),
        ({"max_size": "-1MB"}, "written as 90MB"),
        ({"max_loss": "1"}, "such as 1% or 0.01"),
        ({"max_loss": 5.0}, "such as 1% or 0.01"),
        ({"max_kld": "0.02 bits"}, "a number of nats"),
        ({"max_kld": float("nan")}, "must be more than 0"),
        ({"max_latency": "5"}, "needs a unit: s, ms, us"),
        ({"bits": 4, "max_kld": 1, "max_loss": "1%"}, "at most two promises"),
        ({"bits": 4, "batch": 0}, "batch is 0"),
        ({"bits": 4, "context": 1.5}, "context is 1.5"),
    ],
)
def test_figures_that_are_none(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError) as caught:
        parse_promise(**options)
    assert message in str(caught.value)


def test_nothing_promised() -> None:
    assert parse_promise() is None


@pytest.mark.parametrize(
    ("options", "objective", "bounds"),
    [
        ({"bits": 4.5}, "kld", ("bits",)),
        ({"max_latency": "5ms"}, "kld", ("latency",)),
        ({"bits": 4.5, "max_latency": "5ms"}, "kld", ("bits", "latency")),
        ({"max_kld": 0.02}, "bits", ("kld",)),
        ({"max_loss": "1%", "max_kld": 0.02}, "bits", ("loss", "kld")),
        ({"max_loss": "1%", "max_latency": "5ms"}, "latency", ("loss",)),
        ({"max_kld": 0.02, "max_size": "90MB"}, "size", ("kld",)),
    ],
)
def test_which_is_the_limit_and_which_the_objective(options: dict[str, Any], objective: str, bounds: tuple[str, ...]) -> None:
    promise = _promise(**options)
    assert (promise.objective, promise.bounds) == (objective, bounds)


def test_label_is_a_file_name() -> None:
    assert _promise(bits=4.5).label == "4.5bits"
    assert _promise(max_loss="1 %", max_latency="5 ms").label == "loss1pct-latency5ms"


def test_default_menus() -> None:
    names = [str(scheme) for scheme in default_candidates(_promise(bits=4.5))]
    assert "W3A16:g64,nl,s8" in names and "BF16" in names and not any("A8" in name for name in names)
    assert not any(name.startswith(("W2", "W3")) for name in map(str, default_candidates(_promise(bits=8.5))))
    assert "W4A8:g32,nl,s8" in map(str, default_candidates(_promise(max_latency="5ms")))


def test_candidates_as_they_are_written() -> None:
    assert split_candidates("W4A16:g32,asym,W8A16 BF16,W3A16,nl") == ["W4A16:g32,asym", "W8A16", "BF16", "W3A16:nl"]
    assert [str(one) for one in parse_candidates(["W4A16", "W8A16"], group_size=64)] == ["W4A16:g64", "W8A16"]
    for texts, message in ((["W4A16", "w4a16"], "listed twice"), ([], "is empty"), (["W7A16"], "'W7A16' is not known")):
        with pytest.raises(OptionError, match=message):
            parse_candidates(texts)


def test_only_what_runs() -> None:
    schemes = parse_candidates(["W4A16", "W8A16"])
    assert runnable(schemes, ("i8",), "cpu", chosen=False) == (parse_scheme("W8A16"),)
    with pytest.raises(OptionError, match="Candidate W4A16:g128 has no kernel on target cpu"):
        runnable(schemes, ("i8",), "cpu", chosen=True)


_NOTHING: dict[str, Any] = {
    **dict.fromkeys(("text", "eval_text", "bits", "max_size", "max_loss", "max_kld", "max_latency", "candidates", "scheme", "sensitivity")),
    **dict.fromkeys(("pins", "excludes", "overrides"), ()),
    "batch": 1,
    "context": 512,
    "group_size": 32,
    "symmetric": True,
}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"eval_text": [1, 2]}, "eval_text was given, and nothing is promised"),
        ({"bits": 4.5, "text": [1], "quantizer": "clip"}, "quantizer clip was given with a promise"),
        ({"pins": ["a=W8A16"]}, "pins was given, and nothing is promised"),
        ({"candidates": ["W4A16"]}, "candidates was given, and nothing is promised"),
        ({"excludes": ["a"]}, "excludes was given, and nothing is promised"),
        ({"bits": 4.5}, "--bits 4.5 needs a text to measure on"),
        ({"bits": 4.5, "text": "/no/such/text"}, "text /no/such/text is not a file"),
        ({"bits": 4.5, "text": [1], "eval_text": "/no/such"}, "eval_text /no/such is not a file"),
        ({"bits": 4.5, "text": [1], "scheme": "W4A8"}, "scheme W4A8 and a promise were given"),
        ({"bits": 4.5, "text": [1], "excludes": ["re:("]}, "not a regular expression"),
        ({"bits": 4.5, "text": [1], "excludes": ["re:"]}, "not of the form LAYER or re:PATTERN"),
        ({"bits": 4.5, "text": [1], "pins": ["W8A16"]}, "not of the form LAYER=SCHEME"),
    ],
)
def test_options_that_do_not_go_together(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError) as caught:
        parse_request(**{**_NOTHING, **options})
    assert message in str(caught.value)


def test_overrides_are_pins() -> None:
    found = parse_request(**{**_NOTHING, "bits": 4.5, "text": [1], "pins": ["re:q=W8A16"], "overrides": ["k=W4A16"]})
    assert found is not None and [pin.text for pin in found.pins] == ["k=W4A16:g32", "re:q=W8A16"]
    assert found.facts["promise"] == "--bits 4.5" and "context" not in found.facts
    assert parse_request(**_NOTHING) is None
