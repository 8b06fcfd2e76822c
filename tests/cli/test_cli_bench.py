"""`mixplan bench`: what it prints, what it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from mixplan.cli import main
from mixplan.runtime.bench.report import SCHEMA
from mixplan.targets.commands import meter as meter_module

_FEW = ("--requests", "6", "--concurrency", "5", "--rounds", "2", "--launches", "1", "--prompt-tokens", "2:20", "--new-tokens", "2:5")


@pytest.fixture(autouse=True)
def no_ceilings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ceilings take a compiler and seconds; one test below has them."""

    def missing() -> None:
        raise meter_module.MixplanError("no compiler here")

    monkeypatch.setattr(meter_module, "CpuMeter", missing)


def _bench(plan: Path, *arguments: object) -> Result:
    return CliRunner().invoke(main, ["bench", str(plan), *map(str, arguments)])


def _json(plan: Path, *arguments: object) -> dict[str, Any]:
    result = _bench(plan, *arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)  # type: ignore[no-any-return]


def test_three_phases(tiny_llama_plan: Path) -> None:
    result = _bench(tiny_llama_plan, *_FEW)
    assert result.exit_code == 0, result.output
    for words in ("Plan and machine", "memory read", "by numpy", "Cold start: 1 processes", "process start to first token", "peak memory"):
        assert words in result.stdout
    for words in ("Steady state: 6 requests, 1 at a time", "P99", "between tokens", "Stress: 5 requests, 5 at a time", "core utilisation"):
        assert words in result.stdout
    assert "no compiler here" in result.stderr


def test_the_report_as_json(tiny_llama_plan: Path) -> None:
    report = _json(tiny_llama_plan, *_FEW)
    assert report["schema"] == SCHEMA
    assert set(report) == {"schema", "plan", "hardware", "phases", "profile"}
    assert {"cores", "levels", "isa", "caches", "memory", "kernel", "threads", "read_bandwidth"} <= set(report["hardware"])
    cold, steady, stress = (report["phases"][name] for name in ("cold", "steady", "stress"))
    assert set(cold["figures"]["first_token_seconds"]) == {"value", "unit", "better", "spread", "count"}
    parts = ("interpreter_seconds", "import_seconds", "load_seconds", "prefill_seconds")
    assert sum(cold["figures"][name]["value"] for name in parts) == pytest.approx(cold["figures"]["first_token_seconds"]["value"])
    latencies = {f"{name}_p{rank}" for name in ("ttft", "itl", "e2e") for rank in (50, 90, 99)}
    assert latencies <= set(steady["figures"]) and latencies <= set(stress["figures"])
    assert steady["figures"]["ttft_p50"]["count"] == 6 and stress["figures"]["ttft_p50"]["count"] == 2
    work = steady["facts"]["workload"]
    assert 2 <= work["prompt_tokens"]["least"] <= work["prompt_tokens"]["most"] <= 20


def test_equal_seeds_give_equal_requests(tiny_llama_plan: Path) -> None:
    digests = [
        _json(tiny_llama_plan, *_FEW, "--phases", "steady", "--seed", seed)["phases"]["steady"]["facts"]["workload"]["digest"]
        for seed in (1, 1, 2)
    ]
    assert digests[0] == digests[1] != digests[2]


def test_requests_from_a_text(tiny_llama_plan: Path, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("The quick brown fox. " * 10, encoding="utf-8")
    report = _json(tiny_llama_plan, *_FEW, "--phases", "steady", "--text", text)
    assert report["phases"]["steady"]["facts"]["workload"]["source"] == "text text.txt"
    text.write_text("short", encoding="utf-8")
    result = _bench(tiny_llama_plan, *_FEW, "--text", text)
    assert result.exit_code == 2 and "prompts of up to 20 are to be cut from it" in result.stderr


def test_requests_from_a_trace(tiny_llama_plan: Path, tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    rows: list[dict[str, Any]] = [
        {"prompt": "hello", "max_tokens": 3, "arrival": 0},
        {"token_ids": [1, 2], "max_tokens": 2, "arrival": 0.1},
        {"prompt_tokens": 9, "max_tokens": 1, "arrival": 0.15},
    ]
    trace.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    report = _json(tiny_llama_plan, "--phases", "steady,stress", "--concurrency", 4, "--rounds", 1, "--trace", trace)
    steady, stress = report["phases"]["steady"], report["phases"]["stress"]
    assert steady["facts"]["workload"]["arrivals"] and steady["figures"]["ttft_p50"]["count"] == 3
    # 6 tokens in the 0.15 s and a little more that the trace takes.
    assert 10 < steady["figures"]["tokens_per_second"]["value"] < 40
    assert stress["facts"]["workload"]["requests"] == 4


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"token_ids": [9999]}, "trace.jsonl:1: field 'token_ids' holds 9999; this plan has ids from 0 to 511"),
        ({"prompt_tokens": 10**9}, "trace.jsonl:1: field 'prompt_tokens' has 1000000000 tokens"),
        ({"prompt_tokens": 3, "stop": "x"}, "trace.jsonl:1: field 'stop' is not known"),
    ],
)
def test_a_trace_that_does_not_fit(tiny_llama_plan: Path, tmp_path: Path, row: dict[str, Any], words: str) -> None:
    trace = tmp_path / "trace.jsonl"
    trace.write_text(json.dumps(row), encoding="utf-8")
    result = _bench(tiny_llama_plan, "--trace", trace)
    assert result.exit_code == 2 and words in result.stderr and "Traceback" not in result.stderr


