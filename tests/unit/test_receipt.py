"""The receipt: what is written is read back, and what must not be is refused."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from mixplan.runtime.errors import PlanError
from mixplan.runtime.receipt import (
    MAX_RECEIPT_BYTES,
    Candidate,
    CurvePoint,
    LayerChoice,
    Receipt,
    Solver,
    decode_receipt,
    encode_receipt,
    write_receipt,
)

FULL = Receipt(
    promise={"bits": "4.5"},
    achieved={"bits": 4.497},
    solver=Solver(status="optimal", gap=1e-4, predicted=0.17),
    layers=(
        LayerChoice(
            "a.q_proj + a.k_proj",
            "W4A16:g32",
            "cheapest for its loss",
            (Candidate("W4A16:g32", 4.5, 0.01, 1e-5), Candidate("W8A16", 8.06, 0.0001)),
        ),
    ),
    curve=(CurvePoint(4.0, 0.3), CurvePoint(4.5, 0.17, 0.01, "measured")),
    measured={"kld_mean": 0.169, "perplexity": 33.1},
    text={"calibration": "valid.txt"},
)


@pytest.mark.parametrize("receipt", [FULL, Receipt()])
def test_round_trip(receipt: Receipt, tmp_path: Path) -> None:
    data = encode_receipt(receipt)
    assert decode_receipt(data) == receipt and encode_receipt(decode_receipt(data)) == data
    write_receipt(tmp_path, receipt)
    assert (tmp_path / "receipt.json").read_bytes() == data


def test_equal_receipts_are_equal_bytes() -> None:
    other = replace(FULL, measured=dict(reversed(FULL.measured.items())))
    assert encode_receipt(other) == encode_receipt(FULL)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "not a valid receipt"),
        (b"[]", "not a valid receipt"),
        (b"\xff", "not a valid receipt"),
        (b"[" * 100_000, "not a valid receipt"),
        (b'{"promises":{}}', "unknown field"),
        (b'{"solver":{"status":1}}', "Expected `str`"),
        (b'{"layers":[{"layer":"a"}]}', "missing required field `chosen`"),
        (b'{"layers":[{"layer":"a","chosen":"b","candidates":[{"scheme":"b","bits":4}]}]}', "missing required field `predicted_loss`"),
        (b'{"achieved":{"bits":"4.5"}}', "Expected `float`"),
        (b'{"measured":{"kld":1e999}}', "receipt"),
        (b'{"promise":{"bits":"\\u001b[2J"}}', "must be printable"),
        (b'{"text":{"a\\nb":"c"}}', "must be printable"),
        (b'{"text":{"a":"' + b"x" * 5000 + b'"}}', "at most 4096 characters"),
        (b" " * (MAX_RECEIPT_BYTES + 1), "at most 16777216 are read"),
    ],
)
def test_what_is_refused(data: bytes, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        decode_receipt(data)


@pytest.mark.parametrize(
    "change",
    [
        lambda: replace(FULL, measured={"kld": math.nan}),
        lambda: replace(FULL, curve=(CurvePoint(math.inf, 0),)),
        lambda: replace(FULL, layers=(LayerChoice("a\x1b", "b"),)),
        lambda: replace(FULL, layers=tuple(LayerChoice("a" * 4000, "b" * 4000) for _ in range(2200))),
    ],
)
def test_what_could_not_be_read_back_is_not_written(change: Callable[[], Receipt], tmp_path: Path) -> None:
    with pytest.raises(PlanError):
        write_receipt(tmp_path, change())
    assert not list(tmp_path.iterdir())
