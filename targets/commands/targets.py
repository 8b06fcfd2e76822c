"""`mixplan targets`."""

from __future__ import annotations

from typing import Any

import click

from mixplan.runtime.terminal import emit_json, plain_table, show

__all__ = ["targets_command"]


@click.command(name="targets")
@click.option("--conformance", metavar="NAME", help="Run the op table on this target, and compare with the reference.")
@click.option("--ops", metavar="OPS", help="With --conformance: these ops alone, by comma. Default: all.")
@click.option("--isa", metavar="LEVEL", help="With --conformance: a level to compile for and to run. Default: the best of this machine.")
@click.option("--measure", is_flag=True, help="Measure the CPU's bandwidth and peaks first, and keep them for its record.")
@click.option("--json", "as_json", is_flag=True, help="Everything, as JSON.")
@click.pass_context
def targets_command(ctx: click.Context, conformance: str | None, ops: str | None, isa: str | None, measure: bool, as_json: bool) -> None:
    """Show this machine's devices, and what each target can do on it.

    With --conformance, every op of the table is compiled for a target, alone, and run on its device with several shapes and dtypes; the
    results are held against the op's numpy reference. Exit code 1 where a case that the target says it supports fails.

    \b
    mixplan targets
    mixplan targets --conformance cpu --ops linear,rms_norm,attention
    """
    if conformance is not None:
        if measure:
            raise click.UsageError("--measure and --conformance do not go together.")
        if _conformance(conformance, ops, isa, as_json):
            ctx.exit(1)
        return
    if ops is not None or isa is not None:
        raise click.UsageError("--ops and --isa are for --conformance.")
    from mixplan.targets.summary import summary

    if measure:
        from mixplan.targets.cpu.ceilings.machine import measure_machine

        measure_machine()

    data = summary()
    if as_json:
        emit_json(data)
        return
    parts = [_device(record) for record in data["hardware"]]
    table = plain_table("\nTargets", "target", "compiles", "runs", "levels", "formats", "notes")
    for row in data["targets"]:
        notes = "; ".join(filter(None, [row["reason"], *(f"{key}: {text}" for key, text in row["notes"].items())]))
        yes_no = ["yes" if row[key] else "no" for key in ("compiles", "runs")]
        table.add_row(row["name"], *yes_no, " ".join(row["levels"]), " ".join(row["formats"]), notes)
    show(*parts, table)
    for line in data["ignored"]:
        click.echo(f"note: {line}", err=True)


# Beginnings of the names of instruction sets that kernels may use; others tell a reader nothing about speed.
_TELLING = ("sse4", "avx", "amx", "fma", "f16c", "asimd", "i8mm", "bf16", "sve")


def _device(record: dict[str, Any]) -> Any:
    """What is known of a device."""
    table = plain_table(f"\nDevice {record['device']}", "fact", "value")
    for key, value in (record | {f"{key} now": value for key, value in record["sample"].items()}).items():
        if value not in (None, (), {}) and key not in ("device", "sample"):
            table.add_row(key.replace("_", " "), _fact(key, value))
    return table


def _fact(key: str, value: Any) -> str:
    if key == "flags":
        telling = [flag for flag in value if flag.startswith(_TELLING)]
        more = len(value) - len(telling)
        return " ".join(telling) + (f" and {more} more (--json has them)" if more else "")
    if key == "caches":
        return ", ".join(f"L{c['level']} {c['kind']} {c['size'] / 1024:,.0f} KiB (shared by {c['shared_by']})" for c in value)
    if key == "bandwidth":
        return ", ".join(f"{rate / 1e9:.1f} GB/s of {size >> 20} MiB" for size, rate in value)
    if key == "peaks":
        return ", ".join(f"{kind} {rate / 1e9:,.0f} GOP/s" for kind, rate in value.items())
    if key.startswith(("memory", "free")):
        return f"{value / (1 << 30):.1f} GiB"
    if key.startswith("clock"):
        return f"{value / 1e9:.2f} GHz"
    if key == "link":
        return f"{value / 1e9:.1f} GB/s"
    return " ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _conformance(name: str, ops: str | None, isa: str | None, as_json: bool) -> bool:
    """Whether a case failed."""
    from mixplan.runtime.progress import terminal_progress
    from mixplan.targets.conformance.report import render, to_json
    from mixplan.targets.conformance.run import run_conformance

    wanted = [op.strip() for op in ops.split(",")] if ops is not None else []
    with terminal_progress(remaining=True) as progress:
        results = run_conformance(name, wanted, isa=isa, progress=progress)
    if as_json:
        emit_json(to_json(name, results))
    else:
        show(*render(name, results, plain_table))
    return any(result.status == "failed" for result in results)
