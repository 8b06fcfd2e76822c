"""Compiler flags of each ISA level. What a CPU must have to run a level stands in runtime/devices/cpu_info.py."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from dataclasses import dataclass

from mixplan.runtime.devices.cpu_info import ISA_LEVELS, isa_level_names, runnable_levels
from mixplan.runtime.errors import OptionError

__all__ = ["LevelFlags", "default_levels", "level_flags", "resolve_levels"]


@dataclass(frozen=True)
class LevelFlags:
    """zig: -target and -mcpu for the clang in ziglang. native: the same for a gcc or clang of the level's own architecture."""

    arch: str
    zig: tuple[str, ...]
    native: tuple[str, ...]


# glibc 2.17 is the oldest that any supported distribution still has.
_X86 = ("-target", "x86_64-linux-gnu.2.17")
_WIDE = "-mprefer-vector-width=512"
_FLAGS = {
    "portable": LevelFlags("x86_64", (*_X86, "-mcpu=x86_64"), ("-march=x86-64",)),
    "x86-64-v3": LevelFlags("x86_64", (*_X86, "-mcpu=x86_64_v3"), ("-march=x86-64-v3",)),
    "x86-64-v4-vnni": LevelFlags("x86_64", (*_X86, "-mcpu=x86_64_v4+avx512vnni", _WIDE), ("-march=x86-64-v4", "-mavx512vnni", _WIDE)),
    "x86-64-v4-bf16": LevelFlags(
        "x86_64",
        (*_X86, "-mcpu=x86_64_v4+avx512vnni+avx512bf16", _WIDE),
        ("-march=x86-64-v4", "-mavx512vnni", "-mavx512bf16", _WIDE),
    ),
    "x86-64-v4-amx": LevelFlags(
        "x86_64",
        (*_X86, "-mcpu=x86_64_v4+avx512vnni+avx512bf16+amx_tile+amx_int8+amx_bf16", _WIDE),
        ("-march=x86-64-v4", "-mavx512vnni", "-mavx512bf16", "-mamx-tile", "-mamx-int8", "-mamx-bf16", _WIDE),
    ),
    "arm64": LevelFlags("aarch64", ("-target", "aarch64-linux-gnu.2.17", "-mcpu=generic"), ("-march=armv8-a",)),
}
assert set(_FLAGS) == set(isa_level_names())


def level_flags(level: str) -> LevelFlags:
    """The flags of a level; OptionError for an unknown name."""
    if level not in _FLAGS:
        raise OptionError(f"there is no ISA level {level!r}.", hint=f"Levels: {', '.join(_FLAGS)}.")
    return _FLAGS[level]


def default_levels() -> tuple[str, ...]:
    """All levels of this machine's architecture (of x86_64 on any other), worst first."""
    arch = platform.machine()
    names = tuple(level.name for level in ISA_LEVELS if level.arch == arch)
    return names or tuple(level.name for level in ISA_LEVELS if level.arch == "x86_64")


def resolve_levels(wanted: Sequence[str]) -> tuple[str, ...]:
    """Levels by name, each once; "native" is the best that this CPU runs, nothing at all means every level of its architecture."""
    if not wanted:
        return default_levels()
    if "native" in wanted and not runnable_levels():
        raise OptionError("this CPU runs none of the ISA levels.", hint=f"Name levels to cross-compile: {', '.join(_FLAGS)}.")
    levels = tuple(dict.fromkeys(runnable_levels()[0] if name == "native" else name for name in wanted))
    for level in levels:
        level_flags(level)
    return levels
