"""What the GPU target makes of a region: a list of launches, and for one architecture the binaries of its kernels.

A file of it is: 8 bytes `MPGPU1\\0\\0`, the length of a JSON header in 8 bytes (little-endian), the header (`Program`), and the binaries,
one after the other. Everything that varies with the step is `Affine` in T (tokens), R (rows of logits) and S (stretches of tokens that
attend together), so that a launch needs no code. All values of the step live in one arena whose offsets are fixed, so that a captured graph
of launches stays valid from step to step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import msgspec

from mixplan.runtime.errors import PlanError

__all__ = ["Affine", "Argument", "Constant", "Kernel", "Launch", "Program", "Sizes", "decode_program", "encode_program"]

_MAGIC = b"MPGPU1\0\0"
FORMAT = 1
Constant: TypeAlias = bool | int | float | str


class _Record(msgspec.Struct, forbid_unknown_fields=True, frozen=True, omit_defaults=True):
    """Base: immutable and strict."""


class Sizes(_Record, frozen=True):
    """Sizes of one step."""

    tokens: int
    rows: int
    stretches: int


class Affine(_Record, frozen=True):
    """ceil((tokens * T + rows * R + stretches * S + add) / div)."""

    tokens: int = 0
    rows: int = 0
    stretches: int = 0
    add: int = 0
    div: int = 1

    def at(self, sizes: Sizes) -> int:
        """The number in a step."""
        return -(-(self.tokens * sizes.tokens + self.rows * sizes.rows + self.stretches * sizes.stretches + self.add) // self.div)


class Argument(_Record, frozen=True):
    """One run-time argument of a kernel.

    kind: arena (`offset` bytes into it), constant (of the plan's value `index`, `offset` bytes into it), codebook (of `index` bits), kv
    (the pool `name` of attention layer `index`: keys.RUN, keys_parameters.RUN, values.RUN or values_parameters.RUN), step (the array
    `name`: tables, positions, slots, stretches, or the sampler's settings, ks, scratch or tokens), none (a pointer that is left out),
    number (`value`, i32) or max_pages (columns of the tables). type: Triton's spelling, with "!" where the
    pointer may not be a multiple of 16 bytes.
    """

    kind: str
    type: str = ""
    offset: int = 0
    index: int = 0
    name: str = ""
    value: Affine | None = None


class Launch(_Record, frozen=True):
    """One launch. Each dim of the grid is the least of its forms.

    mode: "" always; "sample" after a decode step whose tokens the device draws; "decode" where every sequence of the step has one token and
    T is at most `decode_tokens`; "prefill" elsewhere. rows, least, most: the launch is made where `rows` is in [least, most], so that small
    and large steps get tiles of their own.
    """

    kernel: int
    node: int
    grid: tuple[tuple[Affine, ...], ...]
    arguments: tuple[Argument, ...]
    mode: str = ""
    rows: Affine | None = None
    least: int = 0
    most: int = 1 << 30


class Kernel(_Record, frozen=True):
    """A kernel with its compile-time arguments. From `entry` on: what the build tells; empty in a program without binaries."""

    name: str
    types: tuple[str, ...]
    constants: dict[str, Constant]
    warps: int
    stages: int
    entry: str = ""
    shared: int = 0
    threads: int = 0
    registers: int = 0
    spilled: int = 0
    offset: int = 0
    nbytes: int = 0


class Program(_Record, frozen=True):
    """The header. values: arena offsets of the region's inputs and outputs by the plan's value index. fingerprint: of the region."""

    format: int
    arch: str
    compiler: str
    fingerprint: int
    arena: int
    page_size: int
    stretch: int
    decode_tokens: int
    values: dict[str, int]
    kernels: tuple[Kernel, ...]
    launches: tuple[Launch, ...]


def encode_program(program: Program, binaries: Sequence[bytes]) -> bytes:
    """The file of a program whose kernels have their offsets into the joined binaries already."""
    header = msgspec.json.encode(program)
    return b"".join([_MAGIC, len(header).to_bytes(8, "little"), header, *binaries])


def decode_program(data: bytes, where: str) -> tuple[Program, memoryview]:
    """The program and its binaries. PlanError, naming `where`, for anything that does not fit together."""
    hint = "Compile the plan again with this version of mixplan."
    size = int.from_bytes(data[8:16], "little")
    if data[:8] != _MAGIC:
        raise PlanError(f"{where} is not a file of GPU kernels of this version.", hint=hint)
    if 16 + size > len(data):
        raise PlanError(f"{where} is not a file of GPU kernels: it is cut short, to {len(data)} bytes.", hint=hint)
    try:
        program = msgspec.json.decode(data[16 : 16 + size], type=Program)
    except msgspec.MsgspecError as error:
        raise PlanError(f"{where} is malformed: {error}.", hint=hint) from error
    binaries = memoryview(data)[16 + size :]
    problem = _problem(program, len(binaries))
    if problem:
        raise PlanError(f"{where} is malformed: {problem}.", hint=hint)
    return program, binaries


def _problem(program: Program, nbytes: int) -> str:
    if program.format != FORMAT:
        return f"its format is {program.format}, not {FORMAT}"
    for kernel in program.kernels:
        if kernel.offset < 0 or kernel.nbytes < 0 or kernel.offset + kernel.nbytes > nbytes:
            return f"the binary of {kernel.name} lies outside the file"
    for launch in program.launches:
        if not 0 <= launch.kernel < len(program.kernels):
            return f"a launch names kernel {launch.kernel} of {len(program.kernels)}"
        if len(launch.grid) > 3 or any(not forms or any(form.div < 1 for form in forms) for forms in launch.grid):
            return "a grid is not one"
        if len(launch.arguments) != len(program.kernels[launch.kernel].types):
            return f"a launch of {program.kernels[launch.kernel].name} has {len(launch.arguments)} arguments"
        if any(a.kind == "arena" and not 0 <= a.offset < program.arena for a in launch.arguments):
            return "an argument lies outside the arena"
    if any(not 0 <= offset < max(program.arena, 1) for offset in program.values.values()):
        return "a value lies outside the arena"
    return ""
