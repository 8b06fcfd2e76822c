"""Another package's device that breaks its promises: told as its own fault, by device and region, or replaced while nothing has run."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from mixplan.runtime import load
from mixplan.runtime.devices import registry
from mixplan.runtime.devices.reference import ReferenceDevice
from mixplan.runtime.errors import PluginError
from mixplan.runtime.hal import Array, Step, Support

Change = Callable[[dict[int, Array]], Any]


class Odd(ReferenceDevice):
    """Computes what the reference does; `change` then does something to it."""

    name = "odd"
    change: Change

    def load(self, *arguments: Any) -> Any:
        region = super().load(*arguments)

        def run(step: Step, inputs: Mapping[int, Array]) -> Any:
            return type(self).change(region.run(step, inputs))

        return SimpleNamespace(run=run, close=self.closed, metrics=lambda: {"fine": 1, "no_number": "x"}, isa="odd")

    def closed(self) -> None:
        raise RuntimeError("stuck")


@pytest.fixture
def odd(monkeypatch: pytest.MonkeyPatch) -> Callable[..., type[Odd]]:
    def make(**members: Any) -> type[Odd]:
        kind = type("Odd", (Odd,), members)
        real = registry.create_device
        monkeypatch.setattr("mixplan.runtime.placement.create_device", lambda n, options: kind(options) if n == "odd" else real(n, options))
        return kind

    return make


def _step(model: Any) -> Array:
    found: Array = model.step([3, 4, 5], [0, 1, 2], [0, 0, 0], "all")
    return found


def _raises(made: dict[int, Array]) -> Any:
    raise ValueError("bus error")


CASES: list[tuple[Change, str]] = [
    (_raises, "raised ValueError: bus error"),
    (lambda made: None, "gave NoneType, not the arrays by value index"),
    (lambda made: {}, r"gave no '\w+' \(value \d+\)"),
    (
        lambda made: {k: v[..., :-1] for k, v in made.items()},
        r"gave '\w+' as float32 \[.*; the plan declares f32 \[",
    ),
    (lambda made: {k: v.astype(np.float64) for k, v in made.items()}, r"as float64 .*; the plan declares f32"),
    (lambda made: {k: v.tolist() for k, v in made.items()}, r"as list; the plan declares f32"),
]


@pytest.mark.parametrize(("change", "message"), CASES)
def test_a_broken_promise_names_device_and_region(
    toy: Any, tmp_path: Path, odd: Callable[..., type[Odd]], change: Change, message: str, caplog: pytest.LogCaptureFixture
) -> None:
    toy.write(tmp_path / "p", ("reference", "odd", "reference"))
    odd(change=staticmethod(change))
    with load(tmp_path / "p") as model:
        with pytest.raises(PluginError, match=message) as caught:
            _step(model)
        assert "The device 'odd' (" in caught.value.message and "in region 'odd_1'" in caught.value.message
        assert model.length(0) == 0
        assert model.metrics().regions["odd_1"]["calls"] == 0
    # Closing failed too, which hid nothing.
    assert [record.levelno for record in caplog.records] == [logging.WARNING] and "could not be closed: RuntimeError: stuck" in caplog.text


def test_what_is_sound_goes_through(toy: Any, tmp_path: Path, odd: Callable[..., type[Odd]]) -> None:
    toy.write(tmp_path / "p", ("odd",))
    odd(change=staticmethod(lambda made: {k: np.asfortranarray(v) for k, v in made.items()}))
    with load(tmp_path / "p") as model:
        np.testing.assert_allclose(_step(model), toy.logits([3, 4, 5]), atol=1e-5)


@pytest.mark.parametrize(
    ("members", "reason"),
    [
        ({"load": lambda *a: None}, "gave NoneType for region 'odd_0', which lacks run, close, metrics, isa"),
        ({"supported": lambda self: "yes"}, "says 'yes' of whether it can work here"),
        ({"supported": lambda self: Support(False, "no chip")}, "no chip"),
    ],
)
def test_what_is_no_region_is_replaced(toy: Any, tmp_path: Path, odd: Callable[..., type[Odd]], members: Any, reason: str) -> None:
    toy.write(tmp_path / "p", ("odd",))
    odd(**members)
    with load(tmp_path / "p") as model:
        assert reason in model.metrics().fallbacks[0].reason and model.placement[0].device == "cpu"
        np.testing.assert_allclose(_step(model), toy.logits([3, 4, 5]), atol=1e-4)
