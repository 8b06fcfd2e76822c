"""Rotary embeddings of every scaling type, those that depend on the sequence's length included."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from mixplan.compiler.capture import capture_decoder  # noqa: E402
from mixplan.compiler.frontends.tiny import tiny_model  # noqa: E402
from mixplan.compiler.replay import Replay, load_parameters  # noqa: E402
from mixplan.compiler.weights.memory import ModuleWeights  # noqa: E402

LONG = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0 + 0.1 * i for i in range(8)],
    "long_factor": [2.0 + 0.5 * i for i in range(8)],
    "original_max_position_embeddings": 32,
}
SCALINGS: list[tuple[str, str, dict[str, Any], int]] = [
    ("llama", "llama3", {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 32}, 512),
    ("llama", "linear", {"factor": 4.0}, 512),
    ("llama", "yarn", {"factor": 4.0, "original_max_position_embeddings": 128}, 512),
    ("llama", "dynamic", {"factor": 4.0}, 32),
    ("phi3", "longrope", LONG, 128),
]


def build(model_type: str, rope: str, parameters: dict[str, Any], length: int) -> tuple[Any, Any]:
    """The model, and its captured graph with weights."""
    rope_parameters = {"rope_theta": 10000.0, **parameters, "rope_type": rope}
    extra = {"original_max_position_embeddings": 32} if rope == "longrope" else {}
    model = tiny_model(model_type, rope_parameters=rope_parameters, max_position_embeddings=length, **extra)
    graph = capture_decoder(model).graph
    load_parameters(graph, ModuleWeights(model))
    return model, graph


@pytest.mark.parametrize(("model_type", "rope", "parameters", "length"), SCALINGS, ids=[case[1] for case in SCALINGS])
@pytest.mark.parametrize("tokens", [20, 50])
def test_scaled_rope_in_one_piece(model_type: str, rope: str, parameters: dict[str, Any], length: int, tokens: int) -> None:
    model, graph = build(model_type, rope, parameters, length)
    ids = torch.randint(3, 200, (1, tokens), generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        want = model(ids, use_cache=False).logits[0]
    got = Replay(graph).step(ids[0].tolist(), list(range(tokens)), [0] * tokens)
    assert float((got - want).abs().max()) < 1e-5 * float(want.abs().max())


@pytest.mark.parametrize("case", [3, 4], ids=["dynamic", "longrope"])
def test_each_sequence_chooses_by_its_own_length(case: int) -> None:
    """A short and a long sequence in one step, and a sequence that grows past the limit: as transformers does with a cache."""
    model, graph = build(*SCALINGS[case])
    ids = torch.randint(3, 200, (1, 44), generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        long = model(ids, use_cache=False).logits[0]
        short = model(ids[:, :7], use_cache=False).logits[0]
        output = model(ids[:, :30], use_cache=True)
        cache = getattr(output, "cache", None) or output.past_key_values
        name = "cache" if hasattr(output, "cache") else "past_key_values"
        late = model(ids[:, 30:], use_cache=True, position_ids=torch.arange(30, 44)[None], **{name: cache}).logits[0]
    tokens = ids[0].tolist()
    limit = 1e-5 * float(long.abs().max())
    got = Replay(graph).step([*tokens, *tokens[:7]], [*range(44), *range(7)], [0] * 44 + [1] * 7)
    assert float((got - torch.cat([long, short])).abs().max()) < limit
    run = Replay(graph)
    run.step(tokens[:30], list(range(30)), [0] * 30)
    grown = run.step(tokens[30:], list(range(30, 44)), [0] * 14)
    assert float((grown - late).abs().max()) < limit
    assert float((grown - long[30:]).abs().max()) > limit, "the early keys keep their frequencies"
