"""Whether a file can be a shared library of this machine, before the system's loader maps it.

The loader trusts a file's program headers: one that was cut short is mapped beyond its end, and the process dies at the first touch.
"""

from __future__ import annotations

import os
import platform
import struct

__all__ = ["elf_problem"]

_MACHINES = {"x86_64": 62, "aarch64": 183}
_NAMES = {number: name for name, number in _MACHINES.items()}
_HEADER, _SEGMENT = struct.Struct("<16sHHIQQQIHHHHHH"), struct.Struct("<IIQQQQQQ")
_SHARED, _LOAD, _DYNAMIC = 3, 1, 2


def elf_problem(path: str) -> str:
    """What is wrong with the file, "" where nothing is. OSError where it cannot be read."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return _problem(descriptor, os.fstat(descriptor).st_size)
    finally:
        os.close(descriptor)


def _problem(descriptor: int, size: int) -> str:
    head = os.pread(descriptor, _HEADER.size, 0)
    if head[:4] != b"\x7fELF":
        return "it is no ELF file"
    if len(head) < _HEADER.size:
        return f"it is cut short: {size} bytes"
    ident, kind, machine, _, _, segments_at, _, _, _, entry, count, *_ = _HEADER.unpack(head)
    if ident[4:6] != b"\x02\x01":
        return "it is no 64-bit little-endian library"
    if machine != _MACHINES.get(platform.machine(), machine):
        return f"it is for {_NAMES.get(machine, f'machine {machine}')}, and this machine is {platform.machine()}"
    if kind != _SHARED or entry != _SEGMENT.size or not count:
        return "it is no shared library"
    table = os.pread(descriptor, count * entry, segments_at) if segments_at < size else b""
    if len(table) < count * entry:
        return f"it is cut short: {size} bytes, without its program headers"
    segments = [_SEGMENT.unpack_from(table, index * entry) for index in range(count)]
    for what, _, offset, _, _, stored, in_memory, _ in segments:
        if what in (_LOAD, _DYNAMIC) and offset + stored > size:
            return f"it is cut short: {size} bytes of at least {offset + stored}"
        if what == _LOAD and in_memory < stored:
            return "its program headers are corrupt"
    return "" if any(segment[0] == _DYNAMIC for segment in segments) else "it is no shared library"
