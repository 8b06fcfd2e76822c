"""What a region becomes on a GPU, to be read: its launches in order. It stands in the plan's `sources/`; nothing reads it again."""

from __future__ import annotations

from mixplan.runtime.devices.gpu_program import Launch, Program

__all__ = ["listing"]


def listing(program: Program) -> str:
    """One line for each launch, with the lines of a chain below it."""
    out = [f"# launches for {program.arch}, in order; kernels stand in mixplan/targets/gpu/kernels\n"]
    for launch in program.launches:
        kernel = program.kernels[launch.kernel]
        out.append(f"{kernel.name}{_when(launch)}\n")
        text = kernel.constants.get("CHAIN")
        if isinstance(text, str):
            out += [f"    {line}\n" for line in text.splitlines()]
    return "".join(out)


def _when(launch: Launch) -> str:
    told = [f"in {launch.mode} steps"] if launch.mode else []
    if launch.rows is not None:
        told.append(f"from {launch.least} rows on" if launch.most >= 1 << 30 else f"from {launch.least} to {launch.most} rows")
    return f" ({', '.join(told)})" if told else ""
