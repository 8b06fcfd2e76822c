"""The op table as a whole: names, documentation, the reference page, checks that every op shares; shape arithmetic."""

from __future__ import annotations

from pathlib import Path

import pytest

from mixplan.runtime.dtypes import DType
from mixplan.runtime.errors import InternalError, PlanError
from mixplan.runtime.ops import OPS, op_spec
from mixplan.runtime.ops.pages import render
from mixplan.runtime.ops.shapes import add, broadcast, is_at_most, least, same_size, shape_text
from mixplan.runtime.ops.table import by_name
from mixplan.runtime.plan import Sym

T, R = Sym("T"), Sym("R")
X = (DType.f32, (1, T, 8))


def test_an_unknown_op_is_refused():
    with pytest.raises(PlanError, match="Op 'conv9d' is not known"):
        op_spec("conv9d")


def test_a_duplicate_name_is_refused():
    with pytest.raises(InternalError, match="Two ops are called 'add'"):
        by_name([OPS["add"], OPS["mul"], OPS["add"]])


def test_the_reference_page_is_up_to_date():
    page = Path(__file__).parents[2] / "docs" / "reference" / "ops.md"
    assert page.read_text() == render(), "Run: python -m mixplan.runtime.ops > docs/reference/ops.md"


@pytest.mark.parametrize("name", OPS)
def test_every_op_is_documented_and_well_formed(name):
    spec = op_spec(name)
    assert spec.name == name and spec.doc.endswith(".") and f"**{name}**" in render()
    assert set(spec.signature.defaults) <= set(spec.signature.attrs)
    assert all(not entry.endswith("*") for entry in spec.signature.inputs[:-1])
    optional = [entry.endswith("?") for entry in spec.signature.inputs]
    assert optional == sorted(optional), "optional inputs come last"
    for key, kind in spec.signature.attrs.items():
        if key in spec.signature.defaults:
            assert type(spec.signature.defaults[key]) is kind


@pytest.mark.parametrize("name", OPS)
def test_every_op_refuses_missing_and_unknown_arguments(name):
    spec = op_spec(name)
    with pytest.raises(PlanError):
        spec.infer([], {"no_such_attribute": 1}, [])
    if spec.signature.inputs:
        with pytest.raises(PlanError):
            spec.infer([], {}, [])
    with pytest.raises(PlanError):
        spec.infer([X] * 20, {}, [])
    with pytest.raises(PlanError):
        spec.infer([None] * len(spec.signature.inputs), {}, [X] * 9)


@pytest.mark.parametrize(
    ("op", "inputs", "attrs", "declared", "text"),
    [
        ("add", [X, X], {"axis": 1}, [], "no attribute 'axis'; allowed: none"),
        ("softmax", [X], {"axis": 1, "dim": 1}, [], "no attribute 'dim'; allowed: axis"),
        ("softmax", [X], {"axis": True}, [], "is True; it must be int"),
        ("softmax", [X], {"axis": 1.0}, [], "is 1.0; it must be int"),
        ("permute", [X], {"axes": (0, 1, True)}, [], "must be a list of integers"),
        ("rms_norm", [X], {"eps": "small"}, [], "must be float"),
        ("rope", [X, X, X], {"style": 1}, [], "must be str"),
        ("add", [X, None], {}, [], "needs its input 'b' \\(number 1\\)"),
        ("add", [X, X, X], {}, [], "got 3 inputs; its signature is \\(a, b\\)"),
        ("add", [X, X], {}, [X, X], "has 1 outputs; the plan declares 2"),
    ],
)
def test_arguments_are_checked_against_the_signature(op, inputs, attrs, declared, text):
    with pytest.raises(PlanError, match=text):
        op_spec(op).infer(inputs, attrs, declared)


def test_floats_may_be_given_as_integers_or_spelled():
    for value in (1, "inf", "-inf", "nan", 0.5):
        op_spec("pad").infer([X], {"pads": [0] * 6, "value": value}, [])


def test_left_out_inputs_at_the_end_may_be_absent_or_none():
    weight = (DType.f32, (8,))
    for inputs in ([X], [X, None], [X, weight], [X, weight, None]):
        assert op_spec("layer_norm").infer(inputs, {"eps": 1e-5}, []) == (X,)


def test_sums_of_dims():
    assert add(2, 3) == 5
    assert add(T, 2) == add(2, T) == Sym("T", 1, 2)
    assert add(Sym("T", 2, 1), Sym("T", 3, -1)) == Sym("T", 5, 0)
    with pytest.raises(PlanError, match="mixes two symbols"):
        add(T, R)


def test_sizes_are_compared_in_every_step():
    assert same_size((T, 6), (2, T, 3)) and same_size((Sym("T", 2, 4), 3), (6, Sym("T", 1, 2))) and same_size((T, R), (R, T))
    assert same_size((0, T), (R, 0)) and same_size((), (1,))
    assert not same_size((T,), (R,)) and not same_size((T, T), (T,)) and not same_size((T, 2), (Sym("T", 1, 1), 2))


def test_broadcasting_keeps_symbols():
    assert broadcast((T, 1), (1, 5)) == (T, 5) and broadcast((), (R,)) == (R,)
    with pytest.raises(PlanError, match=r"\[T\] and \[2\*T\+1\] do not broadcast"):
        broadcast((T,), (Sym("T", 2, 1),))


def test_bounds_hold_in_every_step():
    assert (least(T), least(R), least(Sym("T", 2, 3)), least(7)) == (1, 0, 5, 7)
    assert is_at_most(1, T) and is_at_most(T, Sym("T", 2)) and is_at_most(3, 3) and is_at_most(T, T)
    assert not is_at_most(2, T) and not is_at_most(T, 9) and not is_at_most(T, R) and not is_at_most(Sym("T", 2, -1), T)


def test_shapes_as_text():
    assert shape_text((1, T, Sym("T", 2, -1), Sym("R", 1, 3))) == "[1, T, 2*T-1, R+3]"
