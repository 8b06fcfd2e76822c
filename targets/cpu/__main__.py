"""`python -m mixplan.targets.cpu rebuild PLAN --region NAME --isa LEVEL`: compile a region of a plan anew, from our own templates.

Prints the path of the library in the local cache. The CPU device runs it in a process of its own for plans whose binaries are not
trusted, so that the runtime itself needs neither jinja2 nor a compiler.
"""

from __future__ import annotations

import argparse
import sys

from mixplan.runtime.errors import MixplanError, OptionError, PlanError, UnsupportedError
from mixplan.runtime.plan_io import read_plan

__all__ = ["main"]


def _rebuild(path: str, name: str, level: str, digest: str | None) -> str:
    from mixplan.targets.cpu.cache import cached_kernel, kernel_key
    from mixplan.targets.cpu.render import render_region
    from mixplan.targets.cpu.target import unsupported_reason
    from mixplan.targets.cpu.toolchain import find_compiler

    with read_plan(path, verify="manifest") as loaded:
        if digest is not None and loaded.digest != digest:
            raise PlanError(f"{path} was changed while it was loaded.", hint="Load it again.")
        plan = loaded.plan
        region = next((region for region in plan.regions if region.name == name), None)
        if region is None:
            raise OptionError(f"{path} has no region {name!r}.", hint=f"Regions: {', '.join(region.name for region in plan.regions)}.")
        for node in plan.nodes[region.start : region.stop]:
            reason = unsupported_reason(node, plan.values)
            if reason:
                raise UnsupportedError(f"Node {node.name!r} ({node.op}) cannot be compiled for the CPU: {reason}.")
        source = render_region(plan, region).source
    compiler = find_compiler()
    key = kernel_key(source, compiler.flags(level), compiler.identity)
    return str(cached_kernel(key, lambda: compiler.compile(source, level)))


def main(arguments: list[str] | None = None) -> int:
    """The exit code: 0, or that of the error, whose message goes to stderr."""
    parser = argparse.ArgumentParser(prog="python -m mixplan.targets.cpu", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    rebuild = commands.add_parser("rebuild", help="compile one region of a plan and print the library's path")
    rebuild.add_argument("plan")
    rebuild.add_argument("--region", required=True)
    rebuild.add_argument("--isa", required=True)
    rebuild.add_argument("--digest", help="SHA-256 that plan.json must have")
    given = parser.parse_args(arguments)
    try:
        sys.stdout.write(_rebuild(given.plan, given.region, given.isa, given.digest) + "\n")
    except MixplanError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
