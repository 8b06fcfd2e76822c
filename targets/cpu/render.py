"""A region as one C++ file: headers inlined, functions, tables, frame."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from mixplan import __version__
from mixplan.runtime.devices.cpu_abi import ABI_VERSION, logits_columns, logits_output, region_fingerprint
from mixplan.runtime.errors import MissingExtraError
from mixplan.runtime.plan import Plan, Region
from mixplan.targets.cpu.codegen.builder import Builder, Op
from mixplan.targets.cpu.codegen.ref import Buffer
from mixplan.targets.cpu.codegen.region import build_region
from mixplan.targets.cpu.memory_plan import plan_memory

try:
    import jinja2
except ImportError as error:  # pragma: no cover - depends on the installation
    raise MissingExtraError("The CPU target", "compile") from error

__all__ = ["RenderedRegion", "render_region"]

_TEMPLATES = Path(__file__).parent / "templates"
_INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"\s*$')
_KINDS = {"arena": "kArena", "const": "kConst", "input": "kInput", "output": "kOutput", "kv": "kKv"}
# Element operations under which one thread does an op alone: some microseconds, several times what a barrier costs.
_SERIAL_WORK = 8192
# How the frame tells which size of the step decides whether an op is done by its readers.
_FEW = {"": "kNever", "T": "kFewTokens", "R": "kFewLogits", "last": "kLastTokens"}
# Nanoseconds that a worker polls between steps before it goes to sleep.
_IDLE_POLLING = 200_000


@dataclass(frozen=True)
class RenderedRegion:
    """The source text and facts for the report."""

    source: str
    arena_bytes: int
    functions: int
    ops: int


@cache
def _environment() -> jinja2.Environment:
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
    )


def _inline(path: Path, seen: set[Path]) -> list[str]:
    """A header's lines with its own includes in their place, each file once; `#pragma once` has no use any more."""
    path = path.resolve()
    if path in seen:
        return []
    seen.add(path)
    lines = [f"// ---- {path.relative_to(_TEMPLATES.resolve()).as_posix()}"]
    for line in path.read_text(encoding="utf-8").splitlines():
        include = _INCLUDE.match(line)
        if include:
            beside = path.parent / include[1]
            lines += _inline(beside if beside.exists() else _TEMPLATES / include[1], seen)
        elif line.strip() != "#pragma once":
            lines.append(line)
    return lines


def _headers(names: Sequence[str]) -> list[str]:
    seen: set[Path] = set()
    lines = ["#include <stdlib.h>", "#include <time.h>"]
    for name in ("frame.h", "pool.h", "sharing.h", "kernels/args.h", "kernels/draw.h", *sorted(names)):
        lines += _inline(_TEMPLATES / name, seen)
    return lines


@dataclass(frozen=True)
class _Entry:
    function: str
    first: int
    node: int
    work: tuple[int, int, int, int]
    few: str


@dataclass(frozen=True)
class _Place:
    kind: str
    index: int
    offset: int


def _work(op: Op) -> tuple[int, int, int, int]:
    """Coefficients of 1, T, R and T*T; other terms (T*R and beyond) count as T*T, since R <= T."""
    most = (1 << 50) - 1
    out = [0, 0, 0, 0]
    for (i, j), coef in op.work.terms:
        place = {(0, 0): 0, (1, 0): 1, (0, 1): 2}.get((i, j), 3)
        out[place] = max(-most, min(most, out[place] + coef))
    return out[0], out[1], out[2], out[3]


def _tables(builder: Builder) -> tuple[list[_Entry], list[_Place]]:
    entries: list[_Entry] = []
    places: list[_Place] = []
    known: dict[tuple[tuple[str, int, int], ...], int] = {}
    for op in builder.ops:
        key = tuple((_KINDS[o.buffer.kind], _index(o.buffer), _offset(o.buffer, o.offset)) for o in op.operands)
        # Pairs of ops on the same operands (attention) share one stretch of the table.
        if key not in known:
            known[key] = len(places)
            places += [_Place(*entry) for entry in key]
        entries.append(_Entry(op.function, known[key], op.node + 1, _work(op), _FEW[op.few]))
    return entries, places


def _index(buffer: Buffer) -> int:
    return 0 if buffer.kind == "arena" else buffer.index


def _offset(buffer: Buffer, offset: int) -> int:
    return buffer.offset + offset if buffer.kind == "arena" else offset


def render_region(plan: Plan, region: Region) -> RenderedRegion:
    """The C++ source of a region whose nodes are all supported. The text depends on the plan's structure alone, not on weights or place."""
    builder = build_region(plan, region)
    arena_bytes = plan_memory(builder.ops)
    entries, places = _tables(builder)
    logits = logits_output(plan, region)
    source = (
        _environment()
        .get_template("region.cpp.j2")
        .render(
            name=_comment(region.name),
            plan=_comment(plan.name),
            version=__version__,
            headers=_headers(builder.headers),
            functions=list(builder.functions.values()),
            ops=entries,
            operands=places,
            kv=builder.kv,
            scratch=builder.scratch,
            max_tokens=plan.max_step_tokens,
            arena_bytes=arena_bytes,
            constants=len(builder.constants),
            inputs=len(region.inputs),
            outputs=len(region.outputs),
            serial_work=_SERIAL_WORK,
            idle_polling=_IDLE_POLLING,
            abi=ABI_VERSION,
            fingerprint=region_fingerprint(plan, region),
            logits_output=max(logits, 0),
            logits_columns=logits_columns(plan, region),
        )
    )
    return RenderedRegion(source, arena_bytes, len(builder.functions), len(builder.ops))


def _comment(text: str) -> str:
    """A name from a plan, made harmless inside a C++ comment."""
    return re.sub(r"[^A-Za-z0-9_.+-]", "_", text)[:120]
