"""Weights of every format, and activations with static scales, in onnxruntime."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest

from mixplan.runtime.devices.npu_forms import weight_form
from mixplan.runtime.dtypes import DType
from mixplan.runtime.errors import OptionError
from mixplan.runtime.formats import WeightFormat
from mixplan.runtime.packing import Packed, Quantized, interleave_gated, pack, quantize_act, unpack
from mixplan.targets.npu.graph import Range
from mixplan.targets.npu.lower.quantize import static_scale
from mixplan.targets.npu.lower.table import unsupported_reason
from mixplan.targets.npu.model import region_model
from mixplan.targets.npu.notes import weight_notes
from mixplan.targets.npu.providers.base import ACTIVATIONS
from mixplan.targets.npu.providers.table import provider_rules

Compare = Callable[..., None]
ROWS, COLUMNS = 24, 70  # not whole blocks of 16, nor whole groups of 32
FORMATS = {
    "f32": WeightFormat(32),
    "bf16": WeightFormat(16),
    "i8": WeightFormat(8),
    "i8 asym": WeightFormat(8, 0, False),
    "i8 g32": WeightFormat(8, 32, True, DType.f16),
    "i6": WeightFormat(6, 64, True, DType.f16),
    "i5": WeightFormat(5, 32, True, DType.i8),
    "i4": WeightFormat(4, 32, True, DType.f16),
    "i4 asym": WeightFormat(4, 32, False, DType.f32),
    "i3": WeightFormat(3, 32, True, DType.f16),
    "i2 asym": WeightFormat(2, 64, False, DType.f16),
    "i4 minima": WeightFormat(4, 32, False, DType.f16, zero_dtype=DType.f16),
    "i8 minima": WeightFormat(8, 0, False, zero_dtype=DType.f16),
    "i3 minima": WeightFormat(3, 64, False, DType.i8, zero_dtype=DType.f16),
    "n5": WeightFormat(5, 128, True, DType.f16, nonuniform=True),
    "n4": WeightFormat(4, 32, True, DType.f16, nonuniform=True),
    "n3": WeightFormat(3, 32, True, DType.i8, nonuniform=True),
    "n2": WeightFormat(2, 64, True, DType.f32, nonuniform=True),
}


def _packed(fmt: WeightFormat, seed: int) -> Packed:
    rng = np.random.default_rng(seed)
    if not fmt.quantized:
        return pack(fmt, rng.standard_normal((ROWS, COLUMNS)).astype(np.float32))
    groups = fmt.groups(COLUMNS)
    scales = rng.uniform(0.01, 0.1, (ROWS, groups)).astype(np.float32) / (16 if fmt.nonuniform else 1)
    if fmt.two_level:
        scales = (np.full((ROWS, 1), 2.0 ** (-13 if fmt.nonuniform else -9)) * rng.integers(1, 128, (ROWS, groups))).astype(np.float32)
    zeros = None if fmt.symmetric else rng.integers(0, fmt.levels, (ROWS, groups)).astype(np.uint8)
    if fmt.has_minimum:
        zeros = rng.uniform(-1, 0, (ROWS, groups)).astype(np.float16)
    return pack(fmt, Quantized(rng.integers(0, fmt.levels, (ROWS, COLUMNS)).astype(np.uint8), scales, zeros))


def _attrs(fmt: WeightFormat) -> dict[str, Any]:
    return {"format": fmt.name, "rows": ROWS, "columns": COLUMNS, "group_size": fmt.group_size}


def _constants(nodes: Any, packed: Packed) -> list[int]:
    return [nodes.const(packed.get(role)) for role in ("weight", "scales", "zeros")]


@pytest.mark.parametrize("name", FORMATS)
def test_products_and_rows_of_every_format(nodes: Any, compare: Compare, name: str) -> None:
    fmt, rng = FORMATS[name], np.random.default_rng(1)
    x = nodes.input(rng.standard_normal((1, 5, COLUMNS)).astype(np.float32))
    ids = nodes.input(rng.integers(0, ROWS, (1, 5)))
    one, other = _packed(fmt, 2), _packed(fmt, 3)
    weight, gated = _constants(nodes, one), _constants(nodes, interleave_gated(one, other))
    bias, both = nodes.const(rng.standard_normal(ROWS).astype(np.float32)), nodes.const(rng.standard_normal((2, ROWS)).astype(np.float32))
    residual = nodes.input(rng.standard_normal((1, 5, ROWS)).astype(np.float32))
    outputs = [
        *nodes.node("linear", [x, *weight, bias, residual], **_attrs(fmt)),
        *nodes.node("linear", [x, *weight], **_attrs(fmt), activation_dtype="bf16"),
        *nodes.node("gated_linear", [x, *gated, both], **_attrs(fmt), activation="gelu_tanh"),
        *nodes.node("embedding", [ids, *weight], **_attrs(fmt)),
    ]
    compare(nodes, outputs, rtol=2e-5, atol=2e-4)


@pytest.mark.parametrize("name", ["uint8", "int8", "uint16", "int16"])
def test_static_scales(nodes: Any, run: Any, name: str) -> None:
    """The product of what QuantizeLinear makes of x, worked out here from the definition."""
    fmt, rng = FORMATS["i4"], np.random.default_rng(1)
    data = rng.standard_normal((1, 5, COLUMNS)).astype(np.float32) + 0.5
    x, packed = nodes.input(data), _packed(fmt, 2)
    codes = nodes.node("quantize_act", [x], group=32)
    outputs = nodes.node("linear_q", [*codes, *_constants(nodes, packed)], **_attrs(fmt))
    low, high = -1.0, 2.25  # narrower than the data: what is outside is clipped
    (got,) = run(nodes, outputs, activation=name, ranges={nodes.values[codes[0]].name: (low, high)})
    kind = ACTIVATIONS[name]
    step = (high - low) / (kind.high - kind.low) if not kind.symmetric else 2 * high / (kind.high - kind.low)
    zero = round(kind.low - low / step) if not kind.symmetric else 0
    least = kind.low if not kind.symmetric else kind.low - 1  # QuantizeLinear fills the whole type
    seen = (np.clip(np.rint(data / np.float32(step)) + zero, least, kind.high) - zero) * np.float32(step)
    wanted = seen @ unpack(fmt, packed, ROWS, COLUMNS).T
    # A number halfway between two codes may fall to either side: one step of one column.
    np.testing.assert_allclose(got, wanted, 1e-4, 2e-4 + step)
    assert np.abs(got - wanted).mean() < 1e-4 + step / 20


def test_codes_that_leave_the_region_are_made_row_by_row(nodes: Any, compare: Compare) -> None:
    rng = np.random.default_rng(5)
    x = nodes.input(np.concatenate([rng.standard_normal((1, 4, 70)), np.zeros((1, 1, 70))], axis=1).astype(np.float32))
    outputs = [*nodes.node("quantize_act", [x], group=32), *nodes.node("rms_norm_quant", [x], eps=1e-5, group=0)]
    compare(nodes, outputs, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(("name", "whole"), [("i4", 0), ("i8", 2), ("i8 asym", 2), ("i8 minima", 2)])
def test_codes_that_come_from_outside_keep_their_own_scales(nodes: Any, compare: Compare, name: str, whole: int) -> None:
    """And are multiplied as integers where a channel of the weight has one scale: exactly, but for what the scales round."""
    fmt, rng = FORMATS[name], np.random.default_rng(1)
    made = quantize_act(rng.standard_normal((1, 5, COLUMNS)).astype(np.float32), fmt.group_size)
    codes, gated = [nodes.input(array) for array in made], interleave_gated(_packed(fmt, 2), _packed(fmt, 3))
    outputs = [
        *nodes.node("linear_q", [*codes, *_constants(nodes, _packed(fmt, 2))], **_attrs(fmt)),
        *nodes.node("gated_linear_q", [*codes, *_constants(nodes, gated)], **_attrs(fmt), activation="relu"),
    ]
    compare(nodes, outputs, rtol=1e-4, atol=1e-3)
    model = region_model(*nodes.plan(outputs), provider_rules("cpu"), ranges={}, activation=ACTIVATIONS["uint8"])
    assert [node.op_type for node in model.graph.node].count("MatMulInteger") == whole


def test_without_a_range_an_activation_is_refused(nodes: Any, run: Any) -> None:
    x = nodes.input(np.ones((1, 5, COLUMNS), np.float32))
    codes = nodes.node("quantize_act", [x], group=32)
    outputs = nodes.node("linear_q", [*codes, *_constants(nodes, _packed(FORMATS["i4"], 2))], **_attrs(FORMATS["i4"]))
    with pytest.raises(OptionError, match="needs a static scale") as caught:
        run(nodes, outputs)
    assert "--text" in str(caught.value)


def test_scales_fill_the_type() -> None:
    scale, zero = static_scale(Range(-1.0, 3.0), ACTIVATIONS["uint8"])
    assert scale == pytest.approx(4 / 255) and zero == 64
    assert static_scale(Range(1.0, 3.0), ACTIVATIONS["uint8"]) == (pytest.approx(3 / 255), 0)  # 0 stays exact
    assert static_scale(Range(-2.0, 1.0), ACTIVATIONS["int8"]) == (pytest.approx(2 / 127), 0)
    assert static_scale(Range(0.0, 0.0), ACTIVATIONS["int16"])[0] == 1.0
    assert static_scale(Range(-2.0, 1.0), ACTIVATIONS["int8"], power_of_two=True) == (2.0**-5, 0)


@pytest.mark.parametrize("name", ["i8", "i8 asym", "i8 minima", "i4", "n3"])
def test_formats_for_a_provider_of_one_scale_a_tensor(nodes: Any, compare: Compare, name: str) -> None:
    """Channels' scales come after the product, zero points become minima, and what has groups stands as numbers: all equal to the plan."""
    fmt, rng = FORMATS[name], np.random.default_rng(1)
    x, both = nodes.input(rng.standard_normal((1, 5, COLUMNS)).astype(np.float32)), interleave_gated(_packed(fmt, 2), _packed(fmt, 3))
    outputs = [
        *nodes.node("linear", [x, *_constants(nodes, _packed(fmt, 2))], **_attrs(fmt)),
        *nodes.node("gated_linear", [x, *_constants(nodes, both)], **_attrs(fmt), activation="relu"),
    ]
    compare(nodes, outputs, rtol=2e-5, atol=5e-4, provider="vitisai")


