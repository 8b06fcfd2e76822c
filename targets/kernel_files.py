"""How a plan keeps what targets compiled."""

from __future__ import annotations

from pathlib import Path

import msgspec

from mixplan.runtime.plan import Region
from mixplan.targets.base import CompiledRegion

__all__ = ["write_kernels"]


def write_kernels(root: Path, region: Region, compiled: CompiledRegion) -> Region:
    """Write a region's binaries and source below `root`; gives the region with the paths of these files."""
    kernels = {
        level: _write(root, f"kernels/{region.name}.{level}.{compiled.suffix}", binary)
        for level, binary in sorted(compiled.kernels.items())
    }
    source = _write(root, f"sources/{region.name}.{compiled.source_suffix}", compiled.source.encode()) if compiled.source else ""
    return msgspec.structs.replace(region, kernels=kernels, source=source)


def _write(root: Path, name: str, data: bytes) -> str:
    path = root / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(data)
    return name
