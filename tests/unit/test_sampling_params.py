"""Sampling settings: what is allowed, what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from mixplan.runtime.errors import RequestError
from mixplan.runtime.sampling import SamplingParams


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"temperature": -0.1}, "temperature is -0.1; it must be 0"),
        ({"temperature": float("nan")}, "temperature is nan"),
        ({"temperature": float("inf")}, "temperature is inf"),
        ({"temperature": "hot"}, "temperature is 'hot'"),
        ({"top_k": -1}, "top_k is -1"),
        ({"top_k": 1.5}, "top_k is 1.5; it must be a whole number"),
        ({"top_p": 0.0}, "top_p is 0.0; it must be more than 0"),
        ({"top_p": 1.01}, "top_p is 1.01"),
        ({"min_p": 1.1}, "min_p is 1.1"),
        ({"min_p": -1}, "min_p is -1"),
        ({"repetition_penalty": 0.0}, "repetition_penalty is 0.0"),
        ({"seed": -1}, "seed is -1"),
        ({"seed": 2**64}, "seed is 18446744073709551616"),
        ({"seed": True}, "seed is True"),
        ({"max_tokens": 0}, "max_tokens is 0"),
        ({"stop": ("",)}, "not empty"),
        ({"stop": (3,)}, "stop holds"),
    ],
)
def test_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        SamplingParams(**settings)


def test_one_stop_string_or_several() -> None:
    assert SamplingParams(stop="END").stop == ("END",)  # type: ignore[arg-type]
    assert SamplingParams(stop=["a", "b"]).stop == ("a", "b")  # type: ignore[arg-type]


def test_the_model_has_defaults_that_a_request_overrides() -> None:
    model = {"temperature": 0.6, "top_k": 20.0, "top_p": 0.95}
    params = SamplingParams.from_defaults(model, top_p=0.5, seed=None)
    assert (params.temperature, params.top_k, params.top_p, params.seed) == (0.6, 20, 0.5, None)
    assert isinstance(params.top_k, int)


def test_unknown_setting() -> None:
    with pytest.raises(RequestError, match=r"no sampling setting named 'temprature'; there are .*temperature"):
        SamplingParams.from_defaults({}, temprature=1.0)
