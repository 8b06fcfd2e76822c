"""Schemes, overrides, their assignment to layers, effective bits."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from mixplan.passes.base import PassContext, PassOptions
from mixplan.passes.decision import decision_of
from mixplan.passes.pipeline import default_passes
from mixplan.passes.precision.assign import HEAD_REASON
from mixplan.passes.precision.effective_bits import effective_bits
from mixplan.passes.precision.overrides import parse_override, resolve
from mixplan.passes.precision.schemes import SCHEME_NAMES, parse_scheme
from mixplan.runtime.dtypes import DType
from mixplan.runtime.errors import OptionError
from mixplan.runtime.formats import WeightFormat


@pytest.mark.parametrize(
    ("text", "options", "spelling", "weight", "activation"),
    [
        ("FP32", {}, "FP32", WeightFormat.of("f32"), "f32"),
        ("bf16", {"group_size": 64, "asymmetric": True}, "BF16", WeightFormat.of("bf16"), "bf16"),
        ("W8A16", {}, "W8A16", WeightFormat.of("i8"), "f32"),
        ("W8A8:g64", {}, "W8A8:g64", WeightFormat.of("i8", 64), "i8"),
        ("W4A16", {}, "W4A16:g128", WeightFormat.of("i4", 128), "f32"),
        ("w4a8:g64,asym", {}, "W4A8:g64,asym", WeightFormat.of("i4", 64, False), "i8"),
        ("W4A8", {"group_size": 32, "asymmetric": True}, "W4A8:g32,asym", WeightFormat.of("i4", 32, False), "i8"),
        ("W3A16:g32,nl,s8", {}, "W3A16:g32,nl,s8", WeightFormat.of("n3", 32, True, DType.i8), "f32"),
        ("w5a8:MIN", {}, "W5A8:g128,min", WeightFormat.of("i5", 128, False, None, DType.f16), "i8"),
        ("W6A16:s32", {"group_size": 32}, "W6A16:g32,s32", WeightFormat.of("i6", 32, True, DType.f32), "f32"),
        ("W2A8:nl", {"group_size": 64, "asymmetric": True}, "W2A8:g64,nl", WeightFormat.of("n2", 64), "i8"),
        ("W8A16:g32,s8", {}, "W8A16:g32,s8", WeightFormat.of("i8", 32, True, DType.i8), "f32"),
        ("FP8", {"asymmetric": True}, "FP8", WeightFormat.of("e4m3"), "e4m3"),
        ("fp8:g128", {}, "FP8:g128", WeightFormat.of("e4m3", 128), "e4m3"),
        ("w8a16:E4M3,g64", {}, "W8A16:g64,e4m3", WeightFormat.of("e4m3", 64), "f32"),
        ("W4A8:s16", {}, "W4A8:g128", WeightFormat.of("i4", 128), "i8"),
        ("W4A8:g64,sym", {"group_size": 32, "asymmetric": True}, "W4A8:g64", WeightFormat.of("i4", 64), "i8"),
    ],
)
def test_schemes(text: str, options: dict[str, Any], spelling: str, weight: WeightFormat, activation: str) -> None:
    """Names, suffixes, and options as defaults; the spelling reads back."""
    scheme = parse_scheme(text, **options)
    assert (str(scheme), scheme.weight, scheme.activation) == (spelling, weight, activation)
    assert parse_scheme(str(scheme)) == scheme


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("W7A8", f"Scheme 'W7A8' is not known; allowed: {', '.join(SCHEME_NAMES)}"),
        ("W4A8:g16", "group_size 16 is not supported; allowed: 32, 64, 128"),
        ("W4A8:g0", "group_size 0 is not supported"),
        ("W8A8:fast", "suffix 'fast' is not known; allowed: g32, g64, g128, sym, asym, min, nl, e4m3, s8, s16, s32"),
        ("W6A8:nl", "Scheme 'W6A8:nl': There is no codebook of 6 bits"),
        ("W4A8:nl,asym", "cannot be asymmetric"),
        ("W8A8:s8", "per channel are not held as i8"),
        ("W8A8:nl", "no codebook"),
        ("W4A16:e4m3", "no format of floats of 4 bits"),
        ("W8A8:e4m3", "int8 inputs are multiplied with integers"),
        ("FP8:asym", "cannot be asymmetric"),
        ("BF16:g32", "BF16 has no scales"),
    ],
)
def test_wrong_schemes(text: str, message: str) -> None:
    """The message lists what is allowed."""
    with pytest.raises(OptionError, match=message):
        parse_scheme(text)


LAYERS = {"model.a.up": (), "model.a.down": (), "model.embed": ("head",)}


@pytest.mark.parametrize(
    ("given", "layer", "scheme"),
    [
        (["re:up=W8A8"], "model.a.up", "W8A8"),
        (["re:a\\.=W8A8", "re:up=BF16"], "model.a.up", "BF16"),
        (["model.a.up=BF16", "re:up=W8A8"], "model.a.up", "BF16"),
        (["model.a.up=BF16", "model.a.up=FP32"], "model.a.up", "FP32"),
        (["head=W8A16"], "model.embed", "W8A16"),
        (["re:x=y|up=W8A16"], "model.a.up", "W8A16"),
    ],
)
def test_overrides(given: list[str], layer: str, scheme: str) -> None:
    """Exact beats pattern, later beats earlier, tied names count."""
    chosen = resolve([parse_override(text) for text in given], LAYERS)
    assert str(chosen[layer].scheme) == scheme


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("model.a.upp=W8A8", r"matches no layer.\nLayers with near names: model.a.up"),
        ("re:gate=W8A8", "matches no layer"),
        ("W8A8", "is not of the form LAYER=SCHEME"),
        ("re:=W8A8", "is not of the form"),
        ("re:(=W8A8", "the pattern is not a regular expression"),
        ("x=W9", "Scheme 'W9' is not known"),
    ],
)
def test_wrong_overrides(text: str, message: str) -> None:
    """An override that means nothing is an error."""
    with pytest.raises(OptionError, match=message):
        resolve([parse_override(text)], LAYERS)


def test_assignment(from_function: Any) -> None:
    """Tied weights are decided once; the head has 8 bits; a transposed weight is its layer; computed tables stay FP32; bits are counted."""

    def function(m: Any, ids: Tensor) -> Tensor:
        x = F.embedding(ids, m.embed) + F.embedding(ids, m.buffer_table)
        return F.linear(torch.matmul(x, m.inner), m.embed)

    weights = {"embed": torch.randn(64, 128), "inner": torch.randn(128, 128), "buffer_table": torch.randn(64, 128)}
    small = from_function(function, torch.arange(7)[None], **weights)
    options = PassOptions(parse_scheme("W4A16"), (parse_override("inner=W8A16:g64"),))
    context = PassContext(options, tied={"head.weight": "embed"})
    small.run(default_passes(options), context)
    assert {name: (str(one.scheme), one.rule, one.reason) for name, one in context.decisions.items()} == {
        "embed": ("W8A16", "head", HEAD_REASON),
        "buffer_table": ("FP32", "computed", "the module computes this table; the checkpoint does not hold it"),
        "inner": ("W8A16:g64", "override", "inner=W8A16:g64"),
    }
    decided = [decision_of(node) for node in small.graph.graph.nodes if "linear" in str(node.target) or "embedding" in str(node.target)]
    assert [one.layer for one in decided if one is not None] == ["embed", "buffer_table", "inner", "embed"]
    bits = effective_bits(context.decisions, context.sizes)
    assert bits.by_scheme["W8A16"] == (64 * 128, 8 + 32 / 128)
    assert bits.by_scheme["W8A16:g64"] == (128 * 128, 8 + 16 / 64)
    assert bits.parameters == 128 * 256
    assert bits.total == pytest.approx((64 * 128 * (8.25 + 32) + 128 * 128 * 8.25) / (128 * 256))


def test_head_in_four_bits(from_function: Any) -> None:
    """A layer that feeds the logits only through another is no head; an override decides over the rule."""

    def function(m: Any, x: Tensor) -> Tensor:
        return torch.tanh(F.linear(F.linear(x, m.inner), m.head)) * 30.0

    weights = {"inner": torch.randn(128, 128), "head": torch.randn(64, 128)}
    for overrides, head in (((), ("W8A8", "head")), ((parse_override("head=W4A8:g32"),), ("W4A8:g32", "override"))):
        small = from_function(function, torch.randn(1, 7, 128), **weights)
        options = PassOptions(parse_scheme("W4A8:g32"), overrides)
        context = PassContext(options)
        small.run(default_passes(options), context)
        assert {name: (str(one.scheme), one.rule) for name, one in context.decisions.items()} == {
            "inner": ("W4A8:g32", "uniform"),
            "head": head,
        }
