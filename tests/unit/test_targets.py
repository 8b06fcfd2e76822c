"""Targets: the registry, what the CPU target supports, levels."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from mixplan.cli import main
from mixplan.runtime.devices import cpu_info, gpu
from mixplan.runtime.dtypes import DType
from mixplan.runtime.errors import OptionError, UnsupportedError
from mixplan.runtime.ops import OPS
from mixplan.runtime.plan import Model, Node, Plan, Provenance, Region, Sym, Value
from mixplan.targets.base import CompileOptions, Target
from mixplan.targets.cpu.codegen.ops.table import EMITTERS, POINTWISE
from mixplan.targets.cpu.target import CpuTarget
from mixplan.targets.gpu.arch import ARCHS
from mixplan.targets.levels import check_levels, levels_for
from mixplan.targets.registry import get_target, target_names

T = Sym("T")


def test_registry_finds_builtin_targets() -> None:
    assert target_names()[:3] == ("cpu", "reference", "null")
    for name in ("cpu", "reference", "null"):
        assert isinstance(get_target(name), Target)
        assert get_target(name).name == name == get_target(name).capabilities().name


def test_unknown_target_lists_the_valid() -> None:
    with pytest.raises(OptionError, match=r"there is no target 'tpu'.\nTargets here: cpu, reference, null"):
        get_target("tpu")


def test_levels_that_the_device_and_the_compiler_know_are_the_same() -> None:
    assert set(gpu.LEVELS) - {gpu.INTERPRET} == set(ARCHS)


@pytest.mark.parametrize("isa", ["sm_91", ""])
def test_a_gpu_level_that_is_none_is_told_before_there_is_no_gpu(isa: str, tiny_llama_plan: Path) -> None:
    words = f"there is no GPU architecture {isa!r}.\nArchitectures: sm_80, sm_90, sm_100, gfx942, jit, interpret."
    for arguments in (["run", str(tiny_llama_plan), "Hi", "--device", "gpu"], ["targets", "--conformance", "gpu", "--ops", "silu"]):
        result = CliRunner().invoke(main, [*arguments, "--isa", isa])
        assert result.exit_code == 2 and words in result.stderr, result.output


def test_targets_of_others_are_not_asked_for_the_levels_of_cpus() -> None:
    wanted = ("portable", "native", "sm_90", "toy1")
    assert levels_for("toy", wanted) == ("native", "toy1")
    assert levels_for("cpu", wanted) == ("portable", "native", "toy1") and levels_for("gpu", wanted) == ("native", "sm_90")
    with pytest.raises(OptionError, match="'portable' is for none of the targets toy"):
        check_levels(("toy",), ("portable",))


def test_every_op_of_the_table_has_a_native_form() -> None:
    assert set(OPS) == set(EMITTERS) | set(POINTWISE)


def _value(dtype: str, *shape: object, kind: str = "node") -> Value:
    return Value("v", kind, DType(dtype), tuple(shape))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("node", "values", "reason"),
    [
        (Node("fft", (0,), (1,)), [_value("f32", T)] * 2, "op 'fft' has no CPU kernel"),
        (Node("exp", (0,), (1,)), [_value("bf16", T)] * 2, "exp has no native form for bf16"),
        (Node("div", (0, 0), (1,)), [_value("i64", T)] * 2, "div has no native form for i64"),
        (Node("reshape", (0,), (1,)), [_value("f32", T), _value("f32", *[1] * 8, T)], "9 dimensions; the kernels walk at most 8"),
        (Node("cat", (0, 0), (1,)), [_value("f32", T, 0)] * 2, "a dimension of size 0"),
        (Node("linear", (0, 0), (1,), {"format": "i7"}), [_value("f32", T, 4)] * 2, "Weight format 'i7' is not known"),
        (Node("linear_q", (0, 0), (1,), {"format": "bf16"}), [_value("f32", T, 4)] * 2, "linear_q needs a weight of integers, not bf16"),
        (
            Node("gated_linear", (0, 0), (1,), {"format": "i8", "activation": "sin"}),
            [_value("f32", T, 4)] * 2,
            "activation 'sin' has no kernel",
        ),
    ],
)
def test_refusals_name_their_reason(node: Node, values: list[Value], reason: str) -> None:
    support = CpuTarget().supports(node, values)
    assert not support
    assert reason in support.reason


def test_compile_refuses_what_supports_refuses() -> None:
    values = (_value("f32", T, kind="input"), _value("f32", T))
    plan = Plan(
        1,
        "p",
        Model("m", 1, 1, 1),
        values,
        (Node("fft", (0,), (1,), name="mixer"),),
        (),
        (1,),
        (),
        8,
        (),
        32.0,
        Provenance("", "", {}, {}, {}),
    )
    with pytest.raises(UnsupportedError, match=r"Node 'mixer' \(fft\) cannot be compiled for the CPU: op 'fft' has no CPU kernel"):
        CpuTarget().compile(plan, Region("r", "cpu", 0, 1, (0,), (1,)), CompileOptions(("portable",)))


def test_unknown_level_is_an_error() -> None:
    values = (_value("f32", T, kind="input"), _value("f32", T))
    plan = Plan(1, "p", Model("m", 1, 1, 1), values, (Node("exp", (0,), (1,)),), (), (1,), (), 8, (), 32.0, Provenance("", "", {}, {}, {}))
    with pytest.raises(OptionError, match=r"there is no ISA level 'avx1024'.\nLevels: portable, x86-64-v3"):
        CpuTarget().compile(plan, Region("r", "cpu", 0, 1, (0,), (1,)), CompileOptions(("avx1024",)))


def test_levels_need_their_flags(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_info, "cpu_flags", lambda: tuple(cpu_info.ISA_LEVELS[1].needs))
    monkeypatch.setattr(cpu_info.platform, "machine", lambda: "x86_64")
    cpu_info.runnable_levels.cache_clear()
    try:
        assert cpu_info.runnable_levels() == ("x86-64-v3", "portable")
    finally:
        cpu_info.runnable_levels.cache_clear()


def test_amx_needs_the_systems_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    level = next(level for level in cpu_info.ISA_LEVELS if level.name == "x86-64-v4-amx")
    monkeypatch.setattr(cpu_info, "cpu_flags", lambda: level.needs)
    monkeypatch.setattr(cpu_info.platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(cpu_info, "_vendor", lambda: "AuthenticAMD")
    monkeypatch.setattr(cpu_info, "amx_refusal", lambda: "no")
    cpu_info.runnable_levels.cache_clear()
    try:
        assert cpu_info.runnable_levels()[0] == "x86-64-v4-bf16"
        assert cpu_info.level_refusal("x86-64-v4-amx") == "no"
        monkeypatch.setattr(cpu_info, "amx_refusal", lambda: "")
        cpu_info.runnable_levels.cache_clear()
        assert cpu_info.runnable_levels()[0] == "x86-64-v4-amx"
        assert cpu_info.level_refusal("x86-64-v4-amx") == ""
        assert cpu_info.level_refusal("arm64") == "it is x86_64, and the level is for aarch64"
        monkeypatch.setattr(cpu_info, "cpu_flags", lambda: tuple(flag for flag in level.needs if flag != "amx_int8"))
        assert cpu_info.level_refusal("x86-64-v4-amx") == "it lacks amx_int8"
    finally:
        cpu_info.runnable_levels.cache_clear()


def test_quota_cuts_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_info.os, "sched_getaffinity", lambda pid: set(range(8)))
    monkeypatch.setattr(cpu_info, "_cgroup_quota", lambda: 2.5)
    assert cpu_info.allowed_cores() == 2
    monkeypatch.setattr(cpu_info, "_cgroup_quota", lambda: 0.5)
    assert cpu_info.allowed_cores() == 1
