"""`python -m benchmarks.compare`: mixplan and its peers on one checkpoint, the same token ids and threads, interleaved."""

from __future__ import annotations

import argparse
import json
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from benchmarks.compare.client import ROOT
from benchmarks.compare.lock import Lease
from benchmarks.compare.prepare import prepare
from benchmarks.compare.results import Results
from benchmarks.compare.schedule import Plan, run
from benchmarks.compare.sizes import read_shape
from benchmarks.compare.stacks import chosen
from benchmarks.compare.table import report
from benchmarks.compare.targets import lines
from benchmarks.compare.workload import MEASURES, WINDOWS, default_text, token_ids
from mixplan.runtime.hardware import hardware

__all__ = ["main"]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.compare", description="Compare mixplan with its peers on this machine.")
    parser.add_argument("--stacks", nargs="+", default=[], help="parts of names; default: all but the slow ones")
    parser.add_argument("--slow-peers", action="store_true", help="the slow ones too (compiled torch)")
    parser.add_argument("--measures", nargs="+", choices=[m.name for m in MEASURES], default=[m.name for m in MEASURES])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--weights", choices=("offgrid", "sample"), default="offgrid", help="see convert/checkpoint.py")
    parser.add_argument("--text", type=Path, help="a text file for prompts and perplexity; default: Python's own language reference")
    parser.add_argument("--windows", type=int, default=WINDOWS, help="windows of 512 tokens for perplexity; 0: none")
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "compare")
    parser.add_argument("--peers-python", default=str(ROOT / "build" / "peers-venv" / "bin" / "python"))
    parser.add_argument("--lock", type=Path, help="hold this lock file during launches, at most a minute or two at a time")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--markdown", action="store_true", help="tables in Markdown")
    parser.add_argument("--save", type=Path, help="write the JSON here after each round, whatever is printed")
    parser.add_argument("--show", type=Path, help="print a saved run and measure nothing")
    return parser


def _json(results: Results, shape: Any) -> str:
    judged = [{**vars(line), "ratio": vars(line.ratio) if line.ratio else None} for line in lines(results, shape)]
    medians = {name: {m.name: s.median(m.name) for m in MEASURES if s.values(m.name)} for name, s in results.stacks.items()}
    return json.dumps({**results.to_json(), "medians": medians, "promises": judged})


def main(arguments: list[str] | None = None) -> int:
    """0 when the run is done, whatever the figures are."""
    given = _parser().parse_args(arguments)
    work = given.work / given.weights
    if given.show:
        results = Results.from_json(json.loads(given.show.read_text(encoding="utf-8")))
        sys.stdout.write(report(results, read_shape(work / "checkpoint"), markdown=given.markdown) + "\n")
        return 0
    stacks = chosen(given.stacks, slow=given.slow_peers)
    pythons = {stack.family: given.peers_python if stack.family != "mixplan" else sys.executable for stack in stacks}
    if any(family != "mixplan" for family in pythons) and not Path(given.peers_python).exists():
        raise SystemExit(f"the peers' environment is not there ({given.peers_python}): run `make bench`, or name one with --peers-python")

    def say(words: str) -> None:
        sys.stderr.write(f"{words}\n")
        sys.stderr.flush()

    lease = Lease(given.lock) if given.lock else None
    turn = lease.turn if lease else nullcontext
    prepare(stacks, work, given.weights, pythons, turn, say)
    text = given.text.read_text(encoding="utf-8") if given.text else default_text()
    ids = token_ids(work / "checkpoint", text)
    machine = hardware()
    results = Results(
        {"model": machine.model, "cores": machine.cores, "flags": [f for f in machine.flags if f.startswith(("avx", "amx"))]},
        {"threads": given.threads, "rounds": given.rounds, "weights": given.weights, "text": str(given.text or "pydoc_data.topics")},
    )
    measures = [m for m in MEASURES if m.name in given.measures]
    shape = read_shape(work / "checkpoint")
    plan = Plan(stacks, measures, ids, work, pythons, shape, given.threads, given.rounds, given.windows, turn)

    def save() -> None:
        if given.save:
            given.save.write_text(_json(results, shape), encoding="utf-8")

    run(plan, results, say, save)
    if lease:
        lease.close()
    save()
    sys.stdout.write((_json(results, shape) if given.json else report(results, shape, markdown=given.markdown)) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
