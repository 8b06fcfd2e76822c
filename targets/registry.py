"""Finds targets: the built-in list, then the entry-point group `mixplan.targets`."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from typing import cast

from mixplan.runtime.errors import OptionError
from mixplan.targets.base import Target

__all__ = ["ENTRY_POINT_GROUP", "get_target", "target_names"]

ENTRY_POINT_GROUP = "mixplan.targets"
# Imported on first use, so that a machine without jinja2 can still list targets.
_BUILTIN = (
    ("cpu", "mixplan.targets.cpu.target:CpuTarget"),
    ("reference", "mixplan.targets.reference.target:ReferenceTarget"),
    ("null", "mixplan.targets.null.target:NullTarget"),
)


def _load_builtin(path: str) -> Callable[[], Target]:
    def load() -> Target:
        module, _, name = path.partition(":")
        return cast(Target, getattr(import_module(module), name)())

    return load


@cache
def _factories() -> dict[str, Callable[[], Target]]:
    found: dict[str, Callable[[], Target]] = {name: _load_builtin(path) for name, path in _BUILTIN}
    for entry in sorted(entry_points(group=ENTRY_POINT_GROUP), key=lambda e: (e.name, e.value)):
        if entry.name in found:
            raise OptionError(
                f"two targets are named {entry.name!r}; the second is {entry.value}.",
                hint="Uninstall one of the packages, or rename its entry point in the group mixplan.targets.",
            )
        # The entry point names a class or factory without arguments.
        found[entry.name] = lambda entry=entry: cast(Target, entry.load()())  # type: ignore[misc]
    return found


def target_names() -> tuple[str, ...]:
    """Names of all targets, built-in ones first."""
    return tuple(_factories())


@cache
def get_target(name: str) -> Target:
    """The target called `name`. Raises OptionError for a name that nothing has."""
    factories = _factories()
    if name not in factories:
        raise OptionError(f"there is no target {name!r}.", hint=f"Targets here: {', '.join(factories)}.")
    return factories[name]()