def test_against_a_baseline(tiny_llama_plan: Path, tmp_path: Path) -> None:
    base, slow = tmp_path / "base.json", tmp_path / "slow.json"
    report = _json(tiny_llama_plan, *_FEW, "--phases", "steady")
    base.write_text(json.dumps(report), encoding="utf-8")
    for name, figure in report["phases"]["steady"]["figures"].items():
        figure["value"] *= 100 if figure["better"] == "higher" else 0.01
        report["phases"]["steady"]["figures"][name] = figure
    report["hardware"]["model"] = "Another CPU"
    slow.write_text(json.dumps(report), encoding="utf-8")
    result = _bench(tiny_llama_plan, *_FEW, "--phases", "steady", "--baseline", slow, "--fail-on-regression")
    assert result.exit_code == 1, result.output
    assert "REGRESSION" in result.stdout and "regressions beyond noise" in result.stdout
    assert "model: Another CPU there" in result.stderr
    compared = _json(tiny_llama_plan, *_FEW, "--phases", "steady", "--baseline", base)["comparison"]
    assert {change["figure"] for change in compared["changes"]} >= {"steady.ttft_p50", "steady.tokens_per_second"}
    assert compared["warnings"] == []


def test_a_profile(tiny_llama_plan: Path) -> None:
    report = _json(tiny_llama_plan, "--profile", "--context", "0,20", "--batch", "1,3", "--prefill", "40")
    assert report["phases"] == {}
    names = [one["name"] for one in report["profile"]]
    assert names == [
        "decode, context 0, batch 1",
        "decode, context 0, batch 3",
        "decode, context 20, batch 1",
        "decode, context 20, batch 3",
        "prefill, 40 tokens",
    ]
    for one in report["profile"]:
        assert 0 < one["native_seconds"] <= one["seconds"]
        assert one["overhead_seconds"] == pytest.approx(one["seconds"] - one["native_seconds"])
        assert sum(row["share"] for row in one["by_kernel"]) == pytest.approx(1)
    shown = _bench(tiny_llama_plan, "--profile", "--prefill", "", "--context", "20")
    for words in (
        "Profile: decode, context 20, batch 1",
        "generation loop, each token",
        "outside of native code",
        "kernel",
        "GB/s",
        "layers.*.mlp.down_proj",
    ):
        assert words in shown.stdout, shown.output


def test_shares_of_the_ceiling(tiny_llama_plan: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from mixplan.runtime.cost import Limits

    class Meter:
        def read_bandwidth(self, size: int, threads: int) -> dict[str, Any]:
            return {"bytes_per_second": 5e10, "working_set": size, "by": "a test", "threads": threads}

        def limits(self, working_set: int, threads: int, level: str) -> tuple[Limits, dict[str, Any]]:
            return Limits(lambda size: 5e10, 0.0, 0.0, 1e11), {"bandwidth": [[working_set, 5e10]], "peaks": {"fp32": 1e11}}

    monkeypatch.setattr(meter_module, "CpuMeter", Meter)
    (one,) = _json(tiny_llama_plan, "--profile", "--context", "", "--prefill", "40")["profile"]
    assert 0 < one["share_of_ceiling"] < 1.5
    assert one["ceilings"]["peaks"] == {"fp32": 1e11}
    shown = _bench(tiny_llama_plan, "--profile", "--context", "", "--prefill", "40").stdout
    assert "% of the limit" in shown and "fp32 100 GOP/s" in shown and "by a test" in shown


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--phases", "warm"], "There is no phase 'warm'; there are cold, steady, stress."),
        (["--phases", ""], "There is nothing to do"),
        (["--prompt-tokens", "9:3"], "prompt tokens is 9:3; it must be LEAST:MOST"),
        (["--new-tokens", "a"], "--new-tokens is 'a'"),
        (["--profile", "--context", "x"], "--context is 'x'; it must be whole numbers"),
        (["--profile", "--context", "99999"], "A sequence of 100000 tokens was asked for"),
        (["--profile", "--batch", "0"], "batch is 0; it must be at least 1"),
        (["--text", __file__, "--trace", __file__], "from a text or from a trace, not from both"),
        (["--fail-on-regression"], "--fail-on-regression needs --baseline"),
        (["--baseline", __file__], "is not JSON"),
        (["--trace", __file__], "test_cli_bench.py:1: the line is not JSON"),
    ],
)
def test_what_is_refused(tiny_llama_plan: Path, arguments: list[str], words: str) -> None:
    result = _bench(tiny_llama_plan, *arguments)
    assert result.exit_code == 2, result.output
    assert words in " ".join(result.stderr.split())


def test_a_cold_start_that_fails_says_why(tiny_llama_plan: Path) -> None:
    from mixplan.runtime.bench.cold import cold_start
    from mixplan.runtime.errors import UnsupportedError

    with pytest.raises(UnsupportedError, match=r"A process for a cold start failed: .*'warp'"):
        cold_start(tiny_llama_plan, [1, 2], launches=1, device="warp")
