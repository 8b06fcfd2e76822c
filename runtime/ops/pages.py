"""The reference page of the ops, as Markdown, from the table itself."""

from __future__ import annotations

from mixplan.runtime.ops.base import OpSpec
from mixplan.runtime.ops.table import FAMILIES

__all__ = ["render"]

_HEAD = """# Ops of a plan

This page is generated: `python -m mixplan.runtime.ops > docs/reference/ops.md`.

Each op is defined once, in `mixplan/runtime/ops`, by its signature, its shape rule and its numpy reference. `x?` may be left out,
`xs*` stands for one or more. An attribute with `=` has that default. Axes count from 0 and are never negative. Packed weights are
described in `mixplan/runtime/packing.py`; ops on them take the attributes `format` (f32, bf16, i8 to i2, n5 to n2), `rows`, `columns`
(of the weight, without padding) and `group_size` (0: one scale for each row), and are asymmetric where `zeros` is given. The dtypes
of `scales` (i8: two-level) and `zeros` (f16: minima) tell the rest.
"""


def _row(spec: OpSpec) -> str:
    signature = spec.signature
    attrs = [
        f"{name}: {'ints' if kind is tuple else kind.__name__}" + (f" = {signature.defaults[name]}" if name in signature.defaults else "")
        for name, kind in signature.attrs.items()
    ]
    cells = (f"**{spec.name}**", ", ".join(signature.inputs), "<br>".join(attrs), ", ".join(signature.outputs), spec.doc)
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def render() -> str:
    """The whole page."""
    parts = [_HEAD]
    for title, specs in FAMILIES:
        parts.append(f"\n## {title}\n\n| op | inputs | attributes | outputs | meaning |\n|---|---|---|---|---|\n")
        parts.extend(f"{_row(spec)}\n" for spec in specs)
    return "".join(parts)
