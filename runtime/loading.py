"""`mixplan.runtime.load`: starts reading the weights, then imports the rest of the runtime.

Hashing 76 MB takes as long as importing numpy and preparing the plan, and a second core can do it meanwhile.
"""

from __future__ import annotations

import os
from time import perf_counter
from typing import TYPE_CHECKING, Literal, TypeAlias

from mixplan.runtime.errors import PlanError
from mixplan.runtime.plan_files import PlanDirectory, PlanFile
from mixplan.runtime.quiet_numpy import import_numpy
from mixplan.runtime.reading import available_memory

if TYPE_CHECKING:
    from mixplan.runtime.model import Model
    from mixplan.runtime.plan_io import Verify

__all__ = ["VERIFY", "WEIGHTS", "Weights", "load"]

Weights: TypeAlias = Literal["auto", "copied", "mapped"]
WEIGHTS = ("auto", "copied", "mapped")
VERIFY = ("full", "manifest")


def load(
    path: str | os.PathLike[str],
    *,
    device: str = "auto",
    threads: int | None = None,
    trust: bool = False,
    max_sequences: int = 16,
    kv_tokens: int | None = None,
    max_step_tokens: int | None = None,
    isa: str | None = None,
    verify: Verify = "full",
    weights: Weights = "auto",
    profile: bool = False,
    strict: bool = False,
    allow_cpu_fallback: bool = False,
) -> Model:
    """Read, verify and load the plan at `path`.

    device: "auto" runs each region on the device that the plan names, and where that cannot be, on the CPU or the reference device, with a
    warning in the log `mixplan.runtime`; a name ("cpu", "reference", "null") wants all of it there. threads: default, the cores this
    process may use.
    trust: load the plan's own native code whoever made it (see trust.py). kv_tokens: tokens that the KV cache holds, over all sequences;
    default, the context length, as far as a quarter of the memory allows. max_step_tokens: at most the plan's own. isa: force an ISA level.
    verify: "manifest" does not hash the weights. weights: "copied" brings them into huge pages of this process, which makes steps faster;
    "mapped" leaves them in the file's own pages, which processes share and the system may drop; "auto" copies them where they take at most
    half of the memory that is available. profile: keep the time of every op, for `Model.profile`. strict: a kernel or a device that fails,
    and that another would replace, is an error, here and in steps. allow_cpu_fallback: let onnxruntime's CPU provider run what an NPU's
    provider does not, or all of it where that is not here.

    Raises PlanError for a plan that must not be run, UnsupportedError where `device` or `isa` cannot, FallbackError under `strict`,
    ProviderError where an NPU region's provider is not here, OptionError for values out of range.
    """
    started = perf_counter()
    ahead = _read_ahead(path, verify, weights)
    try:
        # Imported here, while the weights are being read.
        import_numpy()
        from mixplan.runtime.opening import open_model

        return open_model(
            path,
            ahead,
            device=device,
            threads=threads,
            trust=trust,
            max_sequences=max_sequences,
            kv_tokens=kv_tokens,
            max_step_tokens=max_step_tokens,
            isa=isa,
            verify=verify,
            weights=weights,
            profile=profile,
            strict=strict,
            allow_cpu_fallback=allow_cpu_fallback,
            started=started,
        )
    finally:
        # What the plan did not name.
        for file in ahead.values():
            file.close()


def _read_ahead(path: str | os.PathLike[str], verify: Verify, weights: Weights) -> dict[str, PlanFile]:
    """The safetensors files of the plan, opened and being read. What is wrong with them is told by those who open them in earnest."""
    files: dict[str, PlanFile] = {}
    if verify not in VERIFY or weights not in WEIGHTS:
        return files
    try:
        directory = PlanDirectory(path)
    except (PlanError, TypeError):
        return files
    try:
        for name in directory.names(".safetensors"):
            files[name] = directory.open(name, named_by="every plan")
        size = sum(file.size for file in files.values())
        copy = weights == "copied" or (weights == "auto" and size <= available_memory() // 2)
        for file in files.values():
            file.begin(copy=copy, digest=verify == "full")
    except PlanError:
        pass
    finally:
        directory.close()
    return files
