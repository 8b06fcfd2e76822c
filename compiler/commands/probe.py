"""`mixplan probe`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from mixplan.runtime.terminal import decode_utf8, emit_json, plain_table, show

__all__ = ["probe_command"]

_ROWS = 12


@click.command(name="probe")
@click.argument("model")
@click.option(
    "--text",
    required=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Text to run: much like what the model is for.",
)
@click.option(
    "-o",
    "--output",
    multiple=True,
    type=click.Path(path_type=Path),
    metavar="REPORT",
    help="A file that ends in .html or .json; may be given more than once.",
)
@click.option("--tokens", type=click.IntRange(2), default=4096, show_default=True, help="Tokens of the text to use.")
@click.option("--window", type=click.IntRange(2), default=512, show_default=True, help="Tokens of one sequence.")
@click.option("--context", type=click.IntRange(2), help="Tokens that a decode step attends to, for FLOPs and bytes. Default: the window.")
@click.option("--candidates", help="Schemes to try on each layer, by comma, such as W8A16,W4A16:g32. Default: one for each width there is.")
@click.option(
    "--sensitivity",
    type=click.Choice(["auto", "fisher", "hessian", "kld"]),
    default="auto",
    show_default=True,
    help="How losses are predicted; auto is fisher, or hessian for models over two billion parameters.",
)
@click.option("--threads", type=click.IntRange(1), help="Threads of torch; 1 gives the same statistics in every bit. Default: torch's own.")
@click.option("--force", is_flag=True, help="Replace existing reports.")
@click.option("--json", "as_json", is_flag=True, help="Print the whole report as JSON.")
def probe_command(model: str, text: Path, candidates: str | None, as_json: bool, **options: Any) -> None:
    """Run text through MODEL (a Hugging Face directory or a GGUF file), and report what its tensors, layers and heads are like.

    Ranges, moments, percentiles, zeros and outlier channels of every tensor, FLOPs and bytes and time of every layer, ranges of every
    attention head, what each layer loses in each candidate format, and advice on formats. Weights are read bit by bit and dropped, so MODEL
    may be larger than memory.

    \b
    mixplan probe ./SmolLM2-135M-Instruct --text notes.txt -o report.html
    mixplan probe model.gguf --text notes.txt -o report.json --tokens 16384 --candidates W8A16,W4A16:g32
    """
    from mixplan.compiler import probe
    from mixplan.runtime.progress import terminal_progress

    words = decode_utf8(text.read_bytes(), str(text))
    schemes = None if candidates is None else _schemes(candidates)
    with terminal_progress() as progress:
        report = probe(model, text=words, schemes=schemes, progress=progress, **options)
    if as_json:
        emit_json(report.to_dict())
        return
    lines = [f"{one.topic}: {one.text}" for one in report.advice]
    table = plain_table(
        f"{report.model}: {report.tokens} tokens; the layers that take most of the time",
        "layer",
        "FLOPs/byte:r",
        "measured:r",
        "modelled:r",
    )
    for layer in sorted(report.layers, key=lambda layer: -layer.measured_share)[:_ROWS]:
        shares = [f"{share:.1%}" for share in (layer.measured_share, layer.modelled_share)]
        table.add_row(layer.name, f"{layer.decode.flops_per_byte:.2f}", *shares)
    written = [f"\nWritten: {', '.join(map(str, options['output']))}"] if options["output"] else []
    show(table, f"{report.time_basis}\n{report.model_basis}\n", "\n".join(lines), *written)


def _schemes(text: str) -> list[str]:
    """Schemes by comma, where a scheme's own suffixes have commas too: what names no bits goes with what stands before it."""
    found: list[str] = []
    for part in text.split(","):
        if found and not part.strip().upper().startswith(("W", "BF", "FP")):
            found[-1] += f",{part}"
        else:
            found.append(part)
    return found
