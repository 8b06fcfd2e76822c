"""What other packages bring through entry points: found without importing anything, loaded with errors that name the package.

A package that is broken must not take others down with it, so nothing here raises before the thing itself is asked for.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from mixplan.runtime.errors import MixplanError, PluginError

__all__ = ["Plugin", "installed"]


@dataclass(frozen=True)
class Plugin:
    """One name of a group. `value` is "module:attribute" of a class or factory, `package` the distribution's name and version.

    rivals: other packages that claim the name; which of them is meant cannot be told, so none is.
    """

    kind: str
    name: str
    value: str
    package: str
    rivals: tuple[str, ...] = ()

    def make(self, members: Sequence[str], *arguments: Any) -> Any:
        """Import the factory, call it with `arguments`, and check what it gives: `members` are the names that it must have.

        Raises PluginError, which says what is wrong and of which package.
        """
        if self.rivals:
            raise self._error(
                f"{', '.join((self.package, *self.rivals))} all claim this name",
                hint="Uninstall all of them but one, or rename an entry point.",
            )
        module, _, path = self.value.partition(":")
        try:
            factory: Any = importlib.import_module(module)
        except Exception as error:  # a module of another package: whatever its import raises is its fault
            raise self._error(f"importing {module} failed: {_words(error)}") from error
        try:
            for attribute in filter(None, path.split(".")):
                factory = getattr(factory, attribute)
        except AttributeError as error:
            raise self._error(f"{module} has no {path!r}") from error
        if not callable(factory) or not path:
            raise self._error("the entry point must name a class or a function, as in module:Class")
        try:
            made = factory(*arguments)
        except MixplanError:
            raise
        except Exception as error:
            raise self._error(f"{path}({', '.join(type(a).__name__ for a in arguments)}) failed: {_words(error)}") from error
        lacks = [member for member in members if not hasattr(made, member)]
        if lacks:
            raise self._error(f"{type(made).__name__} lacks {', '.join(lacks)}; a {self.kind} has {', '.join(members)}")
        if made.name != self.name:
            raise self._error(f"it calls itself {made.name!r}", hint="Give the entry point and the attribute `name` the same name.")
        return made

    def _error(self, reason: str, hint: str | None = None) -> PluginError:
        hint = hint or f"Mend or uninstall it: pip uninstall {self.package.partition(' ')[0]}. Other {self.kind}s are not concerned."
        return PluginError(
            f"The {self.kind} {self.name!r} of the package {self.package} ({self.value}) cannot be used: {reason}.", hint=hint
        )


def _words(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".rstrip(".: ")


@cache
def installed(group: str, kind: str) -> Mapping[str, Plugin]:
    """The plugins of an entry-point group, by name. Looks at the metadata of all installed packages once; imports none of them."""
    from importlib.metadata import entry_points

    claims: dict[str, list[tuple[str, str]]] = {}
    for point in sorted(entry_points(group=group), key=lambda p: (p.name, p.value)):
        package = f"{point.dist.name} {point.dist.version}" if point.dist is not None else "(unknown)"
        claim = (package, point.value)
        # A package that is found twice on the path is still one.
        if claim not in claims.setdefault(point.name, []):
            claims[point.name].append(claim)
    return {
        name: Plugin(kind, name, found[0][1], found[0][0], tuple(package for package, _ in found[1:])) for name, found in claims.items()
    }
