"""Which of the levels that a user names are for which target: one list serves `--target cpu,gpu`."""

from __future__ import annotations

from collections.abc import Sequence

from mixplan.runtime.devices.cpu_info import isa_level_names
from mixplan.runtime.errors import OptionError
from mixplan.targets.gpu.arch import ARCHS
from mixplan.targets.registry import is_builtin

__all__ = ["check_levels", "levels_for"]


def levels_for(target: str, levels: Sequence[str]) -> tuple[str, ...]:
    """GPU architectures are for the target `gpu`, all other levels for the other targets; "native" is for all.

    Targets of other packages know nothing of the CPU's levels, and are not asked for them.
    """
    strange = () if is_builtin(target) else isa_level_names()
    return tuple(level for level in levels if level == "native" or ((level in ARCHS) == (target == "gpu") and level not in strange))


def check_levels(targets: Sequence[str], levels: Sequence[str]) -> None:
    """Raise OptionError for a level that none of the targets would get."""
    for level in levels:
        if not any(level in levels_for(target, levels) for target in targets):
            known = ", ".join(ARCHS)
            raise OptionError(
                f"the level {level!r} is for none of the targets {', '.join(targets)}.",
                hint=f"GPU architectures are {known}; other names are ISA levels of the CPU.",
            )