def test_forms_follow_the_provider() -> None:
    def form(name: str, provider: str) -> tuple[str, str, str, bool, bool]:
        made = weight_form(FORMATS[name], provider_rules(provider).weights, table=False)
        return made.kind, made.stored, made.scales, made.zeros, made.minima

    assert form("i4", "cpu") == ("i4", "middle", "block", False, False)
    assert form("i4 asym", "cpu") == ("u4", "codes", "block", True, False)
    assert form("i4 minima", "cpu") == ("i4", "middle", "block", False, True)
    assert form("n4", "cpu") == ("i8", "entries", "block", False, False)
    assert form("i8 asym", "vitisai") == ("i8", "middle", "after", False, True)
    assert form("i4", "vitisai") == ("f32", "numbers", "", False, False)
    folded = weight_form(FORMATS["i4"], provider_rules("cann").weights, table=False).folded
    assert folded == "it takes a scale for each tensor of a weight, not for each group of columns"


def test_what_takes_more_room_than_in_the_plan_is_told(nodes: Any) -> None:
    x = nodes.input(np.ones((1, 5, COLUMNS), np.float32))
    outputs = [
        y
        for name in ("i8", "i4", "n4")
        for y in nodes.node("linear", [x, *_constants(nodes, _packed(FORMATS[name], 2))], **_attrs(FORMATS[name]))
    ]
    plan, region = nodes.plan(outputs)
    (note,) = weight_notes(plan, region, provider_rules("cpu"))
    assert note.startswith(
        "1 weights of n4 in groups of 32 stand in the model for cpu as int8, 1,968 bytes where the plan has 984: the ent"
    )
    four, _ = weight_notes(plan, region, provider_rules("vitisai"))
    assert "as float32, 6,720 bytes where the plan has 984" in four and provider_rules("vitisai").source in four


def test_a_format_that_is_not_known_is_refused_with_its_name(nodes: Any) -> None:
    x = nodes.input(np.ones((1, 5, COLUMNS), np.float32))
    nodes.node("linear", [x, *_constants(nodes, _packed(FORMATS["i8"], 2))], **_attrs(FORMATS["i8"]))
    odd = msgspec.structs.replace(nodes.made[0], attrs={**nodes.made[0].attrs, "format": "q9"})
    assert "'q9'" in unsupported_reason(odd, nodes.values, provider_rules("cpu"))
