"""Compile a checkpoint, load the plan, stream an answer.

    python examples/quickstart.py [MODEL] [PLAN]

MODEL is a Hugging Face directory or a GGUF file; without it, the sample model that `make demo` installs.
"""

import sys
from pathlib import Path

import mixplan


def main() -> None:
    from mixplan.compiler.sample_model import sample_model_path

    source = Path(sys.argv[1]) if len(sys.argv) > 1 else sample_model_path()
    plan = Path(sys.argv[2] if len(sys.argv) > 2 else "quickstart.plan")
    if not plan.exists():
        report = mixplan.compile(source, output=plan, scheme="W4A8")
        print(f"{report.effective_bits:.2f} bits per weight, {report.plan_bytes / 1e6:.0f} MB")

    with mixplan.runtime.load(plan) as model:
        for region in model.placement:
            print(f"region {region.region} runs on {region.device} ({region.isa})")
        for chunk in model.generate("The sky is blue because", max_tokens=24):
            print(chunk.text, end="", flush=True)
        print()


if __name__ == "__main__":
    main()
