"""Stop strings: found across chunks, never shown, and nothing else held back for good."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mixplan.runtime.text.stop import StopScanner


def _run(chunks: list[str], *stops: str) -> tuple[list[str], str | None]:
    scanner = StopScanner(stops)
    shown = [scanner.push(chunk) for chunk in chunks]
    if scanner.matched is None:
        shown.append(scanner.flush())
    return shown, scanner.matched


@pytest.mark.parametrize(
    ("chunks", "stops", "text", "matched"),
    [
        (["Hello", " world"], (), "Hello world", None),
        (["Hel", "lo\n", "\nUser: x"], ("\n\nUser:",), "Hello", "\n\nUser:"),
        (["a<|", "im_e", "nd|>b"], ("<|im_end|>",), "a", "<|im_end|>"),
        (["a<|", "im_e", "x"], ("<|im_end|>",), "a<|im_ex", None),
        (["aab"], ("ab",), "a", "ab"),
        (["one two"], ("two", "one"), "", "one"),
        (["xENDyEND"], ("END",), "x", "END"),
        (["a", "a", "a", "b"], ("aab",), "a", "aab"),
        (["ab"], ("abc",), "ab", None),
    ],
)
def test_cases(chunks: list[str], stops: tuple[str, ...], text: str, matched: str | None) -> None:
    shown, found = _run(chunks, *stops)
    assert "".join(shown) == text
    assert found == matched


def test_text_that_cannot_become_a_stop_string_is_shown_at_once() -> None:
    scanner = StopScanner(("\n\n",))
    assert scanner.push("line\n") == "line"
    assert scanner.push("next") == "\nnext"


def test_nothing_after_a_match() -> None:
    scanner = StopScanner(("x",))
    assert scanner.push("axb") == "a"
    assert scanner.push("more") == "" and scanner.matched == "x"


@given(st.text("ab", max_size=12), st.lists(st.text("ab", min_size=1, max_size=4), max_size=3), st.lists(st.integers(0, 12), max_size=4))
def test_equals_a_search_in_the_whole_text(text: str, stops: list[str], cuts: list[int]) -> None:
    edges = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    shown, matched = _run([text[a:b] for a, b in pairwise(edges)], *stops)
    # The stop string that is complete first ends the text; a stop that begins earlier, but ends later, was not there yet.
    ends = sorted((text.find(stop) + len(stop), stop) for stop in stops if stop in text)
    if not ends:
        assert "".join(shown) == text and matched is None
    else:
        assert matched in stops and text.startswith("".join(shown) + matched)
        assert not any(stop in "".join(shown) for stop in stops)
