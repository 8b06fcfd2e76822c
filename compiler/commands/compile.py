"""`mixplan compile`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from mixplan.runtime.errors import OptionError
from mixplan.runtime.terminal import emit_json, plain_table, show

__all__ = ["compile_command"]

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command(name="compile")
@click.argument("model")
@click.option("-o", "--output", required=True, metavar="OUT.plan", help="The plan's directory, made anew.")
@click.option("--scheme", help="FP32, BF16, FP8 or W{8,6,5,4,3,2}A{16,8}; source: as a GGUF file has it. Default: W4A8.")
@click.option("--text", type=_FILE, help="A text to calibrate on, in UTF-8; with a promise, to measure on as well.")
@click.option(
    "--quantizer",
    type=click.Choice(["round", "clip", "gptq"]),
    help="To the nearest code; scales by weighted error; or errors compensated. Default: gptq with --text, else clip.",
)
@click.option(
    "--scaling",
    type=click.Choice(["none", "awq", "smooth"]),
    help="Scale the columns of layers' inputs by what --text makes of them. Default: smooth with --text, else none.",
)
@click.option("--eval-text", type=_FILE, help="With a promise: measure on this text. Default: the second half of --text.")
@click.option("--bits", metavar="N", help="Promise: effective bits per weight, over all tensors, such as 4.5.")
@click.option("--max-size", metavar="SIZE", help="Promise: size of the plan, such as 90MB.")
@click.option("--max-loss", metavar="SHARE", help="Promise: loss of perplexity against the original, such as 1%.")
@click.option("--max-kld", metavar="NATS", help="Promise: mean KL divergence from the original, such as 0.02.")
@click.option("--max-latency", metavar="TIME", help="Promise: time of a decode step on this machine, such as 5ms.")
@click.option("--batch", type=click.IntRange(1), default=1, show_default=True, help="Of --max-latency: sequences in the step.")
@click.option("--context", type=click.IntRange(1), default=512, show_default=True, help="Of --max-latency: tokens that they hold.")
@click.option("--candidates", metavar="SCHEMES", help="What a promise may choose from, by comma, such as W4A16:g32,asym,W8A16.")
@click.option("--sensitivity", type=click.Choice(["fisher", "hessian", "kld"]), help="With a promise: how losses are predicted.")
@click.option("--pin", "pins", multiple=True, metavar="LAYER=SCHEME", help="With a promise: these layers get this, whatever it costs.")
@click.option("--exclude", "excludes", multiple=True, metavar="LAYER", help="With a promise: these layers stay in BF16; re: for a pattern.")
@click.option(
    "--group-size",
    type=int,
    default=32,
    show_default=True,
    help="Weights that share a scale in schemes of fewer than 8 bits: 32, 64 or 128.",
)
@click.option("--asymmetric", is_flag=True, help="Quantized weights with a zero point for each scale.")
@click.option(
    "--override",
    "overrides",
    multiple=True,
    metavar="LAYER=SCHEME",
    help="A layer's exact name, or re:PATTERN. Exact beats pattern, then the last wins.",
)
@click.option(
    "--pass", "passes", multiple=True, metavar="MODULE:FN@after=NAME", help="Your own pass, at a place that `mixplan passes` names."
)
@click.option(
    "--dump-passes",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Write the captured graph, and that after every pass that changed it.",
)
@click.option(
    "--target", "targets", default="cpu", show_default=True, help="What the plan is for, see `mixplan targets`; A+B shares it out."
)
@click.option(
    "--provider", metavar="NAME", help="Of the npu target: qnn, vitisai, cann, openvino, or cpu for onnxruntime's own. Default: cpu."
)
@click.option(
    "--activation-type",
    metavar="TYPE",
    help="Of the npu target: uint8, int8, uint16 or int16 for rounded activations. Default: the provider's.",
)
@click.option("--place-tokens", type=int, metavar="N", help="With A+B: tokens of the step that costs are worked out for. Default: 256.")
@click.option("--move-above", metavar="TIME", help="With A+B: a region leaves A only with more compute than this. Default: 100us.")
@click.option("--boundary-below", metavar="SIZE", help="With A+B: and only with less than this at its borders. Default: 1MB.")
@click.option("--transfer", metavar="RATE+TIME", help="With A+B: what handing values over takes, or measured. Default: 8GB/s+20us.")
@click.option("--unit-cost", "unit_costs", multiple=True, metavar="UNIT:FACTS", help="With A+B: such as npu:int8=40TOPS,bandwidth=60GB/s.")
@click.option("--isa", default="all", show_default=True, help="ISA levels to build, by comma; `native` is the best that this machine has.")
@click.option("--arch", help="GPU architectures to build, by comma: sm_80, sm_90, sm_100, gfx942, or jit. Default: all but jit.")
@click.option("--tune", is_flag=True, help="Time tile shapes on the GPU that is here, and keep the best for this GPU.")
@click.option(
    "--kv-dtype",
    metavar="FORMATS",
    help="KV cache: f32, f16, i8, i4, k8v4 or fp8, and exceptions by LAYER, FIRST-LAST or LAYER.HEAD, such as i8,0=f16,9.2=f16. "
    "Default: f32 for FP32, else f16.",
)
@click.option(
    "--attention-scores", metavar="FORMATS", help="f32 or i8, and exceptions by LAYER or FIRST-LAST, such as f32,4-20=i8. Default: f32."
)
@click.option("--max-step-tokens", type=click.IntRange(1, 8192), default=512, show_default=True, help="Tokens one step may hold.")
@click.option("--seed", type=int, default=0, show_default=True, help="Recorded in the plan; equal seeds give equal bytes.")
@click.option("--force", is_flag=True, help="Replace an existing plan.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
def compile_command(model: str, output: str, targets: str, isa: str, arch: str | None, as_json: bool, **options: Any) -> None:
    """Compile MODEL (a Hugging Face directory or a GGUF file) into a plan.

    \b
    mixplan compile ./SmolLM2-135M-Instruct -o smol.plan
    mixplan compile model.gguf -o model.plan --scheme W4A16 --group-size 64 --override lm_head=W8A16
    mixplan compile ./llama -o llama.plan --override 're:.*\\.down_proj=W8A8' --dump-passes passes/
    mixplan compile ./llama -o llama.plan --scheme W4A16:nl,s8 --text wiki.txt
    mixplan compile ./llama -o llama.plan --target gpu --arch sm_90
    mixplan compile ./llama -o llama.plan --text wiki.txt --bits 4.5
    mixplan compile ./llama -o llama.plan --text wiki.txt --max-loss 1% --pin lm_head=W8A16
    mixplan compile ./llama -o llama.plan --text wiki.txt --max-latency 5ms --batch 1 --context 1024
    mixplan compile ./llama -o llama.plan --target npu --provider qnn --scheme W8A8 --text wiki.txt
    mixplan compile ./llama -o llama.plan --target cpu+npu --scheme W4A16 --unit-cost npu:f32=4TFLOPS,bandwidth=60GB/s
    """
    from mixplan.compiler.pipeline import compile as compile_plan
    from mixplan.compiler.search.candidates import split_candidates
    from mixplan.runtime.progress import terminal_progress

    levels = (() if isa == "all" else _names("--isa", isa)) + (() if arch is None else _names("--arch", arch))
    if options["candidates"] is not None:
        options["candidates"] = split_candidates(options["candidates"])
    options["symmetric"] = not options.pop("asymmetric")
    if options["passes"]:
        sys.path.append(str(Path.cwd()))  # a user's own pass may lie in the current folder, as with `python -m`
    with terminal_progress() as progress:
        report = compile_plan(
            model,
            output=Path(output),
            targets=tuple(targets.split(",")),
            isa=levels or None,
            progress=progress,
            **options,
        )
    if as_json:
        emit_json(report.to_dict())
        return
    show(*report.render(plain_table))


def _names(option: str, text: str) -> tuple[str, ...]:
    """The names of a list by comma; OptionError where one is missing, since nothing at all would stand for all of them."""
    names = tuple(name.strip() for name in text.split(","))
    if "" in names:
        raise OptionError(
            f"{option} is {text!r}, where a name is missing; it must be names, by comma.",
            hint=f"Leave {option} out for what is built by default; `mixplan targets` lists the names.",
        )
    return names
