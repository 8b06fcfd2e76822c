"""Chains of pointwise ops: which nodes go together, and what the GPU target prints of them. The CPU target's text: test_cpu_codegen."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from mixplan.runtime.plan import Plan, Sym
from mixplan.targets.chains import Chain, ChainRules, find_chains
from mixplan.targets.gpu.arch import ARCHS, JIT
from mixplan.targets.gpu.lower.chain import POINTWISE
from mixplan.targets.gpu.lower.elementwise import VIEWS
from mixplan.targets.gpu.lower.region import lower_region

T = Sym("T")


def _found(kit: Any, **rules: Any) -> list[Any]:
    """Names of ops, in the order of the work; a chain is a list of those of its nodes, of its views, and the values that it stores."""
    plan = kit.plan()
    out: list[Any] = []
    for work in find_chains(plan, plan.regions[0], ChainRules(lambda node: node.op in POINTWISE, VIEWS, **rules)):
        if isinstance(work, Chain):
            names, views = ([plan.nodes[i].op for i in part] for part in (work.nodes, work.views))
            out.append((" ".join(names), " ".join(views), work.outputs))
        else:
            out.append(plan.nodes[work].op)
    return out


def test_a_chain_goes_on_behind_what_does_not_need_it(kit: Any) -> None:
    x = kit.input(1, T, 8)
    a = kit.op("exp", x, out=False)
    seen = kit.op("reshape", a, shape=(T, 2, 4), out=False)
    norm = kit.op("rms_norm", x, eps=1e-6)  # does not need the chain: runs before it
    b = kit.op("cast", kit.op("add", a, norm, out=False), dtype="bf16")
    kit.op("sum", seen, axes=(2,), keepdims=False)
    assert _found(kit) == ["rms_norm", ("exp add cast", "reshape", (a, b)), "sum"]


def test_what_ends_a_chain(kit: Any) -> None:
    x = kit.input(1, T, 8)
    a = kit.op("exp", x, out=False)
    b = kit.op("neg", kit.op("reshape", a, shape=(T, 8), out=False))  # reads a view of it
    c = kit.op("exp", kit.input(T, 1))  # is of another shape
    assert _found(kit) == [("exp", "reshape", (a,)), ("neg", "", (b,)), ("exp", "", (c,))]
    d = kit.op("sin", kit.op("sin", c, out=False))
    assert _found(kit, longest=2)[2:] == [("exp sin", "", (c, d - 1)), ("sin", "", (d,))]


def test_small_results_are_widened_where_nothing_else_reads_them(kit: Any) -> None:
    x, scale = kit.input(1, T, 8), kit.input(T, 1)
    small = kit.op("rsqrt", kit.op("add", scale, kit.fill(1e-6, 1, 1), out=False), out=False)
    y = kit.op("mul", x, small)
    assert _found(kit, widens=True) == [("add rsqrt mul", "", (y,))]
    assert _found(kit) == [("add rsqrt", "", (small,)), ("mul", "", (y,))]
    kit.outputs.append(small)
    assert _found(kit, widens=True) == [("add rsqrt", "", (small,)), ("mul", "", (y,))]


def _launches(kit: Any) -> list[str]:
    plan = kit.plan()
    region = msgspec.structs.replace(plan.regions[0], device="gpu")
    program, _ = lower_region(plan, region, ARCHS[JIT])
    kernels = [program.kernels[launch.kernel] for launch in program.launches if launch.mode != "sample"]
    return [str(kernel.constants["CHAIN"]) if kernel.name == "chain" else kernel.name for kernel in kernels]


def test_a_chain_is_one_launch_on_a_gpu(kit: Any) -> None:
    """Broadcast operands, a constant, a condition, casts, two results; x is read once."""
    wide = kit.input(1, T, 24)
    x = kit.op("slice", wide, axis=2, start=8, stop=16, step=1, out=False)
    weight, mask = kit.input(8), kit.bools(T, 1)
    y = kit.op("mul", kit.op("silu", x, out=False), weight)
    z = kit.op("where", mask, kit.op("add", y, x, out=False), kit.fill(0.5, 1), out=False)
    kit.op("cast", z, dtype="bf16")
    assert _launches(kit) == [
        "sizes 8\nload f32 24 1\nsilu f32 v0\nload f32 0 1\nmul f32 v1 v2\nadd f32 v3 v0\nload bool 1 0\nnumber f32 0.5\n"
        "where f32 v5 v4 v6\ncast f32 v7 bf16\nstore f32 v3 8 1\nstore bf16 v8 8 1"
    ]


def test_a_chain_of_more_operands_than_pointers_is_cut(kit: Any) -> None:
    total = kit.input(1, T, 8)
    for _ in range(10):
        total = kit.op("add", total, kit.input(1, T, 8), out=False)
    kit.op("neg", total)
    first, second = _launches(kit)  # of 11 nodes, and 11 operands
    assert [text.count("load") for text in (first, second)] == [6, 6]  # the second reads what the first stores
    assert [text.count("store") for text in (first, second)] == [1, 1]


@pytest.mark.parametrize(("case", "launches"), [("fused", 1), ("read before", 2), ("made by a chain", 2), ("broadcast", 2)])
def test_a_norm_adds_what_stands_before_it(kit: Any, case: str, launches: int) -> None:
    """Where the sum is not made in registers anyway, and nothing needs it before the norm."""
    x, y = kit.input(1, T, 8), kit.input(1, 1 if case == "broadcast" else T, 8)
    total = kit.op("add", x, kit.op("silu", y, out=False) if case == "made by a chain" else y, out=case == "fused")
    if case == "read before":
        kit.op("sum", total, axes=(2,), keepdims=False)
    kit.op("rms_norm_quant", total, eps=1e-6, group=0)
    found = _launches(kit)
    assert [text.split()[0] for text in found] == ["sizes"] * (launches - 1) + ["reduce_rows"] * (case == "read before") + ["norm"]


def test_a_sum_that_others_read_is_kept(kit: Any) -> None:
    x, y = kit.input(1, T, 8), kit.input(1, T, 8)
    total = kit.op("add", x, y, out=False)
    kit.op("rms_norm", total, eps=1e-6)
    plan = kit.plan()
    assert [kind for kind in _norm_types(plan) if kind] == ["*fp32"] * 3
    kit.op("layer_norm", total, eps=1e-6)
    first, second = _norm_types(kit.plan()), _norm_types(kit.plan(), 1)
    assert [kind for kind in first if kind] == ["*fp32"] * 4
    assert [kind for kind in second if kind] == ["*fp32"] * 2


def _norm_types(plan: Plan, number: int = 0) -> tuple[str, ...]:
    """Types of a norm's pointers: x, residual, weight, bias, sum, y, scales, sums; "" for those that are none."""
    program, _ = lower_region(plan, plan.regions[0], ARCHS[JIT])
    launches = [launch for launch in program.launches if program.kernels[launch.kernel].name == "norm"]
    return program.kernels[launches[number].kernel].types
