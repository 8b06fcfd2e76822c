"""Tiles that were timed, in $XDG_CACHE_HOME/mixplan/tiles: one file for each GPU and each version of compiler and kernels."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mixplan.runtime.errors import OutputError
from mixplan.targets.cpu.cache import cache_root
from mixplan.targets.gpu.builds import sources_digest
from mixplan.targets.gpu.tile import Tile
from mixplan.targets.gpu.tuning.search import Timed

__all__ = ["TileCache"]

_SCHEMA = "mixplan.tiles/1"
_LOG = logging.getLogger("mixplan.tuning")
_SIDES = ("m", "n", "k", "split", "warps", "stages")


@dataclass(frozen=True)
class TileCache:
    """arch: built for. gpu: its name. compiler: its identity."""

    arch: str
    gpu: str
    compiler: str

    @property
    def path(self) -> Path:
        """The file."""
        facts = json.dumps([self.arch, self.gpu, self.compiler, sources_digest()])
        return cache_root() / "tiles" / f"{self.arch}-{hashlib.sha256(facts.encode()).hexdigest()[:24]}.json"

    def read(self) -> dict[str, Timed]:
        """What is known, by key. A file that cannot be understood counts for nothing, with a line in the log."""
        try:
            data = json.loads(self.path.read_bytes())
            if data["schema"] != _SCHEMA:
                raise ValueError(f"schema {data['schema']!r}")
            return {str(key): _timed(row) for key, row in data["tiles"].items()}
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            _LOG.warning("The tiles in %s are left out and timed anew: %s: %s", self.path, type(error).__name__, error)
            return {}

    def add(self, found: Mapping[str, Timed]) -> None:
        """Keep these beside what is there. A reader never sees half a file. OutputError where the cache cannot be written."""
        rows = {key: {**asdict(one.tile), "seconds": one.seconds, "table_seconds": one.table_seconds} for key, one in found.items()}
        known = {key: {**asdict(one.tile), "seconds": one.seconds, "table_seconds": one.table_seconds} for key, one in self.read().items()}
        data = {"schema": _SCHEMA, "arch": self.arch, "gpu": self.gpu, "compiler": self.compiler, "tiles": {**known, **rows}}
        path = self.path
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.stem}-")
            try:
                with os.fdopen(handle, "w", encoding="utf-8") as file:
                    json.dump(data, file, indent=1, sort_keys=True)
                Path(name).replace(path)
            except BaseException:
                Path(name).unlink(missing_ok=True)
                raise
        except OSError as error:
            hint = "Set XDG_CACHE_HOME to a folder of yours."
            raise OutputError(f"The tiles cannot be kept in {path}: {error.strerror}.", hint=hint) from error


def _timed(row: Mapping[str, Any]) -> Timed:
    sides = {side: row[side] for side in _SIDES}
    for side, size in sides.items():
        allowed = 0 if side == "k" else 1  # of attention k is nothing
        if type(size) is not int or not allowed <= size <= 4096 or (side != "stages" and size & (size - 1)):
            raise ValueError(f"{side} is {size!r}")
    return Timed(Tile(**sides), _seconds(row["seconds"]), _seconds(row["table_seconds"]))


def _seconds(value: Any) -> float:
    if not isinstance(value, float) or not 0 < value < 3600:
        raise ValueError(f"seconds are {value!r}")
    return value
