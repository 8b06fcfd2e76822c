"""Every error that mixplan raises on purpose.

    MixplanError                 exit code 1 unless a subclass says otherwise
    ├── UserError                the caller can mend it; exit code 2
    │   ├── CheckpointError      a model file is missing, truncated, corrupt or contradicts its config
    │   ├── UnsupportedError     an architecture, op, format or device that mixplan cannot lower or run
    │   │   ├── FallbackError    strict was asked for, and a kernel or device failed that another would have replaced
    │   │   └── PluginError      a package that brings a target or device is broken; names the package
    │   ├── OptionError          a flag, scheme, override or pass that is wrong or matches nothing
    │   ├── OutputError          the output exists, cannot be written, or the disk is full
    │   ├── PromiseError         no plan keeps the promise that was asked for; says by how much, and what would be needed
    │   ├── PlanError            a plan that is malformed, tampered with, or of another schema version
    │   ├── RequestError         a step or generate call with wrong tokens, positions or sampling settings
    │   ├── PlacementError       regions of several compute units that do not agree about a value at their border
    │   ├── ProviderError        an NPU's execution provider that is not here, or does not run all that it was given
    │   ├── CapacityError        out of KV pages, sequences, step tokens or memory
    │   └── MissingExtraError    a command needs an optional dependency; names the pip line
    └── InternalError            a broken invariant of ours, or a generated kernel that failed; exit code 1
        └── PassError            a pass failed; names pass, node and source line

A message says what failed, the value seen, what is allowed and what to do.
"""

from __future__ import annotations

from typing import ClassVar

__all__ = [
    "CapacityError",
    "CheckpointError",
    "FallbackError",
    "InternalError",
    "MissingExtraError",
    "MixplanError",
    "OptionError",
    "OutputError",
    "PassError",
    "PlacementError",
    "PlanError",
    "PluginError",
    "PromiseError",
    "ProviderError",
    "RequestError",
    "UnsupportedError",
    "UserError",
]


class MixplanError(Exception):
    """Base of all mixplan errors. `hint` is the remedy, printed on its own line."""

    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message if hint is None else f"{message}\n{hint}")
        self.message = message
        self.hint = hint


class UserError(MixplanError):
    """The caller's mistake."""

    exit_code = 2


class CheckpointError(UserError):
    """A checkpoint that cannot be read or contradicts itself."""


class UnsupportedError(UserError):
    """Something that mixplan cannot lower or run here."""


class FallbackError(UnsupportedError):
    """A kernel or a device failed, and the caller wants no other in its place (strict)."""


class PluginError(UnsupportedError):
    """A package that brings a target or a device is broken, or two of them claim one name."""


class OptionError(UserError):
    """An option with a wrong value, or one that matches nothing."""


class OutputError(UserError):
    """The output cannot be written."""


class PromiseError(UserError):
    """A promise (bits, size, quality, latency) that no plan of the candidates keeps."""


class PlanError(UserError):
    """A plan that must not be run as it stands."""


class PlacementError(UserError):
    """Regions of several compute units whose borders do not fit."""


class ProviderError(UserError):
    """An execution provider of an NPU that is not here or that leaves nodes to the CPU, which is not allowed unless asked for."""


class RequestError(UserError):
    """A step or generation request that is not valid."""


class CapacityError(UserError):
    """The request is valid, but needs more pages, sequences or tokens than were set aside, or more memory than there is."""


class MissingExtraError(UserError):
    """An optional dependency is not installed."""

    def __init__(self, what: str, extra: str) -> None:
        super().__init__(f"{what} needs packages that are not installed.", hint=f"Run: pip install 'mixplan[{extra}]'")


class InternalError(MixplanError):
    """A broken invariant of mixplan itself."""


class PassError(InternalError):
    """A graph pass failed. The message names the pass, the node and the node's source line."""
