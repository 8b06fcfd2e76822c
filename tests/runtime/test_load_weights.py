"""Weights are read and hashed beside everything else: the same plan, the same refusals, wherever the weights end up."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import numpy as np
import pytest

from mixplan.runtime import load, loading, plan_files
from mixplan.runtime.errors import CapacityError, OptionError, PlanError
from mixplan.runtime.reading import Reading, available_memory

WEIGHTS = "weights.safetensors"


def _descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.parametrize("weights", ["auto", "copied", "mapped"])
def test_the_same_logits(toy_plan: Path, weights: loading.Weights) -> None:
    with load(toy_plan) as model, load(toy_plan, weights=weights, verify="manifest") as other:
        np.testing.assert_array_equal(model.step([1, 2, 3], [0, 1, 2], [0] * 3), other.step([1, 2, 3], [0, 1, 2], [0] * 3))
        constant = next(i for i, value in enumerate(other.plan.values) if value.tensor is not None)
        assert not other.loaded.constant(constant).flags.writeable


@pytest.mark.parametrize("weights", ["copied", "mapped"])
@pytest.mark.parametrize("offset", [9, -1])
def test_changed_weights_are_refused(toy_plan: Path, weights: loading.Weights, offset: int) -> None:
    content = bytearray((toy_plan / WEIGHTS).read_bytes())
    content[offset] ^= 1
    (toy_plan / WEIGHTS).write_bytes(content)
    before = _descriptors()
    with pytest.raises(PlanError, match=WEIGHTS):
        load(toy_plan, weights=weights)
    assert _descriptors() == before
    assert not [t for t in threading.enumerate() if t.name.startswith("mixplan-reading")]


def test_what_is_used_is_what_was_hashed(toy_plan: Path) -> None:
    """A copy stays as it was verified, whatever is written into the file later."""
    with load(toy_plan, weights="copied") as model:
        want = model.step([1], [0], [0])
        (toy_plan / WEIGHTS).write_bytes(b"\xff" * (toy_plan / WEIGHTS).stat().st_size)
        np.testing.assert_array_equal(model.step([1], [0], [1]), want)


def test_files_that_the_plan_does_not_name_are_left_alone(toy_plan: Path) -> None:
    (toy_plan / "other.safetensors").write_bytes(b"x" * 100)
    (toy_plan / "empty.safetensors").write_bytes(b"")
    os.mkfifo(toy_plan / "pipe.safetensors")
    before = _descriptors()
    load(toy_plan).close()
    assert _descriptors() == before


def test_wrong_options(toy_plan: Path) -> None:
    with pytest.raises(OptionError, match="weights is 'shared'; allowed are auto, copied, mapped"):
        load(toy_plan, weights="shared")  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="verify is 'none'"):
        load(toy_plan, verify="none")  # type: ignore[arg-type]


def test_no_memory_for_a_copy(toy_plan: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copies: list[bool] = []

    def reading(fd: int, size: int, *, copy: bool, digest: bool) -> Reading:
        copies.append(copy)
        if copy:
            raise OSError("no room")
        return Reading(fd, size, copy=copy, digest=digest)

    monkeypatch.setattr(plan_files, "Reading", reading)
    monkeypatch.setattr(loading, "available_memory", lambda: 1 << 10)
    load(toy_plan).close()
    assert copies == [False]
    with pytest.raises(CapacityError, match=r"weights in weights.safetensors cannot be had: no room.*\n.*mapped"):
        load(toy_plan, weights="copied")


def test_a_file_that_ends_early(tmp_path: Path) -> None:
    (tmp_path / "short").write_bytes(b"1234")
    with (tmp_path / "short").open("rb") as file:
        with pytest.raises(EOFError, match="ends at 4 bytes; it had 9"):
            Reading(file.fileno(), 9, copy=True, digest=True).digest()
        whole = Reading(file.fileno(), 4, copy=True, digest=True)
        assert whole.digest() == "03ac674216f3e15c761ee1a5e255f067953623c8b388b4459e13f978d7c846f4"
        assert whole.memory is not None
        assert whole.memory[:4] == b"1234"


def test_available_memory() -> None:
    assert 0 < available_memory() < 1 << 50
