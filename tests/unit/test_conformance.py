"""The conformance suite: sound targets pass it, and each way of being wrong is found."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from mixplan.cli import main
from mixplan.runtime.devices.reference import ReferenceDevice
from mixplan.runtime.dtypes import DType
from mixplan.runtime.errors import OptionError, UnsupportedError
from mixplan.runtime.hal import Array, Step
from mixplan.runtime.ops import OPS
from mixplan.runtime.plan_check import check_plan
from mixplan.targets.base import CompiledRegion, Support
from mixplan.targets.conformance import run
from mixplan.targets.conformance.case import EXACT, Fixed, Tolerance
from mixplan.targets.conformance.cases.table import cases_of
from mixplan.targets.conformance.compare import distance
from mixplan.targets.conformance.plans import case_plan
from mixplan.targets.conformance.run import run_conformance
from mixplan.targets.reference.target import ReferenceTarget


def test_every_op_has_cases_that_make_sound_plans() -> None:
    for op in OPS:
        cases = cases_of(op)
        assert cases, op
        assert len({case.label for case in cases}) == len(cases), op
        for case in cases:
            plan = case_plan(case, "reference")
            if not any(isinstance(given, Fixed) for given in case.inputs):
                check_plan(plan)
            assert len(case.tolerances) in (1, len(plan.nodes[-1].outputs))


def test_the_reference_conforms() -> None:
    results = run_conformance("reference", ["silu", "sort", "linear", "linear_q", "attention", "iota"])
    assert len(results) == sum(len(cases_of(op)) for op in ("silu", "sort", "linear", "linear_q", "attention", "iota"))
    assert {result.status for result in results} == {"passed"}


def test_the_cpu_conforms() -> None:
    results = run_conformance("cpu", ["rope"])
    assert {result.status for result in results} == {"passed"}, [result for result in results if result.status != "passed"]


class _Target(ReferenceTarget):
    """Does as the reference, but for what a test changes."""

    name = "odd"


class _Device(ReferenceDevice):
    name = "odd"
    change: Callable[[dict[int, Array]], Any] = staticmethod(lambda outputs: outputs)

    def load(self, *arguments: Any) -> Any:
        region, change = super().load(*arguments), type(self).change

        class Changed:
            isa = "odd"
            close, metrics = region.close, region.metrics

            def run(self, step: Step, inputs: Mapping[int, Array]) -> Any:
                return change(region.run(step, inputs))

        return Changed()


@pytest.fixture
def odd(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[type[_Target], type[_Device]]]:
    """A target and a device of one name, to be changed."""
    target, device = type("Odd", (_Target,), {}), type("OddDevice", (_Device,), {})
    real = run.get_target, run.create_device
    monkeypatch.setattr(run, "get_target", lambda name: target() if name == "odd" else real[0](name))
    monkeypatch.setattr(run, "create_device", lambda name, options: device(options) if name == "odd" else real[1](name, options))
    yield target, device


def _off(outputs: dict[int, Array]) -> dict[int, Array]:
    return {key: array * np.float32(1.0001) for key, array in outputs.items()}


def _raise(outputs: dict[int, Array]) -> dict[int, Array]:
    raise FloatingPointError("the chip is hot")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (_off, "times what is allowed"),
        (lambda made: {key: array.astype(np.float64) for key, array in made.items()}, "is float64 [1, 1, 37], not float32 [1, 1, 37]"),
        (lambda made: {key: array[..., :-1] for key, array in made.items()}, "is float32 [1, 1, 36], not float32 [1, 1, 37]"),
        (lambda made: {}, "run gave no array for output 'y0'"),
        (_raise, "run: FloatingPointError: the chip is hot"),
    ],
)
def test_wrong_results_are_found(odd: Any, change: Any, said: str) -> None:
    odd[1].change = staticmethod(change)
    first = run_conformance("odd", ["exp"])[0]
    assert (first.op, first.label, first.status) == ("exp", "f32 [1, T, 37]", "failed")
    assert said in first.reason


def test_wrong_only_with_a_tail_is_found(odd: Any) -> None:
    """Right for one token, wrong in the last of seven."""

    def change(made: dict[int, Array]) -> dict[int, Array]:
        return {key: np.where(np.arange(array.shape[0])[:, None] == 6, 0, array) for key, array in made.items()}

    odd[1].change = staticmethod(change)
    assert [result.status for result in run_conformance("odd", ["where"]) if result.label.startswith("i64")] == ["failed"]


def test_refusals_and_failures_of_the_compile_half(odd: Any) -> None:
    odd[0].supports = lambda self, node, values: Support(node.op != "neg", "no negative numbers")
    assert {(result.status, result.reason) for result in run_conformance("odd", ["neg"])} == {("refused", "no negative numbers")}

    def fails(self: Any, plan: Any, region: Any, options: Any) -> CompiledRegion:
        raise KeyError("abs")

    odd[0].compile = fails
    assert {(result.status, result.reason) for result in run_conformance("odd", ["abs"])} == {("failed", "compile: KeyError: 'abs'")}


def test_what_cannot_be_tested_is_an_error(odd: Any) -> None:
    with pytest.raises(OptionError, match=r"there is no op 'fft'.\nOps: neg, abs"):
        run_conformance("odd", ["fft"])
    odd[1].supported = lambda self: Support(False, "no such chip")
    with pytest.raises(UnsupportedError, match=r"The device 'odd' does not run on this machine: no such chip."):
        run_conformance("odd", ["abs"])


def test_the_command(odd: Any) -> None:
    odd[0].supports = lambda self, node, values: Support(node.op != "neg", "no negative numbers")
    done = CliRunner().invoke(main, ["targets", "--conformance", "odd", "--ops", "neg,exp"])
    assert done.exit_code == 0
    assert "6 cases: 2 passed, 0 failed, 4 not supported." in done.output and "no negative numbers" in done.output
    odd[1].change = staticmethod(_off)
    done = CliRunner().invoke(main, ["targets", "--conformance", "odd", "--ops", "neg,exp", "--json"])
    assert done.exit_code == 1
    said = json.loads(done.output)
    assert (said["target"], said["cases"], said["passed"], said["failed"], said["refused"]) == ("odd", 6, 0, 2, 4)
    assert [row["op"] for row in said["ops"]] == ["neg", "exp"] and said["ops"][1]["worst"] > 1
    assert CliRunner().invoke(main, ["targets", "--ops", "neg"]).exit_code == 2


def _d(got: Any, want: Any, tolerance: Tolerance, dtype: DType = DType.f32, factor: float = 0.0) -> float:
    return distance(np.asarray(got, dtype.numpy), np.asarray(want, dtype.numpy), dtype, tolerance, factor).ratio


def test_distances() -> None:
    nan, inf = float("nan"), float("inf")
    assert _d([nan, inf, -inf, 1], [nan, inf, -inf, 1], EXACT) == 0
    assert _d([inf], [1], Tolerance(1, 1)) == _d([nan], [1], Tolerance(1, 1)) == _d([1], [nan], Tolerance(1, 1)) == inf
    assert _d([1.5], [1], Tolerance(0, 1)) == 0.5
    assert _d([2**62 + 1], [2**62], EXACT, DType.i64) == inf
    assert _d([2**62], [2**62], EXACT, DType.i64) == 0
    assert _d([0x3F80], [0x3F81], Tolerance(2**-7), DType.bf16) == pytest.approx(1 / (1 + 2**-7))
    codes = Tolerance(step=1, share=0.1)
    assert _d([1] + [0] * 9, [0] * 10, codes, DType.i8) == 1
    assert _d([1, 1] + [0] * 8, [0] * 10, codes, DType.i8) > 1
    assert _d([2] + [0] * 9, [0] * 10, codes, DType.i8) == inf
    assert _d([1.001], [1], EXACT, factor=2**-9) < 1 < _d([1.1], [1], EXACT, factor=2**-9)
