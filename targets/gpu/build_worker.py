"""Builds kernels in a process of its own, since Triton decides on its import whether it compiles or interprets, for the whole process.

`python -m mixplan.targets.gpu.build_worker FOLDER` reads [[architecture, request], ...] as JSON, and writes FOLDER/i.json and FOLDER/i.bin
for the i-th, or FOLDER/i.error with the compiler's message.
"""

from __future__ import annotations

import importlib
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

__all__ = ["main"]


def _target(arch: str) -> Any:
    from triton.backends.compiler import GPUTarget

    return GPUTarget("cuda", int(arch.removeprefix("sm_")), 32) if arch.startswith("sm_") else GPUTarget("hip", arch, 64)


def _source(request: dict[str, Any]) -> Any:
    from triton.compiler import ASTSource

    module, _, function = request["kernel"].partition(":")
    kernel = getattr(importlib.import_module(f"mixplan.targets.gpu.kernels.{module}"), function or module)
    constants: dict[str, Any] = dict(request["constants"])
    names = [name for name in kernel.arg_names if name not in constants]
    if len(names) != len(request["types"]):
        raise TypeError(f"{request['kernel']} takes {names}; the request has types {request['types']}")
    types = dict(zip(names, request["types"], strict=True))
    constants |= {name: None for name, kind in types.items() if not kind}
    # Buffers start at multiples of 16 bytes, so that loads can be wide; a part of one may not.
    aligned = [i for i, name in enumerate(kernel.arg_names) if types.get(name, "").startswith("*") and not types[name].endswith("!")]
    signature = {name: types.get(name, "").removesuffix("!") or "constexpr" for name in kernel.arg_names}
    return ASTSource(
        fn=kernel,
        signature=signature,
        constexprs={(kernel.arg_names.index(name),): value for name, value in constants.items()},
        attrs={(i,): [["tt.divisibility", 16]] for i in aligned},
    )


def _nvidia_resources(cubin: Path) -> tuple[int, int]:
    """Registers and bytes of stack of a thread, as the compiler's own tool tells them. No kernel has arrays, so a stack is spills."""
    from triton import knobs

    told = subprocess.run([knobs.nvidia.cuobjdump.path, "-res-usage", str(cubin)], capture_output=True, text=True, check=True).stdout
    found = re.search(r"REG:(\d+) STACK:(\d+) SHARED:\d+ LOCAL:(\d+)", told)
    if found is None:
        raise ValueError(f"cuobjdump told nothing of registers: {told!r}")
    return int(found[1]), int(found[2]) + int(found[3])


def _check_parameters(ptx: str, given: int) -> None:
    """The launcher passes the arguments and two pointers to scratch: see runtime/devices/gpu_native.py."""
    entry = ptx[ptx.index(".entry") :]
    found = len(re.findall(r"^\s*\.param .*_param_\d+", entry[: entry.index(")")], re.M))
    if found != given + 2:
        raise ValueError(f"the kernel has {found} parameters, not {given} and two for scratch: another version of triton is needed")


def _amd_resources(assembly: str) -> tuple[int, int]:
    """Vector registers, and bytes of scratch of a thread, from the notes that go into the hsaco."""
    values = {
        name: int(value) for name, value in re.findall(r"\.(vgpr_count|vgpr_spill_count|private_segment_fixed_size): +(\d+)", assembly)
    }
    return values["vgpr_count"], values["private_segment_fixed_size"] + 4 * values["vgpr_spill_count"]


def _build(arch: str, request: dict[str, Any], stem: Path) -> None:
    import triton

    nvidia = arch.startswith("sm_")
    # Contraction of a * b + c is pinned: its default changes between versions of Triton.
    options = {"num_warps": request["warps"], "num_stages": request["stages"], "enable_fp_fusion": True}
    made: Any = triton.compile(_source(request), target=_target(arch), options=options)
    binary = stem.with_suffix(".bin")
    binary.write_bytes(made.asm["cubin" if nvidia else "hsaco"])
    registers, spilled = _nvidia_resources(binary) if nvidia else _amd_resources(made.asm["amdgcn"])
    if nvidia:
        _check_parameters(made.asm["ptx"], sum(bool(kind) for kind in request["types"]))
    if any(getattr(made.metadata, f"{kind}_scratch_size", 0) for kind in ("global", "profile")):
        raise ValueError("the kernel asks for scratch memory, which no launcher gives")
    facts = {
        "entry": made.metadata.name,
        "shared": made.metadata.shared,
        "threads": made.metadata.num_warps * made.metadata.warp_size,
        "registers": registers,
        "spilled": spilled,
    }
    stem.with_suffix(".json").write_text(json.dumps(facts))


def _told(error: BaseException) -> str:
    """An error in a function that a kernel calls stands in the causes."""
    causes = [error]
    while causes[-1].__cause__ is not None:
        causes.append(causes[-1].__cause__)
    return " <- ".join(f"{type(cause).__name__}: {cause}" for cause in reversed(causes))[:4000]


def main(folder: Path) -> None:
    """See the module."""
    for i, (arch, request) in enumerate(json.load(sys.stdin)):
        stem = folder / str(i)
        try:
            _build(arch, request, stem)
        except Exception as error:
            stem.with_suffix(".error").write_text(_told(error))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
