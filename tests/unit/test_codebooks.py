"""Codebooks: what a search and the kernels take for granted, and that both languages have the same."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

import mixplan
from mixplan.runtime.codebooks import CODEBOOKS
from mixplan.runtime.formats import NONUNIFORM_BITS

HEADER = Path(mixplan.__file__).parent / "targets/cpu/templates/kernels/codebooks.h"


@pytest.mark.parametrize("bits", NONUNIFORM_BITS)
def test_codebooks(bits: int) -> None:
    book = CODEBOOKS[bits].astype(int)
    assert len(book) == 1 << bits and book[0] == -127 and book[-1] < 127
    assert (np.diff(book) > 0).all()
    (text,) = re.findall(rf"kBook{bits}\[{1 << bits}\] = \{{([^}}]*)\}}", HEADER.read_text())
    assert [int(entry) for entry in text.split(",")] == book.tolist()
