"""`mixplan verify`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from mixplan.runtime.terminal import decode_utf8, emit_json, plain_table, show

__all__ = ["verify_command"]


@click.command(name="verify")
@click.argument("plan", type=click.Path(path_type=Path))
@click.argument("model", required=False)
@click.option(
    "--text", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Text to compare logits on. Default: a short built-in one."
)
@click.option("--tokens", type=click.IntRange(2), default=256, show_default=True, help="Tokens of the text to use.")
@click.option(
    "--max-diff",
    type=click.FloatRange(min=0),
    metavar="X",
    help="Fail if a logit differs by more than X times the largest logit. Default: 2e-4 for FP32 plans, no limit for others.",
)
@click.option("--min-snr", type=float, metavar="DB", help="Fail if a compared node has a lower SNR. Default: no limit.")
@click.option("--json", "as_json", is_flag=True, help="The report as JSON.")
@click.pass_context
def verify_command(ctx: click.Context, /, plan: Path, model: str | None, text: Path | None, as_json: bool, **options: Any) -> None:
    """Check a plan: digests, schema, bounds. With MODEL, also compare it with torch running MODEL.

    With MODEL, the logits are compared as the plan's own device computes them, and the nodes that have a counterpart in MODEL's graph
    on the reference device. Exit code 1 if a limit is missed. That MODEL is not the plan's source is a warning.

    \b
    mixplan verify smol.plan
    mixplan verify smol.plan ./SmolLM2-135M-Instruct --tokens 64 --max-diff 0.2
    """
    if model is None:
        if text is not None or options["max_diff"] is not None or options["min_snr"] is not None:
            raise click.UsageError("--text, --max-diff and --min-snr need MODEL, to compare with.")
        from mixplan.runtime.inspect_plan import check_plan

        data = check_plan(plan)
        emit_json(data) if as_json else click.echo(f"{plan}: {data['files']} files, {data['nodes']} nodes: sound")
        return
    from mixplan.compiler.verify import verify_plan

    report = verify_plan(plan, model, text=None if text is None else decode_utf8(text.read_bytes(), str(text)), **options)
    emit_json(report.to_dict()) if as_json else show(*report.render(plain_table))
    if not report.passed:
        ctx.exit(1)
