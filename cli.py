"""The command line. Each command imports what it needs inside its function, so that `mixplan --help` is instant.

Exit codes: 0 done, 1 a fault of ours (or a limit of `verify` that is missed), 2 the user's mistake, 130 interrupted. Errors are one message
on stderr; `--debug` adds the traceback.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mixplan import __version__

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["main"]

# Modules that extras bring, and the extras that a command needs which misses one (a checkpoint needs the front ends too).
_EXTRA_MODULES = {"torch", "jinja2", "markupsafe", "scipy", "ziglang", "transformers", "accelerate", "gguf"}
_EXTRAS = {"compile": "compile,hf", "verify": "compile,hf"}
_EPILOG = "Start with: mixplan compile MODEL -o NAME.plan, then mixplan run NAME.plan 'Hello'."


class _Commands(click.Group):
    """Turns every failure into one message and an exit code."""

    def invoke(self, ctx: click.Context) -> Any:
        from mixplan.runtime.errors import MissingExtraError, MixplanError

        debug = bool(ctx.params.get("debug"))
        try:
            try:
                return super().invoke(ctx)
            except ModuleNotFoundError as error:
                if debug or (error.name or "").split(".")[0] not in _EXTRA_MODULES:
                    raise
                command = ctx.invoked_subcommand or ""
                raise MissingExtraError(f"`mixplan {command}`", _EXTRAS.get(command, "compile")) from error
        except MixplanError as error:
            if debug:
                raise
            click.echo(f"error: {error}", err=True)
            ctx.exit(error.exit_code)
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except BrokenPipeError:
            ctx.exit(0)
        except KeyboardInterrupt:
            click.echo("\ninterrupted", err=True)
            ctx.exit(130)
        except Exception as error:  # the outermost boundary: whatever is left is a fault of ours
            if debug:
                raise
            click.echo(f"internal error: {type(error).__name__}: {error}", err=True)
            click.echo("This is a fault of mixplan. Run again with --debug and report it.", err=True)
            ctx.exit(1)


@click.group(cls=_Commands, epilog=_EPILOG, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="mixplan")
@click.option("--debug", is_flag=True, help="Show tracebacks.")
def main(debug: bool) -> None:
    """Lower a model into a mixed-precision execution plan, and run the plan."""


def _emit_json(data: Any) -> None:
    import json

    click.echo(json.dumps(data, indent=2, ensure_ascii=False, sort_keys=True))


def _table(title: str, *columns: str) -> Table:
    from rich.table import Table

    class Plain(Table):
        """Cells are text from anywhere: nothing in them may steer the terminal."""

        def add_row(self, *cells: Any, **settings: Any) -> None:
            super().add_row(*("".join(c if c.isprintable() or c == "\n" else "\ufffd" for c in str(cell)) for cell in cells), **settings)

    table = Plain(title=title, title_justify="left", header_style="bold", box=None, pad_edge=False)
    for column in columns:
        name, _, align = column.partition(":")
        table.add_column(name, justify="right" if align == "r" else "left", overflow="fold")
    return table


def _show(*parts: Any) -> None:
    from rich.console import Console

    console = Console(highlight=False, markup=False, emoji=False, soft_wrap=not sys.stdout.isatty())
    with console.capture() as shown:
        for part in parts:
            console.print(part)
    # Not by rich itself, which ends the process with its own exit code where the reader of a pipe has left.
    click.echo(shown.get(), nl=False)


@main.command()
@click.argument("model")
@click.option("-o", "--output", required=True, metavar="OUT.plan", help="The plan's directory, made anew.")
@click.option("--scheme", default="W4A8", show_default=True, help="FP32, BF16, W8A16, W8A8, W4A16 or W4A8, for the whole model.")
@click.option("--group-size", type=int, default=32, show_default=True, help="Weights that share a scale in 4-bit schemes: 32, 64 or 128.")
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
@click.option("--target", "targets", default="cpu", show_default=True, help="What the plan is for; see `mixplan targets`.")
@click.option("--isa", default="all", show_default=True, help="ISA levels to build, by comma; `native` is the best that this machine has.")
@click.option("--kv-dtype", type=click.Choice(["f32", "f16"]), help="KV cache storage. Default: f32 for FP32 and BF16, else f16.")
@click.option("--max-step-tokens", type=click.IntRange(1, 8192), default=512, show_default=True, help="Tokens one step may hold.")
@click.option("--seed", type=int, default=0, show_default=True, help="Recorded in the plan; equal seeds give equal bytes.")
@click.option("--force", is_flag=True, help="Replace an existing plan.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
def compile(model: str, output: str, targets: str, isa: str, as_json: bool, **options: Any) -> None:  # noqa: A001 - the command's name
    """Compile MODEL (a Hugging Face directory or a GGUF file) into a plan.

    \b
    mixplan compile ./SmolLM2-135M-Instruct -o smol.plan
    mixplan compile model.gguf -o model.plan --scheme W4A16 --group-size 64 --override lm_head=W8A16
    mixplan compile ./llama -o llama.plan --override 're:.*\\.down_proj=W8A8' --dump-passes passes/
    """
    from mixplan.compiler.pipeline import compile as compile_plan
    from mixplan.compiler.progress import terminal_progress

    options["symmetric"] = not options.pop("asymmetric")
    if options["passes"]:
        sys.path.append(str(Path.cwd()))  # a user's own pass may lie in the current folder, as with `python -m`
    with terminal_progress() as progress:
        report = compile_plan(
            model,
            output=Path(output),
            targets=tuple(targets.split(",")),
            isa=None if isa == "all" else tuple(isa.split(",")),
            progress=progress,
            **options,
        )
    if as_json:
        _emit_json(report.to_dict())
        return
    _show(*report.render(_table))


def _render_chat() -> Any:
    """Renders chat templates that only Jinja can, where it is installed."""
    import importlib.util

    if importlib.util.find_spec("jinja2") is None:
        return None
    from mixplan.compiler.tokenizer.chat_render import render_plan_chat

    return render_plan_chat


def _utf8(data: bytes, what: str) -> str:
    from mixplan.runtime.errors import RequestError

    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise RequestError(f"{what} is not UTF-8: {error}.", hint="Convert it first, for example with iconv.") from None


@main.command()
@click.argument("plan", type=click.Path(path_type=Path))
@click.argument("prompt", required=False)
@click.option("--chat/--no-chat", default=None, help="Put the prompt into the model's chat template. Default: if the plan has one.")
@click.option("--system", help="System message, with --chat.")
@click.option("-n", "--max-tokens", type=click.IntRange(1), default=256, show_default=True)
@click.option("--temperature", type=float, default=0.0, show_default=True, help="0 is greedy.")
@click.option("--top-k", type=int, default=0, help="0 is off.")
@click.option("--top-p", type=float, default=1.0)
@click.option("--min-p", type=float, default=0.0)
@click.option("--repetition-penalty", type=float, default=1.0)
@click.option("--seed", type=int, help="Makes sampling reproducible.")
@click.option("--stop", multiple=True, help="Stop before this text; may be given more than once.")
@click.option("--threads", type=click.IntRange(1), help="Default: the cores this process may use.")
@click.option("--device", default="auto", show_default=True, help="auto, cpu or reference.")
@click.option("--isa", help="Force an ISA level; one that the plan lacks is compiled on the spot.")
@click.option("--trust", is_flag=True, help="Load the plan's own kernels although they were not built here.")
@click.option("--stats", is_flag=True, help="Print size, memory and speed to stderr at the end.")
@click.option("--json", "as_json", is_flag=True, help="Print text and statistics as JSON, at the end.")
def run(plan: Path, prompt: str | None, stats: bool, as_json: bool, **options: Any) -> None:
    """Generate text from PROMPT (or standard input), as a stream.

    \b
    mixplan run smol.plan "Why is the sky blue?"
    echo "Once upon a time" | mixplan run smol.plan --no-chat --temperature 0.8 --seed 1
    """
    from mixplan.runtime.run_prompt import run_prompt

    if prompt is None or prompt == "-":
        if sys.stdin.isatty():
            raise click.UsageError("No prompt. Give it as an argument, or pipe it in.")
        prompt = _utf8(sys.stdin.buffer.read(), "The prompt")
    elif any("\ud800" <= character <= "\udfff" for character in prompt):
        prompt = _utf8(os.fsencode(prompt), "The prompt")  # bytes that the locale has no characters for
    emit = None if as_json else lambda text: click.echo(text, nl=False)
    result = run_prompt(plan, prompt, emit=emit, render_chat=_render_chat(), **options)
    if as_json:
        _emit_json(result)
        return
    click.echo()
    if stats:
        click.echo(result["summary"], err=True)


@main.command()
@click.argument("plan", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Everything, as JSON.")
def inspect(plan: Path, as_json: bool) -> None:
    """Show a plan's regions, formats per layer, bytes, effective bits and provenance."""
    from mixplan.runtime.inspect_plan import inspect_plan

    data = inspect_plan(plan)
    if as_json:
        _emit_json(data)
        return
    facts = _table(data["name"], "fact", "value")
    for key, value in data["facts"].items():
        facts.add_row(key, str(value))
    regions = _table("\nRegions", "name", "device", "nodes:r", "kernels", "reason")
    for region in data["regions"]:
        regions.add_row(region["name"], region["device"], str(region["nodes"]), " ".join(region["kernels"]), region["reason"])
    layers = _table("\nLayers", "layer", "scheme", "parameters:r", "bits:r", "rule")
    for layer in data["layers"]:
        layers.add_row(layer["layer"], layer["scheme"], f"{layer['parameters']:,}", f"{layer['bits']:.2f}", layer["rule"])
    _show(facts, regions, layers)


