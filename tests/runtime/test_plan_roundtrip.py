"""Writing and reading a plan: equal plans give equal bytes, constants come back, numbers that JSON lacks survive."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mixplan.runtime.dtypes import DType, bf16_to_f32, f32_to_bf16
from mixplan.runtime.errors import PlanError
from mixplan.runtime.plan_io import read_plan, write_manifest
from mixplan.runtime.plan_json import decode_plan, encode_plan


def test_equal_plans_give_equal_bytes(toy: Any, tmp_path: Path) -> None:
    plans = [toy.write(tmp_path / name, files={"tokenizer.json": b"{}"}) for name in "ab"]
    assert plans[0] == plans[1]
    for name in ("plan.json", "plan.sha256", "weights.safetensors"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_reads_back_equal(toy: Any, tmp_path: Path) -> None:
    written = toy.write(tmp_path / "p", ("reference", "reference"))
    text = (tmp_path / "p" / "plan.json").read_bytes()
    with read_plan(tmp_path / "p") as loaded:
        assert loaded.plan.nodes == written.nodes
        assert loaded.plan.values == written.values
        assert loaded.plan.regions == written.regions
        assert encode_plan(loaded.plan) == text
    # A line for each item, so that two plans can be compared by diff.
    assert len(text.splitlines()) > len(written.nodes) + len(written.values)


def test_known_digests_are_not_taken_again(toy: Any, tmp_path: Path) -> None:
    toy.write(tmp_path / "p")
    with read_plan(tmp_path / "p") as loaded:
        plan = loaded.plan
    entry = plan.files["weights.safetensors"]
    (tmp_path / "p" / "weights.safetensors").write_bytes(b"changed")
    write_manifest(tmp_path / "p", plan, known={"weights.safetensors": entry})
    assert json.loads((tmp_path / "p" / "plan.json").read_text())["files"]["weights.safetensors"]["sha256"] == entry.sha256
    with pytest.raises(PlanError):
        read_plan(tmp_path / "p")


def test_constants(builder: Any, tmp_path: Path) -> None:
    arrays = {
        "f32": np.array([[1.5, np.inf, np.nan]], np.float32),
        "f16": np.array([1, 2], np.float16),
        "i64": np.array(-7, np.int64),
        "i8": np.arange(6, dtype=np.int8).reshape(2, 3),
        "u8": np.zeros((0, 4), np.uint8),
        "bool": np.array([True, False]),
    }
    # Widest first, so that every tensor is aligned.
    index = {name: builder.const(name, arrays[name]) for name in ("i64", "f32", "f16")}
    index["bf16"] = builder.const("bf16", f32_to_bf16(np.array([1.5, -2], np.float32)), DType.bf16)
    index |= {name: builder.const(name, arrays[name]) for name in ("i8", "u8", "bool")}
    filled = {
        builder.fill("low", -math.inf, DType.f32, (3, 4)): np.full((3, 4), -np.inf, np.float32),
        builder.fill("spelled", "nan", DType.f16, (2,)): np.full(2, np.nan, np.float16),
        builder.fill("true", True, DType.bool, ()): np.array(True),
        builder.fill("byte", 200, DType.u8, (1, 2)): np.full((1, 2), 200, np.uint8),
        builder.fill("half", 1.5, DType.bf16, (2,)): f32_to_bf16(np.full(2, 1.5, np.float32)),
    }
    builder.vocab = 1
    x = builder.node("neg", index["f32"])
    builder.write(tmp_path / "p", x)
    with read_plan(tmp_path / "p") as loaded:
        for name, array in arrays.items():
            got = loaded.constant(index[name])
            assert got.dtype == array.dtype
            np.testing.assert_array_equal(got, array)
            assert not got.flags.writeable
            assert loaded.constant(index[name]) is got
        np.testing.assert_array_equal(bf16_to_f32(loaded.constant(index["bf16"])), [1.5, -2])
        for number, array in filled.items():
            assert loaded.constant(number).dtype == array.dtype
            np.testing.assert_array_equal(loaded.constant(number), array)
        with pytest.raises(PlanError, match="not a constant"):
            loaded.constant(x)
    np.testing.assert_array_equal(loaded.constant(index["i8"]), arrays["i8"])


@pytest.mark.parametrize("number", [math.inf, -math.inf, math.nan, 0.1, 1.0, -0.0, 1e-45])
def test_floats_survive(builder: Any, number: float) -> None:
    builder.vocab = 1
    x = builder.const("x", np.ones((2, 2), np.float32))
    padded = builder.node("pad", x, pads=(0, 1, 0, 1), value=number)
    text = encode_plan(builder.plan(padded))
    json.loads(text, parse_constant=lambda name: pytest.fail(f"not JSON: {name}"))
    back = decode_plan(text, source="test").nodes[0].attrs
    assert back["pads"] == (0, 1, 0, 1)
    assert isinstance(back["value"], float)
    assert math.copysign(1, back["value"]) == math.copysign(1, number) or math.isnan(number)
    assert back["value"] == number or (math.isnan(number) and math.isnan(back["value"]))
    assert encode_plan(decode_plan(text, source="test")) == text


def test_whole_numbers_become_floats(editor: Any) -> None:
    editor.edit(lambda plan: next(n for n in plan["nodes"] if n["op"] == "attention")["attrs"].update(scale=1))
    with read_plan(editor.root) as loaded:
        (node,) = (n for n in loaded.plan.nodes if n.op == "attention")
        assert isinstance(node.attrs["scale"], float)


def test_effective_bits_must_be_a_number(builder: Any) -> None:
    import msgspec

    builder.vocab = 1
    plan = builder.plan(builder.node("neg", builder.fill("x", 1.0)))
    with pytest.raises(PlanError, match="effective bits"):
        encode_plan(msgspec.structs.replace(plan, effective_bits=math.nan))


def test_what_cannot_be_read_is_not_written(builder: Any, tmp_path: Path) -> None:
    builder.vocab = 1
    builder.node("neg", builder.fill("x", 1.0))
    with pytest.raises(PlanError, match="output"):
        builder.write(tmp_path / "p", 0)
    assert not (tmp_path / "p" / "plan.json").exists()


def test_misaligned_tensor(builder: Any, tmp_path: Path) -> None:
    builder.const("byte", np.zeros(1, np.uint8))
    x = builder.node("neg", builder.const("x", np.ones(2, np.float32)))
    builder.vocab = 1
    builder.write(tmp_path / "p", x)
    with pytest.raises(PlanError, match="not aligned"):
        read_plan(tmp_path / "p")
