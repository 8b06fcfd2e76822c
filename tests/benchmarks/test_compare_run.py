"""A whole comparison of workers that compute nothing: the protocol, the turns, failures, the report and its JSON."""

from __future__ import annotations

import fcntl
import json
import math
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.compare.client import Client, WorkerError
from benchmarks.compare.lock import Lease
from benchmarks.compare.results import Results
from benchmarks.compare.schedule import Plan, run
from benchmarks.compare.sizes import Shape, step_bytes
from benchmarks.compare.stacks import STACKS, chosen
from benchmarks.compare.table import report
from benchmarks.compare.targets import lines
from benchmarks.compare.workload import MEASURES

FAKE = str(Path(__file__).with_name("fake_stack.py"))
SHAPE = Shape(layers=2, layer_weights=1000, head_weights=500, kv_values=8, query_values=8)


def _plan(folder: Path, configs: dict[str, dict], **more) -> Plan:
    stacks = [replace(stack, worker=FAKE, config=configs[stack.name]) for stack in STACKS if stack.name in configs]
    measures = [m for m in MEASURES if m.name in ("decode", "batch_16", "cold_start", "peak_rss")]
    pythons = {stack.family: sys.executable for stack in stacks}
    return Plan(stacks, measures, [i % 7 + i // 7 for i in range(4096)], folder, pythons, SHAPE, **{"rounds": 2, "windows": 2, **more})


def test_a_run_gives_medians_ratios_quality_and_verdicts(tmp_path):
    plan = _plan(tmp_path, {"mixplan W4A8": {"step_seconds": 0.001}, "llama.cpp Q4_0": {"step_seconds": 0.003}})
    results, said = Results({"model": "a CPU"}, {"threads": 2, "rounds": 2}), []
    run(plan, results, said.append)
    ours, theirs = results.stacks["mixplan W4A8"], results.stacks["llama.cpp Q4_0"]
    assert ours.figures["decode"] == pytest.approx([1000.0, 1000.0])
    assert theirs.median("batch_16") == pytest.approx(16 / 0.006)
    assert ours.perplexity == pytest.approx(1024.0)
    assert ours.figures["overhead"] == [0.01, 0.01]
    assert len(ours.ceilings) == 2 and not theirs.ceilings
    assert all(0 < value < 60 for value in ours.figures["cold_start"])
    assert ours.median("peak_rss") > 1
    assert [words.split(": ", 1)[1].split(" (")[0] for words in said[:4]] == [
        "mixplan W4A8",
        "llama.cpp Q4_0",
        "llama.cpp Q4_0",
        "mixplan W4A8",
    ]
    decode = next(line for line in lines(results, SHAPE) if line.peer == "llama.cpp Q4_0" and line.what.startswith("decode, context 128"))
    assert decode.ratio.median == pytest.approx(3.0)
    assert decode.met
    share = next(line for line in lines(results, SHAPE) if line.peer == "read bandwidth")
    stack = next(stack for stack in STACKS if stack.name == "mixplan W4A8")
    assert share.value == pytest.approx(1000 * step_bytes(stack, SHAPE, 192) / 1e9 / 50)
    text = report(results, SHAPE)
    assert "3.00x (3.00 to 3.00)" in text and "perplexity" in text
    assert "| mixplan W4A8 | 1000 ±0% |" in report(results, SHAPE, markdown=True)
    again = Results.from_json(json.loads(json.dumps(results.to_json())))
    assert report(again, SHAPE) == text


def test_a_worker_that_dies_is_noted_and_the_run_goes_on(tmp_path):
    plan = _plan(
        tmp_path, {"mixplan W4A8": {"step_seconds": 0.001}, "llama.cpp Q4_0": {"step_seconds": 1, "dies": True}}, rounds=1, windows=0
    )
    results = Results({"model": "a CPU"}, {"threads": 2, "rounds": 1})
    run(plan, results, lambda words: None)
    dead = results.stacks["llama.cpp Q4_0"]
    assert math.isnan(dead.figures["decode"][0])
    assert "code 3" in dead.failures[0] and "last words" in dead.failures[0]
    assert results.stacks["mixplan W4A8"].figures["decode"] == pytest.approx([1000.0])
    assert "last words" in report(results, SHAPE)


def test_errors_of_a_request_carry_the_stacks_words():
    with Client([sys.executable, FAKE], {"step_seconds": 0.001, "fails": True}) as client:
        with pytest.raises(WorkerError, match="first: RuntimeError: no such prompt"):
            client.ask("first", ids=[1])
        with pytest.raises(WorkerError, match="unknown request 'dance'"):
            client.ask("dance")
        assert client.ask("decode", ids=[1], steps=2)["seconds"] == [0.001, 0.001]
        client.ask("tune", options={"step_seconds": 0.5})
        assert client.ask("decode", ids=[1], steps=1)["seconds"] == [0.5]
        client.ask("tune", options={})
        assert client.ask("decode", ids=[1], steps=1)["seconds"] == [0.001]
        assert client.ask("memory")["peak_rss"] > 1 << 20


def test_stacks_are_chosen_by_parts_of_their_names():
    assert [stack.name for stack in chosen(["q4_0", "W4A8"])] == ["mixplan W4A8", "llama.cpp Q4_0"]
    assert all(not stack.slow for stack in chosen([]))
    assert any(stack.slow for stack in chosen([], slow=True))
    with pytest.raises(SystemExit, match="no stack is called gpt4all"):
        chosen(["gpt4all"])


def test_a_lease_is_kept_for_a_while_and_then_given_up(tmp_path):
    path = tmp_path / "lock"

    def free() -> bool:
        with path.open("a") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
        return True

    lease = Lease(path, seconds=60)
    with lease.turn():
        assert not free()
    assert not free()
    lease.close()
    assert free()
    with Lease(path, seconds=-1).turn():
        assert not free()
    assert free()
