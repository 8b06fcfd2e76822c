"""Devices are found by name, asked before use, and never replaced in silence."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mixplan.runtime import load, plugins
from mixplan.runtime.devices import registry
from mixplan.runtime.devices.cpu import CpuDevice
from mixplan.runtime.devices.reference import ReferenceDevice
from mixplan.runtime.errors import CapacityError, UnsupportedError
from mixplan.runtime.hal import DeviceOptions, Support
from mixplan.runtime.plugins import Plugin


class Absent(ReferenceDevice):
    """Hardware that this machine lacks."""

    name = "absent"

    def supported(self) -> Support:
        return Support(False, "no such chip")


class Picky(ReferenceDevice):
    """Hardware that refuses the second region."""

    name = "picky"

    def load(self, plan: Any, region_index: int, caches: Any) -> Any:
        if region_index == 1:
            raise UnsupportedError("The op 'attention' is too much for me.")
        return super().load(plan, region_index, caches)


@pytest.fixture
def devices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Devices of other packages, on a machine that the CPU device has no kernels for."""
    monkeypatch.setattr(CpuDevice, "supported", lambda self: Support(False, "no kernels"))
    here = {device.name: Plugin("device", device.name, f"{__name__}:{device.__name__}", "tests") for device in (Absent, Picky)}
    broken = Plugin("device", "broken", "mixplan_no_such_module:Device", "broken-package 1.0")
    monkeypatch.setattr(registry, "installed", lambda group, kind: {**here, "broken": broken})
    # Under --import-mode=importlib this module is not found by its name.
    real = plugins.importlib.import_module
    module = type("Module", (), {"Absent": Absent, "Picky": Picky})
    monkeypatch.setattr(plugins.importlib, "import_module", lambda name: module if name == __name__ else real(name))


@pytest.mark.usefixtures("devices")
@pytest.mark.parametrize(
    ("name", "reason"),
    [("absent", "no such chip"), ("unheard_of", "no device 'unheard_of'"), ("broken", "of the package broken-package 1.0")],
)
def test_falls_back_with_a_reason(toy: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str, reason: str) -> None:
    toy.write(tmp_path / "p", (name, name))
    with load(tmp_path / "p") as model:
        assert [(p.requested, p.device, p.isa) for p in model.placement] == [(name, "reference", "numpy")] * 2
        assert all(reason in p.reason for p in model.placement)
        model.step([1], [0], [0])
    record, cpu = caplog.records
    assert "the reference device, which is slow, instead of the cpu device: " in cpu.getMessage()
    assert (record.name, record.levelno) == ("mixplan.runtime", logging.WARNING)
    assert "2 of 2 regions" in record.getMessage()
    assert reason in record.getMessage()
    with pytest.raises(UnsupportedError, match=reason):
        load(tmp_path / "p", device=name)


@pytest.mark.usefixtures("devices")
def test_falls_back_for_one_region(toy: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    toy.write(tmp_path / "p", ("picky", "picky", "reference"))
    with load(tmp_path / "p") as model:
        assert [p.device for p in model.placement] == ["picky", "reference", "reference"]
        assert [p.reason for p in model.placement] == ["as the plan says", "The op 'attention' is too much for me.", "as the plan says"]
        assert [(entry.region, entry.failed) for entry in model.metrics().fallbacks] == [
            ("picky_1", "the picky device"),
            ("picky_1", "the cpu device"),
        ]
        np.testing.assert_allclose(model.step([1, 2], [0, 1], [0, 0]), toy.logits([1, 2])[-1:], atol=1e-5)
    assert "1 of 3 regions" in caplog.text


def test_the_cpu_comes_before_the_reference(toy: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    toy.write(tmp_path / "p", ("no_such_chip",))
    with load(tmp_path / "p") as model:
        assert [(p.requested, p.device) for p in model.placement] == [("no_such_chip", "cpu")]
        assert "There is no device 'no_such_chip'" in model.placement[0].reason
        np.testing.assert_allclose(model.step([1, 2], [0, 1], [0, 0]), toy.logits([1, 2])[-1:], atol=1e-5)
        assert [entry.taken for entry in model.metrics().fallbacks] == [f"kernels compiled here for {model.placement[0].isa}"]
    assert len(caplog.records) == 1


@pytest.mark.usefixtures("devices")
def test_asking_for_the_reference_is_no_fallback(toy: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    toy.write(tmp_path / "p", ("absent",))
    with load(tmp_path / "p", device="reference") as model:
        assert model.placement[0].reason == "as the caller asked"
    assert not caplog.records


def test_null_device(toy: Any, tmp_path: Path) -> None:
    toy.write(tmp_path / "p", ("null", "null"))
    with load(tmp_path / "p") as model:
        assert not model.step([1, 2], [0, 1], [0, 0], "all").any()


def test_unknown_device_of_the_caller(toy_plan: Path) -> None:
    with pytest.raises(UnsupportedError, match="there are cpu, reference, null"):
        load(toy_plan, device="gpu9")


def test_builtin_devices_support_this_machine() -> None:
    for name in ("reference", "null"):
        device = registry.create_device(name, DeviceOptions())
        assert device.name == name
        assert device.supported().ok


def test_kv_cache_that_does_not_fit(toy: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    toy.write(tmp_path / "p")

    def refuse(*_: Any) -> Any:
        raise MemoryError

    monkeypatch.setattr("mixplan.runtime.devices.reference_kv.np.zeros", refuse)
    with pytest.raises(CapacityError, match="no memory for 256 tokens"):
        load(tmp_path / "p")
