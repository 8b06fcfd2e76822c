"""Which of transformers' causal-LM types can mixplan capture, and do the captures compute what torch does?

At tiny random configs, per type: capture, then compare the graph to the model's own logits, for one prompt in one piece, in chunks, token by
token, and ragged beside another prompt. Prints one JSON line per type.   usage: export_census.py [TYPE ...] > census.jsonl
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import traceback
import warnings

os.environ.setdefault("OMP_NUM_THREADS", "1")
warnings.filterwarnings("ignore")

import torch  # noqa: E402
import transformers  # noqa: E402
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES  # noqa: E402

from mixplan.compiler.capture import capture_decoder  # noqa: E402
from mixplan.compiler.frontends.tiny import tiny_model  # noqa: E402
from mixplan.compiler.replay import Replay, load_parameters  # noqa: E402
from mixplan.compiler.weights.memory import ModuleWeights  # noqa: E402

LIMIT = 2e-4
SECONDS = 60


def census(model_type: str) -> dict[str, object]:
    """One type's row."""
    row: dict[str, object] = {"model": model_type}
    model = tiny_model(model_type)
    row["parameters"] = sum(p.numel() for p in model.parameters())
    began = time.time()
    captured = capture_decoder(model)
    row["capture_s"] = round(time.time() - began, 2)
    row["attention"] = captured.layers
    row["nodes"] = len(captured.graph.graph.nodes)
    row["ops"] = sorted({str(n.target) for n in captured.graph.graph.nodes if n.op == "call_function"})
    load_parameters(captured.graph, ModuleWeights(model))
    generator = torch.Generator().manual_seed(1)
    prompt, other = (torch.randint(3, 200, (n,), generator=generator).tolist() for n in (65, 7))
    with torch.no_grad():
        want, want_other = (model(torch.tensor([ids]), use_cache=False).logits[0].float() for ids in (prompt, other))
    scale = float(want.abs().max())
    row["largest_logit"] = round(scale, 3)
    positions = list(range(65))

    def compare(name: str, got: torch.Tensor, expected: torch.Tensor) -> None:
        row[name] = float(f"{float((got - expected).abs().max()) / scale:.2g}")

    compare("whole", Replay(captured.graph).step(prompt, positions, [0] * 65), want)
    run = Replay(captured.graph)
    parts = [run.step(prompt[a:b], positions[a:b], [0] * (b - a)) for a, b in ((0, 7), (7, 40), (40, 65))]
    compare("chunks", torch.cat(parts), want)
    run = Replay(captured.graph)
    compare("single", torch.cat([run.step([t], [p], [0]) for t, p in zip(prompt, positions, strict=True)]), want)
    run = Replay(captured.graph)
    run.step(prompt[:40], positions[:40], [0] * 40)
    got = run.step(prompt[40:] + other, positions[40:] + positions[:7], [0] * 25 + [3] * 7)
    compare("ragged", got, torch.cat([want[40:], want_other]))
    row["rows"] = bool(torch.allclose(Replay(captured.graph).step(prompt, positions, [0] * 65, [64, 3]), want[[64, 3]], atol=LIMIT * scale))
    return row


def main(names: list[str]) -> None:
    """Print a row per type."""

    def late(*_: object) -> None:
        raise TimeoutError(f"{SECONDS} s")

    signal.signal(signal.SIGALRM, late)
    for name in names or sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES):
        signal.alarm(SECONDS)
        try:
            row = census(name)
            row["ok"] = all(float(str(row[k])) < LIMIT for k in ("whole", "chunks", "single", "ragged")) and bool(row["rows"])
        except Exception as error:
            row = {"model": name, "ok": False, "error": f"{type(error).__name__}: {error}"[:400]}
            if len(names) == 1:
                traceback.print_exc()
        signal.alarm(0)
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    main(sys.argv[1:])
