"""`mixplan export`."""

from __future__ import annotations

from pathlib import Path

import click

from mixplan.runtime.terminal import emit_json, plain_table, show

__all__ = ["export_command"]


@click.command(name="export")
@click.argument("plan", type=click.Path(path_type=Path))
@click.option("--model", required=True, help="The checkpoint that PLAN was compiled from; gives config, tokenizer, norms and biases.")
@click.option(
    "--format", "kind", type=click.Choice(["compressed-tensors"]), default="compressed-tensors", show_default=True, help="The format."
)
@click.option("-o", "--output", required=True, metavar="DIR", help="The directory, made anew.")
@click.option(
    "--dtype",
    type=click.Choice(["auto", "float32", "float16", "bfloat16"]),
    default="auto",
    show_default=True,
    help="What the engine is to compute in. auto: what the checkpoint says.",
)
@click.option("--weight-only", is_flag=True, help="Leave layers' inputs unrounded, for engines without int8 products.")
@click.option("--force", is_flag=True, help="Replace an existing export.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
def export_command(plan: Path, model: str, kind: str, output: str, dtype: str, weight_only: bool, force: bool, as_json: bool) -> None:
    """Write PLAN's decisions as a Hugging Face directory that transformers and vLLM load.

    The weights have exactly the plan's values. Layers whose format has no counterpart there (codebooks, f16 minima, experts) are
    an error that names them all.

    \b
    mixplan export smol.plan --model ./SmolLM2-135M-Instruct -o smol-w4a8
    mixplan export llama.plan --model ./llama -o llama-w4a16 --weight-only --dtype float16
    """
    from mixplan.compiler.compressed_tensors.export import export_plan
    from mixplan.runtime.progress import terminal_progress

    with terminal_progress() as progress:
        report = export_plan(plan, model, output, dtype=dtype, weight_only=weight_only, force=force, progress=progress)
    emit_json(report.to_dict()) if as_json else show(*report.render(plain_table))
