"""`mixplan export`."""

from __future__ import annotations

from pathlib import Path

import click

from mixplan.runtime.terminal import emit_json, plain_table, show

__all__ = ["export_command"]


@click.command(name="export")
@click.argument("plan", type=click.Path(path_type=Path))
@click.option("--model", help="The checkpoint that PLAN was compiled from; gives compressed-tensors config, tokenizer, norms and biases.")
@click.option(
    "--format",
    "kind",
    type=click.Choice(["compressed-tensors", "onnx"]),
    default="compressed-tensors",
    show_default=True,
    help="A Hugging Face directory, or one ONNX model.",
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
@click.option("--provider", default="cpu", show_default=True, help="Of onnx: whose rules the model keeps to; see `mixplan compile`.")
@click.option("--text", type=click.Path(path_type=Path), help="Of onnx: round activations with static scales, from this text.")
@click.option("--activation-type", default="", metavar="TYPE", help="Of onnx, with --text: uint8, int8, uint16 or int16.")
@click.option("--force", is_flag=True, help="Replace an existing export.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
def export_command(
    plan: Path,
    model: str | None,
    kind: str,
    output: str,
    dtype: str,
    weight_only: bool,
    provider: str,
    text: Path | None,
    activation_type: str,
    force: bool,
    as_json: bool,
) -> None:
    """Write PLAN's decisions as a Hugging Face directory that transformers and vLLM load, or PLAN as one ONNX model.

    The weights have exactly the plan's values. Layers whose format has no counterpart there (codebooks, f16 minima, experts) are
    an error that names them all. An ONNX model has its KV cache as inputs and outputs; docs/reference/onnx-model.md describes them.

    \b
    mixplan export smol.plan --model ./SmolLM2-135M-Instruct -o smol-w4a8
    mixplan export llama.plan --model ./llama -o llama-w4a16 --weight-only --dtype float16
    mixplan export smol.plan --format onnx -o smol-onnx
    """
    if kind == "onnx":
        from mixplan.compiler.onnx_export import export_onnx

        made = export_onnx(plan, output, provider=provider, activation_type_name=activation_type, text=text, force=force)
        emit_json(made.to_dict()) if as_json else show(*made.render(plain_table))
        return
    if model is None:
        raise click.UsageError("The format compressed-tensors needs --model, the checkpoint that the plan was compiled from.")
    from mixplan.compiler.compressed_tensors.export import export_plan
    from mixplan.runtime.progress import terminal_progress

    with terminal_progress() as progress:
        report = export_plan(plan, model, output, dtype=dtype, weight_only=weight_only, force=force, progress=progress)
    emit_json(report.to_dict()) if as_json else show(*report.render(plain_table))
