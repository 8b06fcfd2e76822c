"""The conformance suite's own cases of some ops on the NPU target, through its compile half and its device."""

from __future__ import annotations

from mixplan.targets.conformance.run import run_conformance

OPS = ("silu", "floor_div", "remainder", "scatter", "linear", "linear_q", "grouped_linear", "rms_norm_quant", "attention")


def test_cases_pass_or_are_refused_with_a_reason() -> None:
    results = run_conformance("npu", OPS)
    failed = [(result.op, result.label, result.reason) for result in results if result.status == "failed"]
    assert not failed
    assert {result.op for result in results if result.status == "passed"} == set(OPS)
    assert all(result.reason for result in results if result.status == "refused")
