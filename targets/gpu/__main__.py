"""Builds the selection of kernels for each architecture, and prints registers and shared memory: `python -m mixplan.targets.gpu [ARCH
...]`.

Exits with 1 where one spills, asks for more shared memory than the architecture has, or does not build.
"""

from __future__ import annotations

import sys
from time import perf_counter

from mixplan.runtime.errors import MixplanError
from mixplan.targets.gpu.arch import ARCHS, JIT, resolve_archs
from mixplan.targets.gpu.build import build_all
from mixplan.targets.gpu.selection import selection

__all__ = ["main"]


_TOGETHER = 12  # kernels that are built before they are told of


def _parts(titles: list[str]) -> list[list[str]]:
    return [titles[i : i + _TOGETHER] for i in range(0, len(titles), _TOGETHER)]


def main(names: list[str]) -> int:
    """See the module."""
    wrong = 0
    write = sys.stdout.write
    for name in resolve_archs(names):
        if name == JIT:
            continue
        arch, started = ARCHS[name], perf_counter()
        requests = selection(arch)
        write(f"{name} ({arch.devices})\n{'kernel':34}{'registers':>10}{'shared kB':>10}{'spilled':>9}\n")
        for titles in _parts(list(requests)):
            try:
                builds = build_all([(name, requests[title]) for title in titles])
            except MixplanError as error:
                write(f"{error}\n")
                wrong += 1
                continue
            for title, build in zip(titles, builds, strict=True):
                bad = build.spilled > 0 or build.shared > arch.shared
                wrong += bad
                told = "  does not fit" if bad else ""
                write(f"{title:34}{build.registers:>10}{build.shared / 1024:>10.1f}{build.spilled:>9}{told}\n")
            sys.stdout.flush()
        write(f"{len(requests)} kernels in {perf_counter() - started:.0f} s\n\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
