"""Reading what the kernel says in text files, any of which may be missing or odd."""

from __future__ import annotations

from pathlib import Path

__all__ = ["count_cpus", "number", "read", "size"]

_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def read(path: Path) -> str:
    """The file's text without white space at its ends; "" where it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except (OSError, ValueError):
        return ""


def number(text: str) -> int | None:
    """A whole number of ASCII digits, with a sign or without; None for anything else."""
    digits = text.strip().removeprefix("-")
    return int(text) if digits.isascii() and digits.isdigit() and len(digits) < 20 else None


def size(text: str) -> int | None:
    """Bytes of a size such as "48K"; None for what is none."""
    factor = _UNITS.get(text[-1:], 1)
    found = number(text[:-1] if text[-1:] in _UNITS else text)
    return None if found is None or found < 0 else found * factor


def count_cpus(text: str) -> int | None:
    """How many CPUs a list such as "0-3,8" names; None where it is not such a list, or names none."""
    total = 0
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        low, high = number(first), number(last or first)
        if low is None or high is None or high < low:
            return None
        total += high - low + 1
    return total or None
