"""The generated text, the toolchain and the pool: what does not depend on one op."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mixplan.runtime.errors import InternalError, OutputError, UnsupportedError
from mixplan.runtime.kv_format import KvFormat
from mixplan.runtime.plan import AttentionLayer, Sym
from mixplan.targets.cpu import cache
from mixplan.targets.cpu.cache import cached_kernel, kernel_key
from mixplan.targets.cpu.codegen.region import build_region
from mixplan.targets.cpu.isa import default_levels, level_flags
from mixplan.targets.cpu.render import render_region
from mixplan.targets.cpu.toolchain import find_compiler

T, R = Sym("T"), Sym("R")


def _layers(kit: Any, count: int) -> None:
    """The same few ops again and again, with other weights."""
    x = kit.input(1, T, 32)
    for layer in range(count):
        scale = kit.const(np.full(32, 0.5 + layer, np.float32))
        h = kit.op("rms_norm", x, scale, eps=1e-6, out=False)
        h = kit.op("silu", kit.op("mul", h, scale, out=False), out=False)
        x = kit.op("add", x, h, out=False)
    kit.op("neg", x)


def test_layers_share_functions_and_pointwise_ops_fuse(make_kit: Any) -> None:
    found = []
    for count in (2, 12):
        kit = make_kit()
        _layers(kit, count)
        builder = build_region(kit.plan(), kit.plan().regions[0])
        found.append((len(builder.functions), len(builder.ops)))
    # A norm and one chain a layer; the last chain also holds the negation.
    assert found == [(3, 4), (3, 24)]


def test_text_is_deterministic_and_safe(kit: Any) -> None:
    import msgspec

    _layers(kit, 3)
    plan = kit.plan()
    first = render_region(plan, plan.regions[0]).source
    assert render_region(plan, plan.regions[0]).source == first
    evil = msgspec.structs.replace(
        plan, name="x\n#include </etc/passwd>\n", regions=(msgspec.structs.replace(plan.regions[0], name="*/ int"),)
    )
    changed = render_region(evil, evil.regions[0]).source
    assert "passwd" not in "".join(line for line in changed.splitlines() if not line.startswith("//"))
    assert changed.splitlines()[1:] == first.splitlines()[1:]


def test_compiler_output_is_a_function_of_the_source(kit: Any) -> None:
    _layers(kit, 2)
    source = render_region(kit.plan(), kit.plan().regions[0]).source
    compiler = find_compiler()
    first, second = (compiler.compile(source, "x86-64-v3") for _ in range(2))
    assert first == second
    assert b"/tmp" not in first
    assert b"region.cpp" not in first


def test_cross_compiles_for_arm64(kit: Any, make_weight: Any) -> None:
    from mixplan.runtime.formats import WeightFormat

    weight = make_weight(np.random.default_rng(0), WeightFormat.of("i4", 32), 16, 64)
    q = kit.op("quantize_act", kit.input(1, T, 64), group=32, out=False)
    kit.op("linear_q", *q, *(kit.const(a) if a is not None else -1 for a in weight.arrays), **weight.attrs)
    library = find_compiler().compile(render_region(kit.plan(), kit.plan().regions[0]).source, "arm64")
    assert library[:4] == b"\x7fELF"
    assert int.from_bytes(library[18:20], "little") == 183  # EM_AARCH64


def test_a_broken_source_gives_the_compilers_words() -> None:
    with pytest.raises(InternalError, match=r"ziglang [0-9.]+ failed on a region for portable:\n.*error: a type specifier"):
        find_compiler().compile("nonsense;", "portable")


def test_system_compiler_by_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MIXPLAN_CC", "no-such-compiler")
    with pytest.raises(UnsupportedError, match=r"MIXPLAN_CC is 'no-such-compiler', which is not a compiler that runs here"):
        find_compiler()


def test_levels_have_flags() -> None:
    assert "portable" in default_levels() or "arm64" in default_levels()
    assert level_flags("x86-64-v4-bf16").zig[2].endswith("avx512bf16")
    assert level_flags("x86-64-v4-amx").zig[2].endswith("amx_tile+amx_int8+amx_bf16")


def test_cache_makes_once_and_never_shows_half_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    made = []
    key = kernel_key("source", ("-O3",), "cc 1")
    for _ in range(2):
        path = cached_kernel(key, lambda: made.append(1) or b"bytes")
        assert path.read_bytes() == b"bytes"
    assert made == [1]
    assert (
        len({key, kernel_key("source2", ("-O3",), "cc 1"), kernel_key("source", ("-O2",), "cc 1"), kernel_key("source", ("-O3",), "cc 2")})
        == 4
    )

    def fails() -> bytes:
        raise RuntimeError("killed")

    with pytest.raises(RuntimeError, match="killed"):
        cached_kernel("other", fails)
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_cache_forgets_what_was_not_used_longest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(cache, "_KEPT", 2)
    for age, name in enumerate("abc"):
        path = cached_kernel(name, lambda: b"")
        os.utime(path, (1000 + age, 1000 + age))
    cached_kernel("b", lambda: b"")
    cached_kernel("d", lambda: b"")
    assert sorted(p.name for p in path.parent.iterdir()) == ["b.so", "d.so"]


def test_cache_that_others_can_write_to_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (tmp_path / "mixplan" / "kernels").mkdir(parents=True)
    (tmp_path / "mixplan" / "kernels").chmod(0o777)
    with pytest.raises(OutputError, match="can be written by others"):
        cached_kernel("key", lambda: b"")


def test_many_threads_many_steps(kit: Any) -> None:
    """More threads than cores: the barriers sleep and wake, and nothing is lost."""
    x = kit.input(1, T, 300)
    for _ in range(5):
        x = kit.op("softmax", kit.op("cumsum", x, axis=2, out=False), axis=2, out=False, tol=(1e-4, 1e-5))
    kit.op("sum", x, axes=(2,), tol=(1e-4, 1e-4))
    kit.op("neg", x, tol=(1e-4, 1e-5))
    regions = [kit.open("portable", threads) for threads in (1, 2, 5)]
    for number in range(20):
        tokens = 1 + 13 * number % 65
        data, step = kit.data(tokens, 1, seed=number), kit.step(tokens, 1)
        want, *others = [region.run(step, data) for region in regions]
        for got in others:
            for index in kit.outputs:
                np.testing.assert_array_equal(got[index], want[index])
    for region in regions:
        region.close()


def test_idle_threads_use_no_processor(kit: Any) -> None:
    x = kit.input(1, T, 3000)
    kit.op("exp", x)
    region = kit.open("portable", threads=4)
    region.run(kit.step(65, 1), kit.data(65, 1))
    time.sleep(0.1)
    before = time.process_time()
    time.sleep(0.4)
    assert time.process_time() - before < 0.1
    region.close()


def test_close_twice_and_after(kit: Any) -> None:
    kit.op("exp", kit.input(1, T, 3))
    region = kit.open("portable", threads=3)
    before = len(list(Path("/proc/self/task").iterdir()))
    region.close()
    region.close()
    assert len(list(Path("/proc/self/task").iterdir())) <= before - 2  # the compiler's own thread may end too
    with pytest.raises(InternalError, match="closed"):
        region.run(kit.step(1, 1), kit.data(1, 1))


def test_too_many_tokens_are_refused(kit: Any) -> None:
    kit.op("exp", kit.input(1, T, 3))
    region = kit.open("portable", threads=1)
    with pytest.raises(InternalError, match="refused the step: it has more than 65 tokens"):
        region.run(kit.step(66, 1), kit.data(66, 1))
    region.close()


@pytest.mark.parametrize(("case", "fused"), [("both", True), ("other angles", False), ("read elsewhere", False), ("only q", False)])
def test_attention_rotates_what_only_it_reads(kit: Any, case: str, fused: bool) -> None:
    q, k, v = (kit.op("exp", kit.input(1, T, heads, 16), out=False) for heads in (4, 2, 2))
    cos, sin, other = (kit.input(1, T, 16) for _ in range(3))
    q = kit.op("rope", q, cos, sin, style="half", out=case == "read elsewhere")
    if case != "only q":
        k = kit.op("rope", k, cos, other if case == "other angles" else sin, style="half", out=False)
    kit.op("attention", q, k, v, layer=0, scale=0.25)
    kit.layers.append(AttentionLayer(2, 16, 16, KvFormat.f16))
    builder = build_region(kit.plan(), kit.plan().regions[0])
    ops = [kit.nodes[op.node].op for op in builder.ops]
    assert ops.count("rope") == (0 if fused else 1 if case == "only q" else 2)
    assert ops.count("attention") == 2  # append and read
    assert any(", 16, Rope::Half>(" in function.body for function in builder.functions.values() if "attention<" in function.body) == fused
