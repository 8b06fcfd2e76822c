"""Property test: whatever is reserved, written, cut and freed, no page belongs to two sequences and none is lost."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from mixplan.runtime.errors import CapacityError, RequestError
from mixplan.runtime.hal import CacheSpec
from mixplan.runtime.kv_cache import PagedCache, Span

SPEC = CacheSpec(pages=9, page_size=4, max_sequences=3, max_pages_per_sequence=5)

SPANS = st.lists(
    st.tuples(st.integers(0, 4), st.integers(-1, 22), st.integers(1, 12)), min_size=1, max_size=3, unique_by=lambda span: span[0]
).map(lambda spans: [Span(sequence, start, start + count) for sequence, start, count in spans])
ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("step"), SPANS),
        st.tuples(st.just("fail"), SPANS),
        st.tuples(st.just("free"), st.integers(0, 4)),
        st.tuples(st.just("cut"), st.tuples(st.integers(0, 4), st.integers(-1, 22))),
    ),
    max_size=30,
)


@settings(max_examples=300, deadline=None)
@given(ACTIONS)
def test_pages_are_conserved(actions: list) -> None:
    cache = PagedCache(SPEC)
    lengths: dict[int, int] = {}
    for kind, argument in actions:
        before = dict(lengths)
        try:
            if kind == "free":
                cache.free(argument)
                lengths.pop(argument, None)
            elif kind == "cut":
                sequence, length = argument
                cache.truncate(sequence, length)
                lengths[sequence] = length
            else:
                slots = cache.reserve(argument)
                assert len(set(slots)) == len(slots)
                for slot, span in zip(slots, argument, strict=True):
                    assert (cache.tables[slot, : -(-span.stop // 4)] >= 0).all()
                (cache.commit if kind == "step" else cache.rollback)(argument)
                lengths.update({span.sequence: span.stop if kind == "step" else span.start for span in argument})
        except (CapacityError, RequestError):
            lengths = before
        lengths = {sequence: length for sequence, length in lengths.items() if length}
        assert {s: cache.length(s) for s in cache.sequences} == lengths
        used = cache.tables[cache.tables >= 0].tolist()
        assert len(set(used)) == len(used) == cache.pages_used == sum(-(-length // 4) for length in lengths.values())
        assert all(0 <= page < SPEC.pages for page in used)
        assert cache.pages_free == SPEC.pages - len(used)
