"""`mixplan debug`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from mixplan.runtime.terminal import decode_utf8, emit_json, plain_table, show

__all__ = ["debug_command"]


@click.command(name="debug")
@click.argument("plan", type=click.Path(path_type=Path))
@click.argument("model")
@click.option("--text", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Text to run. Default: a short built-in one.")
@click.option("--tokens", type=click.IntRange(2), default=64, show_default=True, help="Tokens of the text to use.")
@click.option("--worst", type=click.IntRange(0), metavar="N", help="Compute the KLD of the N spans with the lowest SNR. Default: of all.")
@click.option("--json", "as_json", is_flag=True, help="The report as JSON.")
def debug_command(plan: Path, model: str, text: Path | None, as_json: bool, **options: Any) -> None:
    """Find what is to blame for the difference between PLAN and the MODEL that it was compiled from.

    The plan is cut at every value that MODEL computes too. Each span between is run alone, on MODEL's own inputs, and with all before it:
    signal-to-noise ratio and cosine of its value, and the KL divergence of MODEL's logits where it is given that value.

    \b
    mixplan debug smol.plan ./SmolLM2-135M-Instruct --text wiki.test.txt
    mixplan debug smol.plan ./SmolLM2-135M-Instruct --tokens 32 --worst 20 --json
    """
    from mixplan.compiler.debug.run import debug_plan
    from mixplan.runtime.progress import terminal_progress

    words = None if text is None else decode_utf8(text.read_bytes(), str(text))
    with terminal_progress() as progress:
        report = debug_plan(plan, model, text=words, progress=progress, **options)
    if as_json:
        for warning in report.warnings:
            click.echo(f"warning: {warning}", err=True)
        emit_json(report.to_dict())
        return
    show(*report.render(plain_table))
