"""The compiler: clang from the `ziglang` wheel, or what the environment variable MIXPLAN_CC names.

Output is a function of the source, the flags and the compiler's version alone: no paths, no time, no build id.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from mixplan.runtime.errors import InternalError, MissingExtraError, UnsupportedError
from mixplan.targets.cpu.cache import cache_root
from mixplan.targets.cpu.isa import level_flags

__all__ = ["Compiler", "find_compiler"]

_COMMON = (
    "-std=c++17",
    "-O3",
    "-w",
    "-fPIC",
    "-shared",
    "-s",
    "-g0",
    "-fno-exceptions",
    "-fno-rtti",
    "-fno-asynchronous-unwind-tables",
    "-fvisibility=hidden",
    # Defined overflow; no errno and no trap that would keep loops from becoming vector code. Infinities and NaN keep their meaning.
    "-fwrapv",
    "-fno-strict-aliasing",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-ffp-contract=fast",
    "-Wl,--build-id=none",
)
_LIBRARIES = ("-lm", "-lpthread")
_TIMEOUT = 600  # seconds


@dataclass(frozen=True)
class Compiler:
    """command: what to run. identity: name and version, which goes into cache keys. zig: whether it is ziglang's."""

    command: tuple[str, ...]
    identity: str
    zig: bool

    def flags(self, level: str) -> tuple[str, ...]:
        """All flags of an ISA level. UnsupportedError where this compiler cannot make code for the level's architecture."""
        flags = level_flags(level)
        if self.zig:
            return (*_COMMON, "-nostdlib++", "-fno-sanitize=all", *flags.zig)
        if flags.arch != platform.machine():
            raise UnsupportedError(
                f"{self.identity} makes code for {platform.machine()}, and level {level} is for {flags.arch}.",
                hint="Unset MIXPLAN_CC to use the compiler of the ziglang wheel, which makes both.",
            )
        return (*_COMMON, *flags.native)

    def compile(self, source: str, level: str, more: Sequence[str] = ()) -> bytes:
        """A shared library's bytes. more: flags beside the level's.

        InternalError with the compiler's words where our source does not compile.
        """
        with tempfile.TemporaryDirectory(prefix="mixplan-") as name:
            folder = Path(name)
            (folder / "region.cpp").write_text(source, encoding="utf-8")
            command = [*self.command, *self.flags(level), *more, "-o", "region.so", "region.cpp", *_LIBRARIES]
            try:
                done = subprocess.run(
                    command,
                    cwd=folder,
                    env=_environment(folder),
                    capture_output=True,
                    text=True,
                    errors="replace",
                    timeout=_TIMEOUT,
                    check=False,
                )
            except subprocess.TimeoutExpired as error:
                raise InternalError(f"{self.identity} did not finish a region for {level} in {_TIMEOUT} s.") from error
            except OSError as error:
                raise UnsupportedError(f"{self.command[0]} cannot be run: {error.strerror}.", hint=_HINT) from error
            library = folder / "region.so"
            if done.returncode != 0 or not library.exists():
                raise InternalError(f"{self.identity} failed on a region for {level}:\n{_excerpt(done.stderr)}")
            return library.read_bytes()


_HINT = "Install the compiler: pip install 'mixplan[compile]', or set MIXPLAN_CC to gcc or clang."


def _excerpt(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    wanted = [line for line in lines if "error" in line.lower()] or lines
    return "\n".join(wanted[:10])


def _environment(folder: Path) -> dict[str, str]:
    """The caller's environment with zig's caches in ours: what it builds once (its runtime) is kept, what belongs to one source is not."""
    return {
        **os.environ,
        "ZIG_GLOBAL_CACHE_DIR": str(cache_root() / "zig"),
        "ZIG_LOCAL_CACHE_DIR": str(folder / "zig"),
        "SOURCE_DATE_EPOCH": "0",
        "LC_ALL": "C",
    }


def _version(command: Sequence[str]) -> str:
    try:
        done = subprocess.run([*command, "--version"], capture_output=True, text=True, errors="replace", timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.splitlines()[0].strip() if done.returncode == 0 and done.stdout else ""


@cache
def _chosen(given: str) -> Compiler:
    if given:
        path = shutil.which(given)
        version = _version((path,)) if path else ""
        if not path or not version:
            raise UnsupportedError(f"MIXPLAN_CC is {given!r}, which is not a compiler that runs here.", hint=_HINT)
        words = re.split(r"[/\\]", given)[-1]
        return Compiler((path, "-x", "c++"), f"{words}: {version}", False)
    if importlib.util.find_spec("ziglang") is None:
        raise MissingExtraError("Compiling for the CPU", "compile")
    from importlib.metadata import version as package_version

    return Compiler((sys.executable, "-m", "ziglang", "c++"), f"ziglang {package_version('ziglang')}", True)


def find_compiler() -> Compiler:
    """The compiler to use. MissingExtraError where ziglang is not installed, UnsupportedError where MIXPLAN_CC cannot be run."""
    return _chosen(os.environ.get("MIXPLAN_CC", ""))
