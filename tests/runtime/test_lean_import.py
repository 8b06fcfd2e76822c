"""The runtime loads and steps a plan where nothing but numpy, safetensors and msgspec can be imported."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

BLOCKED = (
    "torch triton onnx onnxruntime jinja2 transformers scipy tokenizers accelerate gguf rich click ziglang "
    "mixplan.compiler mixplan.passes mixplan.targets"
)
SCRIPT = f"""
import sys

class Block:
    def find_spec(self, name, path=None, target=None):
        for blocked in {BLOCKED.split()!r}:
            if name == blocked or name.startswith(blocked + "."):
                raise ModuleNotFoundError(f"blocked: {{name}}", name=name)

sys.meta_path.insert(0, Block())
import mixplan.runtime
assert "numpy" not in sys.modules and "msgspec" not in sys.modules, "importing the package must stay light"
model = mixplan.runtime.load(sys.argv[1])
logits = model.step([1, 2, 3], [0, 1, 2], [0, 0, 0])
assert logits.shape == (1, 37), logits.shape
try:
    model.tokenizer
except Exception as error:
    print("without text:", type(error).__name__)
else:
    raise SystemExit("the tokenizer came from nowhere")
print("ok")
"""


def test_runs_without_compile_time_packages(toy_plan: Path) -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT, str(toy_plan)], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("ok\n")


def test_public_names() -> None:
    import mixplan.runtime as runtime

    assert all(hasattr(runtime, name) for name in runtime.__all__)
    assert sorted(runtime.__all__, key=str.lower) == sorted([*runtime._HOMES, "errors"], key=str.lower)
