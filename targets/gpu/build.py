"""Builds kernels ahead of time, for GPUs that need not be there. Builds are kept by content, as those of the CPU are."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from mixplan.runtime.devices.cpu_info import allowed_cores
from mixplan.runtime.errors import InternalError, MissingExtraError
from mixplan.targets.cpu.cache import cached_kernel, find_cached
from mixplan.targets.gpu.builds import Build, BuildRequest, build_key

__all__ = ["build_all", "build_each", "compiler_identity"]

_SUFFIX = ".gpu"


def compiler_identity() -> str:
    """The compiler's name and version. Raises MissingExtraError where there is none."""
    try:
        return f"triton {version('triton')}"
    except PackageNotFoundError:
        raise MissingExtraError("Building GPU kernels", "gpu") from None


def _pack(facts: str, data: bytes) -> bytes:
    return facts.encode() + b"\n" + data


def _unpack(stored: bytes) -> Build:
    facts, _, data = stored.partition(b"\n")
    return Build(data=data, **json.loads(facts))


def build_all(wanted: Sequence[tuple[str, BuildRequest]], jobs: int = 0) -> list[Build]:
    """The builds of (architecture, request), in their order, each from the cache where it was made before.

    jobs: processes that build at once, 0 for one on each core. Raises InternalError with the compiler's message where one does not build.
    """
    builds = []
    for build in build_each(wanted, jobs):
        if isinstance(build, InternalError):
            raise build
        builds.append(build)
    return builds


def build_each(wanted: Sequence[tuple[str, BuildRequest]], jobs: int = 0) -> list[Build | InternalError]:
    """As `build_all`, with the error in the place of what does not build."""
    compiler = compiler_identity()
    keys = [build_key(request, arch, compiler) for arch, request in wanted]
    missing = {key: one for key, one in zip(keys, wanted, strict=True) if find_cached(key, _SUFFIX) is None}
    made: dict[str, bytes | InternalError] = {}
    if missing:
        count = min(jobs or allowed_cores(), len(missing))
        shares = [list(missing)[i::count] for i in range(count)]
        with ThreadPoolExecutor(count) as pool:
            for share in pool.map(lambda share: _build_share([(key, *missing[key]) for key in share]), shares):
                made.update(share)
    builds: dict[str, Build | InternalError] = {}
    for key in dict.fromkeys(keys):
        data = made.get(key)
        builds[key] = data if isinstance(data, InternalError) else _kept(key, data)
    return [builds[key] for key in keys]


def _kept(key: str, data: bytes | None) -> Build:
    """The build that was just made, or None: that was found, from the cache."""

    def make() -> bytes:
        if data is None:
            raise InternalError(f"The build {key} left the cache while it was wanted.")
        return data

    return _unpack(cached_kernel(key, make, _SUFFIX).read_bytes())


def _build_share(share: Sequence[tuple[str, str, BuildRequest]]) -> dict[str, bytes | InternalError]:
    """Builds by key, made by one process."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TRITON_")}
    with tempfile.TemporaryDirectory(prefix="mixplan-gpu-") as name:
        folder = Path(name)
        # Line numbers would make binaries depend on where mixplan is installed; Triton's own cache trusts what it finds.
        environment |= {"TRITON_DISABLE_LINE_INFO": "1", "TRITON_CACHE_DIR": str(folder / "cache"), "TRITON_DEFAULT_FP_FUSION": "1"}
        done = subprocess.run(
            [sys.executable, "-m", "mixplan.targets.gpu.build_worker", name],
            input=json.dumps([[arch, request.as_json()] for _, arch, request in share]),
            capture_output=True,
            text=True,
            env=environment,
            check=False,
        )
        made: dict[str, bytes | InternalError] = {}
        for i, (key, arch, request) in enumerate(share):
            facts, error = folder / f"{i}.json", folder / f"{i}.error"
            if facts.exists():
                made[key] = _pack(facts.read_text(), (folder / f"{i}.bin").read_bytes())
                continue
            told = error.read_text() if error.exists() else done.stderr[-2000:]
            made[key] = InternalError(f"The kernel {request.kernel} does not build for {arch} with {dict(request.constants)}: {told}")
        return made
