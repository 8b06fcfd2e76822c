"""Which of transformers' causal-LM types can mixplan capture, and do the captures compute what torch does?

At tiny random configs, per type: capture, then compare the graph to the model's own logits, for one prompt in one piece, in chunks, token
by token, and ragged beside another prompt. With --plan DEVICE (reference or cpu) the FP32 plan is compiled and compared instead of the
captured graph. Prints one JSON line per type.   usage: export_census.py [--plan DEVICE] [TYPE ...] > census.jsonl
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import tempfile
import time
import traceback
import warnings
from typing import Any

# Before the imports: torch reads the first when it is loaded, and transformers warns while it is.
os.environ.setdefault("OMP_NUM_THREADS", "1")
warnings.filterwarnings("ignore")

import numpy as np  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES  # noqa: E402

import mixplan.runtime  # noqa: E402
from mixplan.compiler.capture import capture_decoder  # noqa: E402
from mixplan.compiler.frontends.tiny import tiny_model  # noqa: E402
from mixplan.compiler.replay import Replay, load_parameters  # noqa: E402
from mixplan.compiler.weights.memory import ModuleWeights  # noqa: E402

LIMIT = 2e-4
SECONDS = 300
RUNS = ("whole", "chunks", "single", "ragged")


class GraphRunner:
    """The captured graph, run by torch."""

    def __init__(self, model: Any, row: dict[str, object]) -> None:
        captured = capture_decoder(model)
        row["attention"] = captured.layers
        row["nodes"] = len(captured.graph.graph.nodes)
        row["ops"] = sorted({str(n.target) for n in captured.graph.graph.nodes if n.op == "call_function"})
        load_parameters(captured.graph, ModuleWeights(model))
        self.graph = captured.graph
        self.new()

    def new(self) -> None:
        """Forget all sequences."""
        self.replay = Replay(self.graph)

    def step(self, tokens: list[int], positions: list[int], sequences: list[int], rows: list[int] | None = None) -> torch.Tensor:
        """Logits of `rows`, all by default."""
        return self.replay.step(tokens, positions, sequences, rows)


class PlanRunner:
    """The compiled FP32 plan, run by the runtime on `device`."""

    def __init__(self, model: Any, row: dict[str, object], device: str, folder: str) -> None:
        from mixplan.compiler.pipeline import compile as compile_plan

        report = compile_plan(model, output=f"{folder}/census.plan", scheme="FP32", targets=(device,))
        row["regions"] = [f"{region.device}:{region.nodes}" for region in report.regions]
        self.load = lambda: mixplan.runtime.load(f"{folder}/census.plan", device=device)
        self.plan = self.load()

    def new(self) -> None:
        """Forget all sequences."""
        self.plan.close()
        self.plan = self.load()

    def step(self, tokens: list[int], positions: list[int], sequences: list[int], rows: list[int] | None = None) -> torch.Tensor:
        """Logits of `rows`, all by default."""
        return torch.from_numpy(self.plan.step(tokens, positions, sequences, logits="all" if rows is None else np.array(rows)).copy())


def census(model_type: str, device: str | None, folder: str) -> dict[str, object]:
    """One type's row."""
    row: dict[str, object] = {"model": model_type}
    model = tiny_model(model_type)
    row["parameters"] = sum(p.numel() for p in model.parameters())
    began = time.time()
    run = PlanRunner(model, row, device, folder) if device else GraphRunner(model, row)
    row["seconds"] = round(time.time() - began, 2)
    generator = torch.Generator().manual_seed(1)
    prompt, other = (torch.randint(3, 200, (n,), generator=generator).tolist() for n in (65, 7))
    with torch.no_grad():
        want, want_other = (model(torch.tensor([ids]), use_cache=False).logits[0].float() for ids in (prompt, other))
    scale = float(want.abs().max())
    row["largest_logit"] = round(scale, 3)
    positions = list(range(65))

    def compare(name: str, got: torch.Tensor, expected: torch.Tensor) -> None:
        row[name] = float(f"{float((got - expected).abs().max()) / scale:.2g}")

    compare("whole", run.step(prompt, positions, [0] * 65), want)
    run.new()
    parts = [run.step(prompt[a:b], positions[a:b], [0] * (b - a)) for a, b in ((0, 7), (7, 40), (40, 65))]
    compare("chunks", torch.cat(parts), want)
    run.new()
    compare("single", torch.cat([run.step([t], [p], [0]) for t, p in zip(prompt, positions, strict=True)]), want)
    run.new()
    run.step(prompt[:40], positions[:40], [0] * 40)
    got = run.step(prompt[40:] + other, positions[40:] + positions[:7], [0] * 25 + [3] * 7)
    compare("ragged", got, torch.cat([want[40:], want_other]))
    run.new()
    compare("rows", run.step(prompt, positions, [0] * 65, [3, 64]), want[[3, 64]])
    row["ok"] = all(float(str(row[name])) < LIMIT for name in (*RUNS, "rows"))
    return row


def main() -> None:
    """Print a row per type."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--plan", choices=("reference", "cpu"))
    parser.add_argument("types", nargs="*")
    arguments = parser.parse_args()

    def late(*_: object) -> None:
        raise TimeoutError(f"{SECONDS} s")

    signal.signal(signal.SIGALRM, late)
    for name in arguments.types or sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES):
        signal.alarm(SECONDS * (4 if arguments.plan else 1))
        try:
            with tempfile.TemporaryDirectory() as folder:
                row = census(name, arguments.plan, folder)
        except Exception as error:  # a row for every type, whatever its model does
            row = {"model": name, "ok": False, "error": f"{type(error).__name__}: {error}"[:400]}
            if len(arguments.types) == 1:
                traceback.print_exc()
        signal.alarm(0)
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    main()
