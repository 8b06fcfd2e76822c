"""Kernels that cannot be loaded and devices out of memory: the next implementation takes over, once in the log, and results stay right."""

from __future__ import annotations

import _ctypes
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mixplan.runtime import load
from mixplan.runtime.devices import cpu, cpu_decode, cpu_library, registry
from mixplan.runtime.devices.cpu_info import runnable_levels
from mixplan.runtime.devices.elf import elf_problem
from mixplan.runtime.devices.reference import ReferenceDevice
from mixplan.runtime.errors import CapacityError, FallbackError, PlanError, UnsupportedError
from mixplan.runtime.fallbacks import Fallback
from mixplan.runtime.hal import Array, Step
from mixplan.targets.base import CompileOptions
from mixplan.targets.cpu.target import CpuTarget

TOKENS = [3, 14, 15, 9, 26, 5]
TOLERANCE = 2e-5
BEST, NEXT = runnable_levels()[0], "portable" if "portable" in runnable_levels() else runnable_levels()[-1]
CpuPlan = Callable[..., Path]


@pytest.fixture
def kernels(toy: Any) -> Callable[[str], bytes]:
    """A level's sound library for the toy decoder."""

    def make(level: str) -> bytes:
        builder, logits = toy.build(("cpu",))
        plan = builder.plan(logits)
        return CpuTarget().compile(plan, plan.regions[0], CompileOptions((level,))).kernels[level]

    return make


@pytest.fixture
def no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*arguments: Any) -> Any:
        raise UnsupportedError("There is no compiler.")

    monkeypatch.setattr(cpu_library, "_compiled", fails)


def _right(model: Any, toy: Any, sequence: int = 0) -> None:
    got = model.step(TOKENS, list(range(len(TOKENS))), [sequence] * len(TOKENS), "all")
    np.testing.assert_allclose(got, toy.logits(TOKENS), atol=TOLERANCE)


def _other_machine(data: bytes) -> bytes:
    return data[:18] + (183 if data[18] == 62 else 62).to_bytes(2, "little") + data[20:]


