"""What commands print with: JSON, tables, text from bytes. rich is imported where something is drawn."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["decode_utf8", "emit_json", "plain_table", "show"]

_PIPE_WIDTH = 160


def emit_json(data: Any) -> None:
    """Print `data` as JSON."""
    import json

    click.echo(json.dumps(data, indent=2, ensure_ascii=False, sort_keys=True))


def plain_table(title: str, *columns: str) -> Table:
    """A table without lines. A column's name ends in ":r" where it is aligned to the right."""
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


def show(*parts: Any) -> None:
    """Print tables and text, one after the other."""
    from rich.console import Console

    terminal = sys.stdout.isatty()
    # A pipe has no width: what reads it cuts lines itself, if it must.
    console = Console(highlight=False, markup=False, emoji=False, soft_wrap=not terminal, width=None if terminal else _PIPE_WIDTH)
    with console.capture() as shown:
        for part in parts:
            console.print(part)
    # Not by rich itself, which ends the process with its own exit code where the reader of a pipe has left.
    click.echo(shown.get(), nl=False)


def decode_utf8(data: bytes, what: str) -> str:
    """Text of UTF-8 bytes; RequestError, which names `what` they are, where they are none."""
    from mixplan.runtime.errors import RequestError

    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise RequestError(f"{what} is not UTF-8: {error}.", hint="Convert it first, for example with iconv.") from None
