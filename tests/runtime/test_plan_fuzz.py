"""Property test: a plan.json changed at random is refused with a PlanError, or runs, with nothing but mixplan's own errors."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mixplan.runtime import load
from mixplan.runtime.errors import MixplanError, PlanError

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 70),
    st.sampled_from([-(2**63), 2**31 - 1, 2**31, 2**63, 10**30, -1, 0, 1e308, 0.5, -0.0]),
    st.sampled_from(["", "f32", "i64", "node", "const", "inf", "nan", "add", "reshape", "T", "../x", "w" * 300, "\u0000", "é"]),
)
JUNK = st.one_of(SCALARS, st.lists(SCALARS, max_size=4), st.dictionaries(st.sampled_from(["sym", "mul", "add", "x"]), SCALARS, max_size=3))


def places(data: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place in the JSON, as a path of keys."""
    found = [path] if path else []
    items = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, item in items:
        found += places(item, (*path, key))
    return found


def mutate(data: Any, draw: Any) -> None:
    """Change one place: replace, remove, duplicate, or put another place's content there."""
    everywhere = places(data)
    path = draw(st.sampled_from(everywhere))
    holder = data
    for key in path[:-1]:
        holder = holder[key]
    kind = draw(st.sampled_from(["junk", "junk", "near", "near", "remove", "repeat", "copy"]))
    present = holder[path[-1]]
    if kind == "near" and isinstance(present, int) and not isinstance(present, bool):
        holder[path[-1]] = present + draw(st.sampled_from([-2, -1, 1, 2, 16, 64]))
    elif kind == "remove":
        del holder[path[-1]]
    elif kind == "repeat" and isinstance(holder, list):
        holder.insert(path[-1], present)
    elif kind == "copy":
        other = draw(st.sampled_from(everywhere))
        content = data
        for key in other:
            content = content[key]
        holder[path[-1]] = json.loads(json.dumps(content))
    else:
        holder[path[-1]] = draw(JUNK)


def run(root: Path) -> None:
    """Load, and if that succeeds, step; anything but a typed error fails the test."""
    try:
        model = load(root, kv_tokens=64)
    except PlanError:
        return
    with model:
        try:
            model.step([0, 1, 2], [0, 1, 0], [0, 0, 1], "all")
            model.step([0], [2], [0], "none")
        except MixplanError as error:
            assert error.exit_code == 2, error


@pytest.fixture(scope="module", autouse=True)
def quiet() -> Any:
    """A changed device name falls back by the thousand."""
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


@settings(max_examples=400, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_changed_json(editor: Any, data: st.DataObject) -> None:
    original = (editor.root / "plan.json").read_bytes()
    plan = json.loads(original)
    for _ in range(data.draw(st.integers(1, 3))):
        mutate(plan, data.draw)
    try:
        editor.save(plan)
        run(editor.root)
    finally:
        editor.save_bytes(original)


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_changed_bytes(editor: Any, data: st.DataObject) -> None:
    original = (editor.root / "plan.json").read_bytes()
    text = bytearray(original)
    for _ in range(data.draw(st.integers(1, 3))):
        start = data.draw(st.integers(0, len(text) - 1))
        stop = start + data.draw(st.integers(0, 4))
        text[start:stop] = data.draw(
            st.one_of(st.binary(max_size=3), st.sampled_from([b"0", b"9", b"-", b'"', b"{", b"[", b"]}", b"e9", b","]))
        )
    try:
        editor.save_bytes(bytes(text))
        run(editor.root)
    finally:
        editor.save_bytes(original)