@main.command()
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
def verify(ctx: click.Context, /, plan: Path, model: str | None, text: Path | None, as_json: bool, **options: Any) -> None:
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
        _emit_json(data) if as_json else click.echo(f"{plan}: {data['files']} files, {data['nodes']} nodes: sound")
        return
    from mixplan.compiler.verify import verify_plan

    report = verify_plan(plan, model, text=None if text is None else _utf8(text.read_bytes(), str(text)), **options)
    _emit_json(report.to_dict()) if as_json else _show(*report.render(_table))
    if not report.passed:
        ctx.exit(1)


@main.command()
@click.option("--json", "as_json", is_flag=True)
def passes(as_json: bool) -> None:
    """List the passes of the pipeline, in order. Your own goes before or after any of them."""
    from mixplan.passes.catalogue import catalogue

    rows = catalogue()
    if as_json:
        _emit_json(rows)
        return
    table = _table("", "pass", "stage", "what it does")
    for row in rows:
        table.add_row(row["name"], row["stage"], row["doc"])
    _show(table)


@main.command()
@click.option("--json", "as_json", is_flag=True)
def targets(as_json: bool) -> None:
    """Show this machine's hardware record, and what each target can do on it."""
    from mixplan.targets.summary import summary

    data = summary()
    if as_json:
        _emit_json(data)
        return
    hardware = _table("This machine", "fact", "value")
    for key, value in data["hardware"].items():
        hardware.add_row(key, _fact(key, value))
    table = _table("\nTargets", "target", "compiles", "runs", "levels", "formats", "notes")
    for row in data["targets"]:
        notes = "; ".join(filter(None, [row["reason"], *(f"{key}: {text}" for key, text in row["notes"].items())]))
        yes_no = ["yes" if row[key] else "no" for key in ("compiles", "runs")]
        table.add_row(row["name"], *yes_no, " ".join(row["levels"]), " ".join(row["formats"]), notes)
    _show(hardware, table)


def _fact(key: str, value: Any) -> str:
    if key == "caches":
        return ", ".join(f"L{c['level']} {c['kind']} {c['size'] / 1024:,.0f} KiB (shared by {c['shared_by']})" for c in value)
    if key.startswith("memory"):
        return f"{value / (1 << 30):.1f} GiB"
    return " ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


@main.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script for SHELL. For bash: eval "$(mixplan completion bash)"."""
    from click.shell_completion import get_completion_class

    found = get_completion_class(shell)
    if found is None:  # click knows all three; a newer one might drop a shell
        raise click.UsageError(f"click has no completion for {shell}")
    click.echo(found(main, {}, "mixplan", "_MIXPLAN_COMPLETE").source())


if __name__ == "__main__":
    main()
