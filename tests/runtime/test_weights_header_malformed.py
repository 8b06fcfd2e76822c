"""One test per malformation of a weights file's header: each gives a PlanError that names what is wrong."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from mixplan.runtime import load
from mixplan.runtime.errors import PlanError

WEIGHTS = "weights.safetensors"


def corrupt(change: Callable[[Any], Any]) -> Callable[[bytes], bytes]:
    """A change of the safetensors header, lengths kept right."""

    def apply(content: bytes) -> bytes:
        length = int.from_bytes(content[:8], "little")
        header = json.loads(content[8 : 8 + length])
        text = json.dumps(change(header) or header).encode()
        return len(text).to_bytes(8, "little") + text + content[8 + length :]

    return apply


HEADERS: list[tuple[str, Callable[[bytes], bytes], str]] = [
    ("empty", lambda content: b"", "truncated: 0 bytes"),
    ("short", lambda content: content[:5], "truncated: 5 bytes"),
    ("header longer than the file", lambda content: (1 << 40).to_bytes(8, "little") + content[8:], "announces a header"),
    ("header a little too long", lambda content: len(content).to_bytes(8, "little") + content[8:], "announces a header"),
    ("not JSON", lambda content: content[:8] + b"x" + content[9:], "corrupt safetensors header"),
    ("data cut off", lambda content: content[:-4], "truncated or corrupt"),
    ("data too long", lambda content: content + b"1234", "truncated or corrupt"),
    ("unknown dtype", corrupt(lambda h: h["norm.weight"].update(dtype="F8_E4M3")), "dtype 'F8_E4M3'"),
    ("offsets reversed", corrupt(lambda h: h["norm.weight"].update(data_offsets=[96, 0])), "which cannot be"),
    ("negative dimension", corrupt(lambda h: h["norm.weight"].update(shape=[-24])), "which cannot be"),
    ("overlap", corrupt(lambda h: h["norm.weight"].update(data_offsets=[0, 96])), "the one before it ends"),
    ("size unlike the shape", corrupt(lambda h: h["norm.weight"].update(shape=[25])), "takes 100 bytes, not 96"),
    ("unknown field", corrupt(lambda h: h["norm.weight"].update(extra=1)), "unknown field"),
    ("a list", corrupt(lambda h: [1]), "corrupt safetensors header"),
]


@pytest.mark.parametrize(("change", "text"), [h[1:] for h in HEADERS], ids=[h[0] for h in HEADERS])
def test_corrupt_weights_header(editor: Any, change: Callable[[bytes], bytes], text: str) -> None:
    path = editor.root / WEIGHTS
    path.write_bytes(change(path.read_bytes()))
    editor.rehash(WEIGHTS)
    with pytest.raises(PlanError, match=text):
        load(editor.root)
