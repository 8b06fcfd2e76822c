"""Writes the generated pages: `python docs/generate.py`. A test compares them with what is there."""

from __future__ import annotations

import inspect
import textwrap
from pathlib import Path
from typing import Any

import click

REFERENCE = Path(__file__).resolve().parent / "reference"
_NOTE = "This page is generated: `python docs/generate.py`.\n"


def cli_page() -> str:
    """The command line's own help, as a page."""
    from mixplan.cli import main

    root = click.Context(main, info_name="mixplan")
    parts = ["# Command line\n", _NOTE, f"{main.help}\n", "Every command has `--help`.\n", _options(main, root)]
    for name in main.list_commands(root):
        command = main.get_command(root, name)
        assert command is not None
        context = click.Context(command, info_name=name, parent=root)
        usage = " ".join([context.command_path, *command.collect_usage_pieces(context)])
        parts += [f"## mixplan {name}\n", f"```text\n{usage}\n```\n", *_help(command), _options(command, context)]
    parts.append(
        "## Exit codes\n\n0: done. 1: a fault of mixplan, or a limit of `verify` that is missed. "
        "2: the caller can mend it, or wrong usage. 130: interrupted. See [Errors](errors.md).\n\n"
        "## Environment\n\n"
        "| variable | is |\n|---|---|\n"
        "| `MIXPLAN_CC` | the compiler to use instead of the one in the `ziglang` wheel: `gcc` or `clang` |\n"
        "| `MIXPLAN_PROFILE` | 1: the CPU device keeps the time of every op, as `load(..., profile=True)` asks it to |\n"
        "| `XDG_CACHE_HOME` | compiled kernels are in `mixplan/` below it; default `~/.cache` |\n"
        "| `XDG_STATE_HOME` | the ledger of trusted plans; default `~/.local/state` |\n"
        "| `XDG_CONFIG_HOME` | the file of trusted keys; default `~/.config` |\n"
    )
    return "\n".join(part for part in parts if part)


def _help(command: click.Command) -> list[str]:
    """Paragraphs of the help; one that click is told not to wrap (by a backspace) holds examples."""
    parts = []
    for paragraph in inspect.cleandoc(command.help or "").split("\n\n"):
        mark, kept, examples = paragraph.partition("\b")
        parts.append(f"```text\n{textwrap.dedent(examples).strip()}\n```\n" if kept and not mark.strip() else f"{paragraph}\n")
    return parts


def _options(command: click.Command, context: click.Context) -> str:
    rows = []
    for parameter in command.get_params(context):
        if not isinstance(parameter, click.Option) or "--help" in parameter.opts:
            continue
        names = ", ".join(f"`{name}`" for name in [*parameter.opts, *parameter.secondary_opts])
        if not parameter.is_flag:
            names += f" `{_cell(parameter.make_metavar(context))}`"
        rows.append(f"| {names} | {_cell(parameter.help or '')} | {_default(parameter)} |")
    return "| option | does | default |\n|---|---|---|\n" + "\n".join(rows) + "\n" if rows else ""


def _default(option: click.Option) -> str:
    if option.required:
        return "required"
    return f"`{option.default}`" if option.show_default and option.default is not None else ""


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def passes_page() -> str:
    """The pipeline, from the catalogue that `mixplan passes` prints."""
    from mixplan.passes.catalogue import catalogue

    rows: list[dict[str, Any]] = catalogue()
    lines = [
        "# Passes\n",
        _NOTE,
        "In the order in which they run. `--pass MODULE:FN@after=NAME` takes a name of either column; "
        "see [Write a pass](../how-to/write-a-pass.md).\n",
        "| pass | stage | what it does |\n|---|---|---|",
        *(f"| `{row['name']}` | {row['stage']} | {_cell(row['doc'])} |" for row in rows),
    ]
    return "\n".join(lines) + "\n"


PAGES = {"cli.md": cli_page, "passes.md": passes_page}


if __name__ == "__main__":
    for page, render in PAGES.items():
        (REFERENCE / page).write_text(render(), encoding="utf-8")
