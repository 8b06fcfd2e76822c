"""A region on another package's device, held to what the interface promises: whatever it does wrong is told as its own fault."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from mixplan.runtime.errors import MixplanError, PluginError, UnsupportedError
from mixplan.runtime.hal import Array, Step
from mixplan.runtime.plan import Plan, Region, dim_value

__all__ = ["GuardedRegion"]

_MEMBERS = ("run", "close", "metrics", "isa")


class GuardedRegion:
    """See LoadedRegion. Members that are not named here are the region's own."""

    def __init__(self, plan: Plan, region: Region, device: str, loaded: Any) -> None:
        """UnsupportedError where `loaded` is no region at all, so that the next device is tried."""
        lacks = [member for member in _MEMBERS if not hasattr(loaded, member)]
        if lacks:
            raise UnsupportedError(
                f"The device {device!r} gave {type(loaded).__name__} for region {region.name!r}, which lacks {', '.join(lacks)}.",
                hint=f"A loaded region has {', '.join(_MEMBERS)}; see docs/how-to/add-a-target.md.",
            )
        self._plan, self._of, self._device, self._loaded = plan, region, device, loaded
        self.isa = str(loaded.isa)

    def run(self, step: Step, inputs: Mapping[int, Array]) -> dict[int, Array]:
        """See LoadedRegion.run. PluginError for an exception of another kind than promised, and for results that are not as declared."""
        try:
            made = self._loaded.run(step, inputs)
        except (MixplanError, MemoryError):
            raise
        except Exception as error:  # another package's code may raise anything
            raise self._error(f"raised {type(error).__name__}: {error}") from error
        if not isinstance(made, Mapping):
            raise self._error(f"gave {type(made).__name__}, not the arrays by value index")
        return {index: self._checked(step, index, made.get(index)) for index in self._of.outputs}

    def close(self) -> None:
        """See LoadedRegion.close. What fails is logged: nothing depends on it any more."""
        try:
            self._loaded.close()
        except Exception as error:  # another package's code: whatever it raises is its fault, and must not hide what happened before
            import logging

            logging.getLogger("mixplan.runtime").warning("%s", self._error(f"could not be closed: {type(error).__name__}: {error}").message)

    def metrics(self) -> dict[str, float]:
        """See LoadedRegion.metrics. Those that are no numbers are left out."""
        try:
            return {str(name): float(value) for name, value in self._loaded.metrics().items()}
        except (TypeError, ValueError, AttributeError):
            return {}

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "_loaded":
            raise AttributeError(name)
        return getattr(self._loaded, name)

    def _checked(self, step: Step, index: int, array: Any) -> Array:
        value = self._plan.values[index]
        if array is None:
            raise self._error(f"gave no {value.name!r} (value {index})")
        shape = tuple(dim_value(dim, tokens=step.tokens, rows=step.rows) for dim in value.shape)
        if not isinstance(array, np.ndarray) or array.shape != shape or array.dtype != value.dtype.numpy:
            words = f"{array.dtype} {list(array.shape)}" if isinstance(array, np.ndarray) else type(array).__name__
            raise self._error(f"gave {value.name!r} as {words}; the plan declares {value.dtype.value} {list(shape)}")
        return np.ascontiguousarray(array) if shape else array

    def _error(self, what: str) -> PluginError:
        return PluginError(
            f"The device {self._device!r} ({type(self._loaded).__module__}) {what}, in region {self._of.name!r}.",
            hint="Mend or uninstall its package; device='reference' runs the plan without it.",
        )
