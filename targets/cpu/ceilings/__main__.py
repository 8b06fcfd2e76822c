"""`python -m mixplan.targets.cpu.ceilings [--json] [--sizes-mb 1 76 1024] [--threads 1 2]`: what this machine can do at most."""

from __future__ import annotations

import argparse
import json
import sys

from mixplan.runtime.errors import MixplanError
from mixplan.targets.cpu.ceilings.measure import DEFAULT_SIZES, measure
from mixplan.targets.cpu.ceilings.record import Ceilings

__all__ = ["main"]


def _table(found: Ceilings) -> str:
    columns = list(dict.fromkeys((r.threads, r.huge) for r in found.reads))
    lines = ["memory read, GB/s (median of rounds)", f"{'working set':>14}"]
    lines[1] += "".join(f"{threads} thr {'huge' if huge else '4 KB'}".rjust(14) for threads, huge in columns)
    for size in dict.fromkeys(r.bytes for r in found.reads):
        rates = {(r.threads, r.huge): r.gb_per_s for r in found.reads if r.bytes == size}
        lines.append(f"{size / (1 << 20):>10.1f} MiB" + "".join(f"{rates[column]:>14.1f}" for column in columns))
    if found.peaks:
        threads = list(dict.fromkeys(p.threads for p in found.peaks))
        lines += ["", "multiply-adds from registers, GOP/s", f"{'unit':>14}" + "".join(f"{count} thr".rjust(14) for count in threads)]
        for name in dict.fromkeys(p.name for p in found.peaks):
            peaks = {p.threads: p.gop_per_s for p in found.peaks if p.name == name}
            lines.append(f"{name:>14}" + "".join(f"{peaks[count]:>14.0f}" for count in threads))
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    """The exit code: 0, or that of the error, whose message goes to stderr."""
    parser = argparse.ArgumentParser(prog="python -m mixplan.targets.cpu.ceilings", description=__doc__)
    parser.add_argument("--sizes-mb", nargs="+", type=float, help="working-set sizes in MiB (default: 1 to 1024, doubling)")
    parser.add_argument("--threads", nargs="+", type=int, help="default: 1 and all cores")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args(arguments)
    sizes = tuple(int(mb * (1 << 20)) for mb in given.sizes_mb) if given.sizes_mb else DEFAULT_SIZES
    try:
        found = measure(sizes=sizes, threads=given.threads, rounds=given.rounds)
    except MixplanError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    sys.stdout.write((json.dumps(found.to_json()) if given.json else _table(found)) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
