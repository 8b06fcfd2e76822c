"""Where a plan comes from: source, options and versions, nothing that differs between two equal compiles."""

from __future__ import annotations

import sys
from importlib.metadata import PackageNotFoundError, version

import mixplan
from mixplan.compiler.frontends import Captured
from mixplan.runtime.plan import Provenance

__all__ = ["provenance"]

_PACKAGES = ("torch", "transformers", "gguf", "numpy", "ziglang")


def provenance(captured: Captured, options: dict[str, str], seed: int) -> Provenance:
    """The record that goes into the plan, but for the digests of the source files, which are still being worked out."""
    versions = {"mixplan": mixplan.__version__, "python": f"{sys.version_info.major}.{sys.version_info.minor}"}
    for name in _PACKAGES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    return Provenance(
        source_format=captured.source.format,
        source_name=captured.source.name,
        source_files={},
        options={key: text for key, text in options.items() if text},
        versions=versions,
        seed=seed,
    )