BROKEN = [
    (lambda data: b"", "it is no ELF file"),
    (lambda data: b"not a library at all" * 100, "it is no ELF file"),
    (lambda data: b"\x7fELF but no library", "it is cut short: 19 bytes"),
    # The system's loader would map this one, and the process would die.
    (lambda data: data[: len(data) // 2], "it is cut short"),
    (lambda data: data[:4] + b"\x01" + data[5:], "it is no 64-bit little-endian library"),
    (_other_machine, "and this machine is"),
    (lambda data: data[:16] + b"\x02\x00" + data[18:], "it is no shared library"),
    (lambda data: Path(_ctypes.__file__).read_bytes(), "are not a library of mixplan"),
]


@pytest.mark.parametrize(("break_it", "reason"), BROKEN)
def test_a_broken_kernel_falls_to_the_next_level(
    toy: Any, cpu_plan: CpuPlan, kernels: Any, no_compiler: None, caplog: pytest.LogCaptureFixture, break_it: Any, reason: str
) -> None:
    if BEST == NEXT:
        pytest.skip("this CPU runs one level only")
    sound = kernels(NEXT)
    path = cpu_plan((), {BEST: break_it(sound), NEXT: sound})
    with load(path, trust=True) as model:
        assert [(place.device, place.isa) for place in model.placement] == [("cpu", NEXT)]
        _right(model, toy)
        _right(model, toy, 1)
        (fallback,) = model.metrics().fallbacks
        assert model.metrics().to_dict()["fallbacks"][0]["failed"] == fallback.failed
    assert (fallback.region, fallback.failed, fallback.taken) == ("cpu_0", f"the plan's {BEST} kernels", f"the plan's {NEXT} kernels")
    assert reason in fallback.reason
    (record,) = caplog.records
    assert (record.name, record.levelno) == ("mixplan.runtime", logging.WARNING)
    assert f"1 of 1 regions: the plan's {NEXT} kernels instead of the plan's {BEST} kernels: " in record.getMessage()
    with pytest.raises(FallbackError, match=rf"Region 'cpu_0': the plan's {BEST} kernels cannot be used, and strict forbids") as caught:
        load(path, trust=True, strict=True)
    assert reason in caught.value.message and "without strict" in str(caught.value.hint)


def test_broken_kernels_are_compiled_anew(toy: Any, cpu_plan: CpuPlan, kernels: Any) -> None:
    with load(cpu_plan((), {BEST: kernels(BEST)[:5000]}), trust=True, device="cpu") as model:
        assert model.placement[0].isa == BEST
        assert model.metrics().fallbacks[0].taken == f"kernels compiled here for {BEST}"
        _right(model, toy)


def test_kernels_of_another_plan_are_not_used(toy: Any, make_toy: Any, cpu_plan: CpuPlan) -> None:
    other, logits = make_toy().build(("cpu",), max_step_tokens=32)
    plan = other.plan(logits)
    foreign = CpuTarget().compile(plan, plan.regions[0], CompileOptions((BEST,))).kernels
    path = cpu_plan((), foreign)
    with load(path, trust=True) as model:
        assert "do not belong to it" in model.metrics().fallbacks[0].reason
        _right(model, toy)


def test_a_damaged_kernel_cache_heals(toy: Any, cpu_plan: CpuPlan, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = cpu_plan(())
    real, made = cpu_library._compiled, []

    def compiled(*arguments: Any) -> Path:
        found = real(*arguments)
        copy = tmp_path / "copy.so"
        copy.write_bytes(found.read_bytes()[: 3000 if not made else None])
        made.append(copy)
        return copy

    monkeypatch.setattr(cpu_library, "_compiled", compiled)
    with load(path, strict=True) as model:
        assert model.placement[0].device == "cpu" and model.metrics().fallbacks == ()
        _right(model, toy)
    assert len(made) == 2


def test_at_the_end_is_the_reference(toy: Any, cpu_plan: CpuPlan, no_compiler: None, caplog: pytest.LogCaptureFixture) -> None:
    path = cpu_plan((), {BEST: b"garbage"})
    with load(path, trust=True) as model:
        assert model.placement[0].device == "reference"
        _right(model, toy)
        (fallback,) = model.metrics().fallbacks
        assert (fallback.failed, fallback.taken) == ("the cpu device", "the reference device")
        assert "it is no ELF file" in fallback.reason and "There is no compiler" in fallback.reason
    assert len(caplog.records) == 1 and "which is slow, instead of the cpu device" in caplog.text
    for options in ({"device": "cpu"}, {"strict": True}):
        with pytest.raises(UnsupportedError, match="it is no ELF file"):
            load(path, trust=True, **options)


@pytest.mark.parametrize("error", [CapacityError("4096 bytes for the arena cannot be had."), MemoryError()])
def test_no_memory_at_load(
    toy: Any, cpu_plan: CpuPlan, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    def reserve(size: int, what: str) -> Any:
        raise error

    path = cpu_plan((BEST,))
    monkeypatch.setattr(cpu, "reserve", reserve)
    with load(path, trust=True) as model:
        assert model.placement[0].device == "reference"
        _right(model, toy)
        assert "arena" in model.metrics().fallbacks[0].reason or "no memory" in model.metrics().fallbacks[0].reason
    assert len(caplog.records) == 1
    with pytest.raises(FallbackError, match="the cpu device cannot be used"):
        load(path, trust=True, strict=True)
    with pytest.raises(CapacityError):
        load(path, trust=True, device="cpu")


class Tight(ReferenceDevice):
    """A device that computes what the reference does, until it runs out of memory in step `fails_at`."""

    name = "tight"
    fails_at = 0

    def load(self, *arguments: Any) -> Any:
        region, fails_at = super().load(*arguments), type(self).fails_at

        class Counting:
            isa = "tight"
            close, metrics = region.close, region.metrics
            steps = 0

            def run(self, step: Step, inputs: Mapping[int, Array]) -> dict[int, Array]:
                self.steps += 1
                if self.steps > fails_at:
                    raise MemoryError("no room on the chip")
                return region.run(step, inputs)

        return Counting()


@pytest.fixture
def tight(monkeypatch: pytest.MonkeyPatch) -> type[Tight]:
    real = registry.create_device
    kind = type("Tight", (Tight,), {})
    monkeypatch.setattr("mixplan.runtime.placement.create_device", lambda n, options: kind(options) if n == "tight" else real(n, options))
    return kind


def test_no_memory_in_a_step(toy: Any, tmp_path: Path, tight: type[Tight], caplog: pytest.LogCaptureFixture) -> None:
    """The last region computes the MLP and the logits: it remembers nothing, so it can move at any time."""
    toy.write(tmp_path / "p", ("reference", "reference", "tight"))
    tight.fails_at = 1
    with load(tmp_path / "p") as model:
        _right(model, toy, 0)
        assert model.metrics().fallbacks == () and not caplog.records
        for sequence in (1, 2, 3):
            _right(model, toy, sequence)
        taken = f"kernels compiled here for {BEST}"
        assert model.metrics().fallbacks == (Fallback("tight_2", "the tight device", taken, "no room on the chip"),)
        assert [place.device for place in model.placement] == ["reference", "reference", "cpu"]
    assert len(caplog.records) == 1
    with load(tmp_path / "p", strict=True) as model:
        _right(model, toy, 0)
        with pytest.raises(FallbackError, match=r"Region 'tight_2': the tight device cannot be used.*no room on the chip"):
            _right(model, toy, 1)
        assert model.length(1) == 0
    with load(tmp_path / "p", device="tight") as model, pytest.raises(CapacityError, match="no room on the chip"):
        _right(model, toy, 0)
        _right(model, toy, 1)


def test_keys_and_values_are_made_again(toy: Any, tmp_path: Path, tight: type[Tight], caplog: pytest.LogCaptureFixture) -> None:
    """A region with attention moves too: the next device gets the tokens of all sequences, in steps no longer than the model takes."""
    toy.write(tmp_path / "p", ("tight",))
    longer = [*TOKENS, 7, 1, 30]
    for fails_at in (0, 1, 2, 3):
        tight.fails_at = fails_at
        caplog.clear()
        with load(tmp_path / "p", max_step_tokens=4) as model:
            for sequence in (5, 6):
                model.prefill(TOKENS, sequence)
            model.truncate(6, 3)
            model.prefill(TOKENS[3:], 6)
            got = model.step(longer[6:], [6, 7, 8], [6] * 3, "all")
            np.testing.assert_allclose(got, toy.logits(longer)[6:], atol=TOLERANCE)
            assert model.placement[0].device == "cpu" and "no room on the chip" in model.placement[0].reason
            # Greedy tokens in the short way of the device that took over, from what it was given.
            for sequence, tokens in ((5, TOKENS), (6, longer)):
                first = int(toy.logits(tokens)[-1].argmax())
                second = model.decode_greedy([first], [sequence])
                assert second == [int(toy.logits([*tokens, first])[-1].argmax())]
            assert len(model.metrics().fallbacks) == len(caplog.records) == 1


@pytest.mark.parametrize("way", ["run", "run_steps"])
def test_no_memory_in_a_decode_step(toy: Any, cpu_plan: CpuPlan, monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    def fails(*arguments: Any) -> Any:
        raise MemoryError("no room for scratch")

    with load(cpu_plan((BEST,))) as model:
        _right(model, toy, 3)
        _right(model, toy, 1)
        monkeypatch.setattr(cpu_decode.CpuDecoder, way, fails)
        expected = toy.logits([*TOKENS, 8])[-1]
        if way == "run":
            np.testing.assert_allclose(model.decode([8, 8], [1, 3], lambda rows: rows.rows)[1], expected, atol=TOLERANCE)
        else:
            assert model.decode_greedy([8, 8], [1, 3]) == [int(expected.argmax())] * 2
        assert model.placement[0].device == "reference" and model.length(1) == model.length(3) == len(TOKENS) + 1
        assert model.metrics().fallbacks[0].reason == "no room for scratch"


def test_what_cannot_be_made_again_is_not_kept(toy: Any, tmp_path: Path, tight: type[Tight], monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no device is left, sequences are empty, never half of what they were."""
    toy.write(tmp_path / "p", ("tight",))
    tight.fails_at = 1
    none: Any = type("None", (Tight,), {})
    monkeypatch.setattr("mixplan.runtime.placement.create_device", lambda name, options: (tight if name == "tight" else none)(options))
    with load(tmp_path / "p") as model:
        _right(model, toy, 0)
        with pytest.raises(CapacityError, match="no room on the chip"):
            _right(model, toy, 1)
        assert model.length(0) == 0 and model.length(1) == 0 and model.metrics().kv_pages_used == 0
    with load(tmp_path / "p", device="tight") as model:
        _right(model, toy, 0)
        with pytest.raises(CapacityError, match="no room on the chip"):
            _right(model, toy, 1)
        assert model.length(0) == len(TOKENS) and model.length(1) == 0


def test_sound_libraries_have_no_problem(kernels: Any, tmp_path: Path) -> None:
    (tmp_path / "k.so").write_bytes(kernels(NEXT))
    assert elf_problem(str(tmp_path / "k.so")) == ""
    assert elf_problem(_ctypes.__file__) == ""


def test_no_cut_of_a_library_gets_through(kernels: Any, tmp_path: Path) -> None:
    """Whatever is left after a cut inside of what the loader maps is refused."""
    data = kernels(NEXT)
    for size in (0, 3, 17, 63, 64, 100, 1000, len(data) // 4, len(data) // 2):
        (tmp_path / "k.so").write_bytes(data[:size])
        assert elf_problem(str(tmp_path / "k.so")), size


@pytest.mark.parametrize("where", ["supported", "load"])
def test_another_packages_device_may_raise_anything(
    toy: Any, tmp_path: Path, tight: type[Tight], where: str, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(self: Any, *arguments: Any) -> Any:
        raise ZeroDivisionError("oops")

    setattr(tight, where, fails)
    toy.write(tmp_path / "p", ("tight", "reference", "tight"))
    with load(tmp_path / "p") as model:
        _right(model, toy)
        assert [entry.region for entry in model.metrics().fallbacks] == ["tight_0", "tight_2"]
    assert all("ZeroDivisionError: oops" in record.getMessage() for record in caplog.records)


def test_a_file_that_was_changed_is_no_fallback(cpu_plan: CpuPlan, kernels: Any) -> None:
    """What the manifest does not vouch for is refused, not replaced."""
    path = cpu_plan((BEST,))
    kernel = path / f"kernels/{BEST}.so"
    kernel.write_bytes(bytes(kernel.stat().st_size))
    for options in ({}, {"strict": True}):
        with pytest.raises(PlanError, match="does not match its SHA-256"):
            load(path, trust=True, **options)
