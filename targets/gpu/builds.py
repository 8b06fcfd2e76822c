"""What is built: a kernel for one set of argument types and compile-time arguments, and what a build tells of itself."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TypeAlias

import msgspec

from mixplan.runtime.devices.gpu_program import Program

__all__ = ["Build", "BuildRequest", "Constant", "build_key", "sources_digest", "with_builds"]

Constant: TypeAlias = bool | int | float | str

_KERNELS = Path(__file__).parent / "kernels"


@dataclass(frozen=True)
class BuildRequest:
    """One kernel to build.

    kernel: "file", or "file:function" where they differ. types: Triton's spelling of each run-time argument's type ("*fp32", "i32"; "" for
    a pointer that is None), in order; "!" after a pointer that may not be a multiple of 16 bytes. constants: the compile-time arguments by
    name. warps and stages: of the launch.
    """

    kernel: str
    types: tuple[str, ...]
    constants: Mapping[str, Constant] = field(default_factory=dict)
    warps: int = 4
    stages: int = 3

    def as_json(self) -> dict[str, object]:
        """For the process that builds, and for the key."""
        return {
            "kernel": self.kernel,
            "types": list(self.types),
            "constants": dict(sorted(self.constants.items())),
            "warps": self.warps,
            "stages": self.stages,
        }


@dataclass(frozen=True)
class Build:
    """A binary for one architecture: cubin or hsaco.

    entry: the function's name in it. shared: bytes of shared memory that a launch asks for. threads: of a block. registers: of a thread
    (vector registers on AMD). spilled: bytes of local memory that a thread needs, which is 0 where everything fits into registers.
    """

    data: bytes
    entry: str
    shared: int
    threads: int
    registers: int
    spilled: int


@cache
def sources_digest() -> str:
    """SHA-256 of the sources of all kernels."""
    digest = hashlib.sha256()
    for path in sorted(_KERNELS.glob("*.py")):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def build_key(request: BuildRequest, arch: str, compiler: str) -> str:
    """SHA-256 over everything that the binary depends on: the sources of all kernels, the request, the architecture and the compiler."""
    text = json.dumps([request.as_json(), arch, compiler], sort_keys=True)
    return hashlib.sha256(bytes.fromhex(sources_digest()) + text.encode()).hexdigest()


def with_builds(program: Program, builds: Sequence[Build]) -> Program:
    """The program with what its builds tell; binaries stand one after the other."""
    kernels, offset = [], 0
    for kernel, build in zip(program.kernels, builds, strict=True):
        facts = {name: getattr(build, name) for name in ("entry", "shared", "threads", "registers", "spilled")}
        kernels.append(msgspec.structs.replace(kernel, offset=offset, nbytes=len(build.data), **facts))
        offset += len(build.data)
    return msgspec.structs.replace(program, kernels=tuple(kernels))
