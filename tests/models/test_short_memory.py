"""Memory that runs out in a compile: a CapacityError that says what there is no memory for, whoever takes the error for something else."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from mixplan.cli import main
from mixplan.compiler import draft, fitting, pipeline
from mixplan.compiler.partition import supports
from mixplan.runtime import run_prompt as run_prompt_module
from mixplan.runtime.errors import CapacityError, CheckpointError, OptionError
from mixplan.runtime.short_memory import reporting_short_memory, short_memory

_OF_TORCH = RuntimeError("[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: 9 bytes.\nat a node")


def _failing(error: BaseException) -> Any:
    def fail(*_: object, **__: object) -> None:
        raise error

    return fail


def _compile(model: Path, output: Path) -> Any:
    return CliRunner().invoke(main, ["compile", str(model), "-o", str(output), "--scheme", "W4A16", "--target", "reference"])


@pytest.mark.parametrize("error", [MemoryError(), _OF_TORCH], ids=["python", "torch"])
def test_the_checkpoint_is_not_blamed(error: Exception, tiny_llama_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers import AutoModelForCausalLM

    monkeypatch.setattr(AutoModelForCausalLM, "from_config", _failing(error))
    result = _compile(tiny_llama_dir, tmp_path / "x.plan")
    assert result.exit_code == 2 and f"there is no memory for the 'llama' model of {tiny_llama_dir / 'config.json'}" in result.stderr
    assert "ulimit -v" in result.stderr and "can make no" not in result.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("module", "function", "error", "words"),
    [
        (fitting, "input_moments", _OF_TORCH, "in the stage 'calibrate' of the compile: [enforce fail at alloc_cpu.cpp:127]"),
        (draft, "lower", MemoryError(), "in the stage 'lower' of the compile."),
        (pipeline, "write_manifest", OSError(errno.ENOMEM, "Cannot allocate memory"), "in the stage 'manifest' of the compile"),
    ],
)
def test_the_stage_is_named(
    module: Any, function: str, error: Exception, words: str, tiny_llama_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, function, _failing(error))
    result = _compile(tiny_llama_dir, tmp_path / "x.plan")
    assert result.exit_code == 2 and f"there is no memory for {tiny_llama_dir} {words}" in result.stderr, result.output
    assert list(tmp_path.iterdir()) == []


def test_a_command_that_is_no_compile(tiny_llama_plan: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_prompt_module, "run_prompt", _failing(MemoryError()))
    result = CliRunner().invoke(main, ["run", str(tiny_llama_plan), "Hi"])
    assert result.exit_code == 2 and "error: there is no memory for `mixplan run`." in result.stderr


def test_what_was_raised_from_it_tells_and_what_was_only_handled_does_not() -> None:
    wrapped = CheckpointError("broken")
    wrapped.__cause__ = CheckpointError("no buffer")
    wrapped.__cause__.__cause__ = MemoryError()
    assert short_memory(wrapped) is wrapped.__cause__.__cause__
    assert short_memory(RuntimeError("wrong shape")) is None and short_memory(OSError(errno.ENOSPC, "full")) is None
    for size, told in ((1 << 46, True), (1 << 51, False)):
        error = RuntimeError(f"DefaultCPUAllocator: can't allocate memory: you tried to allocate {size} bytes.")
        assert (short_memory(error) is error) == told
    handled = OptionError("no such level")
    handled.__context__ = MemoryError()
    with pytest.raises(OptionError), reporting_short_memory(lambda: "nothing"):
        raise handled
    own = CapacityError("no pages")
    with pytest.raises(CapacityError, match="no pages"), reporting_short_memory(lambda: "nothing"):
        raise own from MemoryError()


def test_a_target_of_others_that_has_no_memory_to_answer() -> None:
    class _Poor:
        supports = _failing(MemoryError())

    poor: Any = _Poor()
    no_node: Any = None
    with pytest.raises(MemoryError):
        supports(poor, no_node, ())
