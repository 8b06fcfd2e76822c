"""Finds targets: the built-in list, then the entry-point group `mixplan.targets`."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import cast

from mixplan.runtime.errors import OptionError
from mixplan.runtime.plugins import Plugin, installed
from mixplan.targets.base import Target

__all__ = ["ENTRY_POINT_GROUP", "get_target", "is_builtin", "shadowed_targets", "target_names"]

ENTRY_POINT_GROUP = "mixplan.targets"
# Imported on first use, so that a machine without jinja2 can still list targets.
_BUILTIN = (
    ("cpu", "mixplan.targets.cpu.target:CpuTarget"),
    ("reference", "mixplan.targets.reference.target:ReferenceTarget"),
    ("null", "mixplan.targets.null.target:NullTarget"),
    ("npu", "mixplan.targets.npu.target:NpuTarget"),
    ("gpu", "mixplan.targets.gpu.target:GpuTarget"),
)
_PATHS = dict(_BUILTIN)
_MEMBERS = ("name", "capabilities", "resolve_levels", "supports", "compile")


def target_names() -> tuple[str, ...]:
    """Names of all targets, built-in ones first; those of broken packages are among them."""
    return (*_PATHS, *(name for name in installed(ENTRY_POINT_GROUP, "target") if name not in _PATHS))


def is_builtin(name: str) -> bool:
    """Whether a target comes with mixplan."""
    return name in _PATHS


def shadowed_targets() -> tuple[Plugin, ...]:
    """Targets of other packages that have the name of a built-in one, and are therefore never used."""
    return tuple(plugin for name, plugin in installed(ENTRY_POINT_GROUP, "target").items() if name in _PATHS)


@cache
def get_target(name: str) -> Target:
    """The target called `name`. Raises OptionError for a name that nothing has, PluginError where its package is broken."""
    if name in _PATHS:
        module, _, attribute = _PATHS[name].partition(":")
        return cast(Target, getattr(import_module(module), attribute)())
    plugins = installed(ENTRY_POINT_GROUP, "target")
    if name not in plugins:
        raise OptionError(f"there is no target {name!r}.", hint=f"Targets here: {', '.join(target_names())}.")
    return cast(Target, plugins[name].make(_MEMBERS))
