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

__all__ = ["build_all", "compiler_identity"]

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
    compiler = compiler_identity()
    keys = [build_key(request, arch, compiler) for arch, request in wanted]
    missing = {key: one for key, one in zip(keys, wanted, strict=True) if find_cached(key, _SUFFIX) is None}
    made: dict[str, bytes] = {}
    if missing:
        count = min(jobs or allowed_cores(), len(missing))
        shares = [list(missing)[i::count] for i in range(count)]
        with ThreadPoolExecutor(count) as pool:
            for share in pool.map(lambda share: _build_share([(key, *missing[key]) for key in share]), shares):
                made.update(share)
    builds: dict[str, Build] = {}
    for key in dict.fromkeys(keys):
        builds[key] = _unpack(cached_kernel(key, lambda key=key: made[key], _SUFFIX).read_bytes())  # type: ignore[misc]
    return [builds[key] for key in keys]


def _build_share(share: Sequence[tuple[str, str, BuildRequest]]) -> dict[str, bytes]:
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
        made = {}
        for i, (key, arch, request) in enumerate(share):
            facts, error = folder / f"{i}.json", folder / f"{i}.error"
            if not facts.exists():
                told = error.read_text() if error.exists() else done.stderr[-2000:]
                raise InternalError(f"The kernel {request.kernel} does not build for {arch} with {dict(request.constants)}: {told}")
            made[key] = _pack(facts.read_text(), (folder / f"{i}.bin").read_bytes())
        return made
