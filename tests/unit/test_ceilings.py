"""The machine-ceiling probes compile, give sane numbers at tiny sizes, and the record answers what reports ask."""

from __future__ import annotations

import json

import pytest

from mixplan.runtime.errors import OptionError
from mixplan.targets.cpu.ceilings import Ceilings, PeakRate, Probe, ReadRate, measure
from mixplan.targets.cpu.ceilings.__main__ import main

MB = 1 << 20


def _record() -> Ceilings:
    reads = [ReadRate(MB, 2, True, 100.0, 110.0, "plain"), ReadRate(4 * MB, 2, True, 50.0, 51.0, "plain")]
    reads += [ReadRate(MB, 1, True, 60.0, 61.0, "plain"), ReadRate(MB, 2, False, 90.0, 91.0, "plain")]
    peaks = [
        PeakRate("int8", "vnni", 2, 900.0, 910.0),
        PeakRate("int8", "amx", 2, 9000.0, 9100.0),
        PeakRate("int8", "vnni", 1, 450.0, 455.0),
    ]
    return Ceilings(tuple(reads), tuple(peaks))


def test_bandwidth_lies_between_the_measured_sizes():
    found = _record()
    assert found.bandwidth(MB) == 100.0
    assert found.bandwidth(2 * MB, huge=True) == pytest.approx(75.0)  # half way in the logarithm
    assert found.bandwidth(64 * MB, huge=True) == 50.0
    assert found.bandwidth(1) == 100.0
    assert found.bandwidth(MB, 1) == 60.0
    assert found.bandwidth(MB, 2, huge=False) == 90.0
    with pytest.raises(OptionError, match="3 threads"):
        found.bandwidth(MB, 3)


def test_peak_of_a_unit_or_of_the_fastest():
    found = _record()
    assert found.peak("int8") == 9000.0
    assert found.peak("int8", unit="vnni") == 900.0
    assert found.peak("int8", 1, unit="vnni") == 450.0
    assert found.peak("bf16") == 0.0


def test_json_round_trip():
    found = _record()
    assert Ceilings.from_json(json.loads(json.dumps(found.to_json()))) == found


def test_probes_give_sane_numbers():
    found = measure(sizes=(2 * MB,), threads=(1, 2), pages=(False,), rounds=2)
    assert {(r.bytes, r.threads, r.huge) for r in found.reads} == {(2 * MB, 1, False), (2 * MB, 2, False)}
    assert all(0.1 < r.gb_per_s < 10_000 and r.best >= r.gb_per_s * 0.999 for r in found.reads)
    assert found.peak("fp32", 1) > 0.1
    assert {(p.kind, p.unit) for p in found.peaks} == set(Probe().units())


def test_a_size_beyond_the_buffer_and_an_absent_unit_are_refused():
    probe = Probe()
    with probe.buffer(MB, huge=False) as buffer, pytest.raises(OptionError, match="holds 2097152 bytes"):
        probe.read(buffer, 1, size=3 * MB)
    with pytest.raises(OptionError, match="no unit int8_abacus"):
        probe.peak("int8", "abacus", 1)
    with pytest.raises(OptionError, match="threads holds 0"):
        measure(threads=(0,))


def test_command_prints_json_and_a_table(capsys):
    assert main(["--sizes-mb", "2", "--threads", "1", "--rounds", "1", "--json"]) == 0
    assert Ceilings.from_json(json.loads(capsys.readouterr().out)).reads[0].bytes == 2 * MB
    assert main(["--sizes-mb", "2", "--threads", "1", "--rounds", "1"]) == 0
    assert "working set" in capsys.readouterr().out
    assert main(["--threads", "0"]) != 0
    assert "at least 1" in capsys.readouterr().err
