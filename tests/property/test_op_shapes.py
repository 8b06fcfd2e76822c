"""Whatever a shape rule accepts, the reference can run, and it gives exactly the shapes and dtypes that the rule said.

Generated code trusts the shape rules, so a rule that is too lenient is a memory error there. Inputs, attributes and declared outputs are
drawn without regard to the op; a rule answers nonsense with PlanError and nothing else.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mixplan.runtime.dtypes import DType
from mixplan.runtime.errors import PlanError, RequestError
from mixplan.runtime.ops import OPS, StepContext, op_spec
from mixplan.runtime.plan import Sym, dim_value

dims = st.one_of(
    st.integers(0, 4),
    st.sampled_from([1, 1, 2, 2, 4, Sym("T"), Sym("T"), Sym("R"), Sym("T", 2), Sym("T", 2, 2), Sym("T", 1, -1), Sym("R", 1, 1)]),
)
shapes = st.lists(dims, max_size=4).map(tuple)
dtypes = st.one_of(st.just(DType.f32), st.just(DType.i64), st.sampled_from(list(DType)))
small = st.integers(-2, 5)
attr_values = {
    bool: st.booleans(),
    int: small,
    float: st.sampled_from([0.0, 1.0, -1.0, 1e-5, "inf"]),
    str: st.sampled_from(["f32", "i8", "none", "add", "half", "interleaved", "causal", "chunked", "silu"]),
    tuple: st.lists(small, max_size=8).map(tuple),
}


@st.composite
def calls(draw, name):
    """(inputs, attrs, declared). Inputs are alike more often than chance, so that many calls are valid."""
    signature = op_spec(name).signature
    first = draw(st.tuples(dtypes, shapes))
    if name in ("any", "all", "logical_not"):
        first = (DType.bool, first[1])
    alike = st.one_of(st.just(first), st.tuples(st.just(first[0]), shapes), st.tuples(st.sampled_from([DType.i64, DType.bool]), shapes))
    count = len(signature.inputs) + (draw(st.integers(0, 2)) if any(entry.endswith("*") for entry in signature.inputs) else 0)
    inputs = [first, *(draw(alike) for _ in range(count - 1))][:count]
    if name == "where":
        inputs[0] = (DType.bool, inputs[0][1])
    attrs = {key: draw(attr_values[kind]) for key, kind in signature.attrs.items() if key not in signature.defaults or draw(st.booleans())}
    axes = range(len(first[1]))
    if "axis" in attrs and axes and draw(st.integers(0, 3)):
        attrs["axis"] = draw(st.sampled_from(axes))
    if "axes" in attrs and draw(st.booleans()):
        attrs["axes"] = tuple(draw(st.permutations(axes)))
    elif "pads" in attrs:
        attrs["pads"] = tuple(draw(st.integers(0, 2)) for _ in range(2 * len(axes)))
    declared = draw(st.tuples(dtypes, st.one_of(shapes, st.permutations(first[1]).map(tuple))))
    return inputs, attrs, [declared] * len(signature.outputs)


def array_of(rng, typed, tokens, rows):
    dtype, shape = typed
    size = tuple(dim_value(dim, tokens=tokens, rows=rows) for dim in shape)
    return rng.integers(0, 3, size).astype(dtype.numpy) if dtype is not DType.f32 else rng.standard_normal(size).astype(np.float32)


@pytest.mark.parametrize("name", OPS)
@settings(max_examples=120, deadline=None)
@given(data=st.data())
def test_accepted_calls_run_and_give_the_inferred_shapes(name, data):
    inputs, attrs, declared = data.draw(calls(name))
    spec = op_spec(name)
    try:
        inferred = spec.infer(inputs, attrs, declared)
    except PlanError:
        return
    for tokens, rows in ((1, 0), (2, 3)):
        rng = np.random.default_rng(0)
        sizes = tuple(tuple(dim_value(dim, tokens=tokens, rows=rows) for dim in shape) for _, shape in inferred)
        ctx = StepContext(
            np.zeros(tokens, np.int32),
            np.arange(tokens, dtype=np.int32),
            out_shapes=sizes,
            out_dtypes=tuple(dtype for dtype, _ in inferred),
        )
        try:
            outputs = spec.reference(ctx, attrs, [array_of(rng, typed, tokens, rows) for typed in inputs])
        except RequestError:
            continue  # an index out of range is found when it is read
        assert [(output.dtype, output.shape) for output in outputs] == [
            (dtype.numpy, size) for (dtype, _), size in zip(inferred, sizes, strict=True)
        ]
