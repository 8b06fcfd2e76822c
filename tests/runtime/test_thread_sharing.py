"""Small steps by half of the threads: the same bits as by all of them, and chosen only where all of them wait for other programs."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mixplan
from mixplan.runtime import load
from mixplan.runtime.devices.cpu_info import runnable_levels
from mixplan.targets.cpu.render import render_region
from mixplan.targets.cpu.toolchain import find_compiler

LEVEL = runnable_levels()[0]


@pytest.fixture
def source(toy: Any) -> str:
    """The toy decoder's code, with no op too small for more than one thread."""
    builder, logits = toy.build(("cpu",))
    plan = builder.plan(logits)
    found, count = re.subn(r"kSerialWork = \d+", "kSerialWork = 1", render_region(plan, plan.regions[0]).source)
    assert count == 1
    return found


def _everything(path: Path, threads: int) -> list[np.ndarray]:
    """Logits of prompts that span pages, of a mixed step, of single steps, and tokens of several steps at once."""
    rng = np.random.default_rng(0)
    with load(path, trust=True, threads=threads, max_sequences=3) as model:
        found = [model.prefill(rng.integers(3, 37, size), sequence) for sequence, size in enumerate((70, 33, 1))]
        found.append(model.step([4, 5, 6, 7], [70, 71, 33, 1], [0, 0, 1, 2], "all"))
        found.append(model.decode([8, 9, 10], [0, 1, 2], lambda rows: rows.rows.copy()))
        found.append(np.array(model.decode_greedy([8, 9, 10], [2, 0, 1], steps=6, seconds=10.0)))
    return found


def test_half_of_the_threads_give_the_same_bits(cpu_plan: Callable[..., Path], source: str, tmp_path: Path) -> None:
    compiler = find_compiler()
    paths = []
    for text in (source, "#define MP_HALF\n" + source):
        path = cpu_plan((), {LEVEL: compiler.compile(text, LEVEL)})
        paths.append(path.rename(tmp_path / f"{len(paths)}.plan"))
    for threads in (2, 3, 5):
        for by_all, by_half in zip(*(_everything(path, threads) for path in paths), strict=True):
            np.testing.assert_array_equal(by_all, by_half)


_DRIVER = """
#include "sharing.h"
// Steps of `whole` or `halved` nanoseconds until `end`; gives the share of steps that half of the threads made, in percent.
extern "C" __attribute__((visibility("default")))
int64_t simulate(int64_t whole, int64_t lost, int64_t halved, int64_t end, int64_t calm_from, int64_t calm) {
  mp::Sharing s{};
  int64_t now = 1, steps = 0, half = 0;
  while (now < end) {
    const bool h = s.half, quiet = now >= calm_from;
    const int64_t spent = h ? halved : quiet ? calm : whole;
    now += spent;
    steps++, half += h;
    mp::sharing_learn(&s, 1, now, spent, h || quiet ? 0 : lost);
  }
  return half * 100 / steps;
}
"""
MS, NEVER = 1_000_000, 1 << 62


@pytest.fixture(scope="module")
def simulate(tmp_path_factory: pytest.TempPathFactory) -> Any:
    header = Path(mixplan.__file__).parent / "targets/cpu/templates/sharing.h"
    source = _DRIVER.replace('#include "sharing.h"', header.read_text().replace("#pragma once", ""))
    library = tmp_path_factory.mktemp("sharing") / "simulate.so"
    library.write_bytes(find_compiler().compile(source, "portable"))
    function = ctypes.CDLL(str(library)).simulate
    function.argtypes, function.restype = [ctypes.c_int64] * 6, ctypes.c_int64
    return function


def test_what_is_chosen(simulate: Any) -> None:
    second = 1000 * MS
    # Nothing is lost, or little: never.
    assert simulate(3 * MS, 0, 5 * MS, 10 * second, NEVER, 0) == 0
    assert simulate(4 * MS, 1 * MS, 5 * MS, 10 * second, NEVER, 0) == 0
    # All threads wait for another program most of the time, and half of them are quicker: nearly always.
    assert simulate(25 * MS, 20 * MS, 5 * MS, 20 * second, NEVER, 0) >= 97
    # Waiting, but half of the threads are slower still: seldom tried.
    assert simulate(25 * MS, 20 * MS, 50 * MS, 20 * second, NEVER, 0) <= 6
    # The other program ends after a second: of the minute that follows, two seconds at most are made by half of the threads.
    assert simulate(25 * MS, 20 * MS, 5 * MS, 60 * second, second, 3 * MS) <= 2
