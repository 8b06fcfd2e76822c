"""The command line. Each command imports what it needs inside its function, so that `mixplan --help` is instant. Commands with many options
have modules of their own, in the layer that they belong to.

Exit codes: 0 done, 1 a fault of ours (or a limit of `verify` that is missed), 2 the user's mistake, 130 interrupted. Errors are one message
on stderr; `--debug` adds the traceback.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import click

from mixplan import __version__
from mixplan.compiler.commands.compile import compile_command
from mixplan.compiler.commands.debug import debug_command
from mixplan.compiler.commands.eval import eval_command
from mixplan.compiler.commands.export import export_command
from mixplan.compiler.commands.probe import probe_command
from mixplan.compiler.commands.verify import verify_command
from mixplan.runtime.commands.diff import diff_command
from mixplan.runtime.commands.explain import explain_command
from mixplan.runtime.terminal import decode_utf8, emit_json, plain_table, show
from mixplan.targets.commands.bench import bench_command
from mixplan.targets.commands.targets import targets_command

__all__ = ["main"]

# Modules that extras bring, and the extras that a command needs which misses one (a checkpoint needs the front ends too).
_EXTRA_MODULES = {"torch", "jinja2", "markupsafe", "scipy", "ziglang", "transformers", "accelerate", "gguf"}
_EXTRAS = dict.fromkeys(("compile", "probe", "verify", "eval", "debug", "export"), "compile,hf")
_EPILOG = "Start with: mixplan compile MODEL -o NAME.plan, then mixplan run NAME.plan 'Hello'."


class _Commands(click.Group):
    """Turns every failure into one message and an exit code."""

    def invoke(self, ctx: click.Context) -> Any:
        from mixplan.runtime.errors import MissingExtraError, MixplanError
        from mixplan.runtime.short_memory import reporting_short_memory

        debug = bool(ctx.params.get("debug"))
        try:
            try:
                with reporting_short_memory(lambda: f"`mixplan {ctx.invoked_subcommand or ''}`"):
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


for _command in (
    compile_command,
    probe_command,
    verify_command,
    eval_command,
    debug_command,
    export_command,
    explain_command,
    diff_command,
    bench_command,
    targets_command,
):
    main.add_command(_command)


def _render_chat() -> Any:
    """Renders chat templates that only Jinja can, where it is installed."""
    import importlib.util

    if importlib.util.find_spec("jinja2") is None:
        return None
    from mixplan.compiler.tokenizer.chat_render import render_plan_chat

    return render_plan_chat


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
@click.option("--device", default="auto", show_default=True, help="auto, cpu, gpu, npu or reference.")
@click.option("--allow-cpu-fallback", is_flag=True, help="Let the CPU run what an NPU's provider does not.")
@click.option("--isa", help="Force an ISA level; one that the plan lacks is compiled on the spot.")
@click.option("--trust", is_flag=True, help="Load the plan's own kernels although they were not built here.")
@click.option("--strict", is_flag=True, help="A kernel or a device that fails is an error; nothing takes its place.")
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
        prompt = decode_utf8(sys.stdin.buffer.read(), "The prompt")
    elif any("\ud800" <= character <= "\udfff" for character in prompt):
        prompt = decode_utf8(os.fsencode(prompt), "The prompt")  # bytes that the locale has no characters for
    emit = None if as_json else lambda text: click.echo(text, nl=False)
    result = run_prompt(plan, prompt, emit=emit, render_chat=_render_chat(), **options)
    if as_json:
        emit_json(result)
        return
    click.echo()
    if stats:
        click.echo(result["summary"], err=True)


@main.command()
@click.argument("plan", type=click.Path(path_type=Path))
@click.option("--where", is_flag=True, help="Load the plan on this machine, and show what runs each region, and each node of an NPU's.")
@click.option("--trust", is_flag=True, help="With --where: load the plan's own kernels although they were not built here.")
@click.option("--allow-cpu-fallback", is_flag=True, help="With --where: let the CPU run what an NPU's provider does not.")
@click.option("--json", "as_json", is_flag=True, help="Everything, as JSON.")
def inspect(plan: Path, where: bool, trust: bool, allow_cpu_fallback: bool, as_json: bool) -> None:
    """Show a plan's regions, formats per layer, bytes, effective bits and provenance."""
    from mixplan.runtime.inspect_plan import inspect_plan
    from mixplan.runtime.where_plan import where_plan

    data = where_plan(plan, trust=trust, allow_cpu_fallback=allow_cpu_fallback) if where else inspect_plan(plan)
    if where and not as_json:
        placed = plain_table("Regions", "region", "nodes:r", "asked for", "runs on", "why")
        for row in data["regions"]:
            placed.add_row(row["region"], str(row["nodes"]), row["requested"], f"{row['device']} ({row['isa']})", row["reason"])
        nodes = plain_table("\nNodes on providers", "node", "provider", "ONNX nodes:r")
        for row in data["nodes"]:
            nodes.add_row(row["node"], row["provider"], str(row["onnx_nodes"]))
        show(placed, *([nodes] if data["nodes"] else []))
        return
    if as_json:
        emit_json(data)
        return
    facts = plain_table(data["name"], "fact", "value")
    for key, value in data["facts"].items():
        facts.add_row(key, str(value))
    regions = plain_table("\nRegions", "name", "device", "nodes:r", "kernels", "reason")
    for region in data["regions"]:
        regions.add_row(region["name"], region["device"], str(region["nodes"]), " ".join(region["kernels"]), region["reason"])
    layers = plain_table("\nLayers", "layer", "scheme", "parameters:r", "bits:r", "rule")
    for layer in data["layers"]:
        layers.add_row(layer["layer"], layer["scheme"], f"{layer['parameters']:,}", f"{layer['bits']:.2f}", layer["rule"])
    show(facts, regions, layers)


@main.command()
@click.option("--json", "as_json", is_flag=True)
def passes(as_json: bool) -> None:
    """List the passes of the pipeline, in order. Your own goes before or after any of them."""
    from mixplan.passes.catalogue import catalogue

    rows = catalogue()
    if as_json:
        emit_json(rows)
        return
    table = plain_table("", "pass", "stage", "what it does")
    for row in rows:
        table.add_row(row["name"], row["stage"], row["doc"])
    show(table)


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
