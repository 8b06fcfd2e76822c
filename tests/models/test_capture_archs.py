"""Captured graphs of tiny models compute what the models compute: in one piece, in chunks, token by token, and ragged."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from mixplan.compiler.capture import capture_decoder  # noqa: E402
from mixplan.compiler.frontends.tiny import tiny_model  # noqa: E402
from mixplan.compiler.replay import Replay, load_parameters  # noqa: E402
from mixplan.compiler.weights.memory import ModuleWeights  # noqa: E402

TYPES = [
    "llama", "qwen2", "qwen3", "phi3", "mistral", "gemma2", "gemma3_text", "gpt2", "gpt_neox", "olmo2", "granite", "stablelm", "starcoder2",
    "cohere", "glm4", "mixtral", "qwen2_moe", "deepseek_v3", "deepseek_v2", "gpt_oss", "falcon", "bloom", "mpt", "gpt_neo", "opt",
    "roberta", "bart",
]  # fmt: skip
PROMPT = 41
OTHER = [9, 8, 7]
# Relative to the largest logit; both sides are torch in float32, only the order of sums differs.
LIMIT = 1e-5


@pytest.fixture(autouse=True)
def one_thread() -> Any:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize("model_type", TYPES)
def test_steps_equal_the_model(model_type: str) -> None:
    model = tiny_model(model_type)
    captured = capture_decoder(model)
    assert captured.layers == 2
    load_parameters(captured.graph, ModuleWeights(model))
    prompt = torch.randint(3, 200, (PROMPT,), generator=torch.Generator().manual_seed(1)).tolist()
    positions = list(range(PROMPT))
    with torch.no_grad():
        want, want_other = (model(torch.tensor([ids]), use_cache=False).logits[0] for ids in (prompt, OTHER))
    limit = LIMIT * float(want.abs().max())

    def close(got: Any, expected: Any) -> bool:
        return float((got - expected).abs().max()) < limit

    assert close(Replay(captured.graph).step(prompt, positions, [0] * PROMPT), want), "in one piece"
    assert close(Replay(captured.graph).step(prompt, positions, [0] * PROMPT, [40, 3]), want[[40, 3]]), "some rows"
    run = Replay(captured.graph)
    parts = [run.step(prompt[a:b], positions[a:b], [0] * (b - a)) for a, b in ((0, 20), (20, 21), (21, 38))]
    parts += [run.step([prompt[p]], [p], [0]) for p in range(38, 41)]
    assert close(torch.cat(parts), want), "in chunks, then token by token"
    run = Replay(captured.graph)
    run.step(prompt[:30], positions[:30], [5] * 30)
    ragged = run.step([*OTHER, *prompt[30:]], [0, 1, 2, *positions[30:]], [2] * 3 + [5] * 11)
    assert close(ragged, torch.cat([want_other, want[30:]])), "two sequences in one step"
