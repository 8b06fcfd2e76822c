"""Symbolic strides against numpy's own, and the arena: no two buffers that are needed at once overlap."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from mixplan.runtime.dtypes import DType
from mixplan.runtime.plan import Sym
from mixplan.targets.cpu.codegen.builder import Op
from mixplan.targets.cpu.codegen.poly import ONE, Poly
from mixplan.targets.cpu.codegen.ref import Buffer, Ref, collapse, contiguous_strides, reshape
from mixplan.targets.cpu.codegen.writer import Operand
from mixplan.targets.cpu.memory_plan import ALIGNMENT, lifetimes, plan_memory

T, R = Poly.of(Sym("T")), Poly.of(Sym("R"))
SIZES = {"T": 7, "R": 3}


def _at(poly: Poly) -> int:
    return poly.at(SIZES["T"], SIZES["R"])


def _array(ref: Ref, data: np.ndarray) -> np.ndarray:
    """The elements that a reference shows of a flat buffer."""
    return np.lib.stride_tricks.as_strided(
        data[_at(ref.offset) :], tuple(map(_at, ref.shape)), tuple(_at(s) * data.itemsize for s in ref.strides), writeable=False
    )


dims = st.sampled_from([ONE, T, R, Poly.of(2), Poly.of(6), T * 2, T * 4])


@st.composite
def views(draw: Any) -> Ref:
    """A permuted part of a contiguous array."""
    shape = tuple(draw(st.lists(dims, min_size=1, max_size=4)))
    order = draw(st.permutations(range(len(shape))))
    ref = Ref(Buffer("input"), DType.f32, shape, contiguous_strides(shape))
    return ref.view(tuple(shape[i] for i in order), tuple(ref.strides[i] for i in order))


@given(views(), st.lists(dims, min_size=0, max_size=5))
def test_reshape_shows_the_same_elements_in_order(ref: Ref, shape: list[Poly]) -> None:
    flat = np.arange(_at(ref.size), dtype=np.float32)
    seen = reshape(ref, tuple(shape))
    if seen is None:
        return
    np.testing.assert_array_equal(_array(seen, flat), _array(ref, flat).reshape(tuple(map(_at, shape))))


@given(views())
def test_reshape_splits_and_merges_contiguous_memory(ref: Ref) -> None:
    whole = Ref(Buffer("input"), DType.f32, (ref.size,), (ONE,))
    split = reshape(whole, ref.shape)
    assert split is not None
    assert split.contiguous
    assert reshape(split, (ref.size,)) == whole


@given(views())
def test_collapse_walks_the_same_offsets(ref: Ref) -> None:
    sizes, (strides,) = collapse(ref.shape, [ref.strides])
    flat = np.arange(_at(ref.size), dtype=np.float32)
    merged = ref.view(tuple(sizes), tuple(strides))
    np.testing.assert_array_equal(_array(merged, flat).ravel(), _array(ref, flat).ravel())
    assert all(n != ONE for n in sizes) or sizes == [ONE]


def test_polynomials_are_normal_forms() -> None:
    assert (T + 1) * 2 == T * 2 + 2
    assert T * R == R * T
    assert (T + -1) + 1 == T
    assert not (T * 0).terms
    assert str(T * 64 + 3) == "(3 + 64*T)"
    assert str(T * T * R) == "T*T*R"
    assert Poly.of(5).constant == 5
    assert T.constant is None
    assert (T * 3 + 4).split() == (4, T * 3)


@st.composite
def programs(draw: Any) -> list[Op]:
    """Ops that each write one buffer and read some earlier ones."""
    ops: list[Op] = []
    buffers: list[Buffer] = []
    for _ in range(draw(st.integers(1, 25))):
        made = Buffer("arena", nbytes=draw(st.sampled_from([1, 64, 100, 4096, 10_000])))
        reads = draw(st.lists(st.sampled_from(buffers), max_size=3)) if buffers else []
        buffers.append(made)
        ops.append(Op("f", (*(Operand(b, 0, False) for b in reads), Operand(made, 0, True)), 0, ONE))
    return ops


@given(programs())
def test_buffers_needed_at_once_do_not_overlap(ops: list[Op]) -> None:
    size = plan_memory(ops)
    spans = list(lifetimes(ops).items())
    for i, (a, (a_first, a_last)) in enumerate(spans):
        assert a.offset % ALIGNMENT == 0
        assert a.offset + a.nbytes <= size
        for b, (b_first, b_last) in spans[i + 1 :]:
            if a_first <= b_last and b_first <= a_last:
                assert a.offset + a.nbytes <= b.offset or b.offset + b.nbytes <= a.offset


def test_a_chain_of_buffers_needs_room_for_two() -> None:
    buffers = [Buffer("arena", nbytes=1000) for _ in range(50)]
    ops = [Op("f", (Operand(a, 0, False), Operand(b, 0, True)), 0, ONE) for a, b in pairwise(buffers)]
    assert plan_memory(ops) == 2 * 1024
