"""The real model: the FP32 plan of SmolLM2-135M-Instruct says, token for token, what transformers says in fp32."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mixplan.runtime import generate_batch, load
from mixplan.runtime.model import Model

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

NEW_TOKENS = 128
PROMPTS: dict[str, Any] = {
    "chat": [{"role": "user", "content": "Why is the sky blue? Answer in two sentences."}],
    "chat with system": [
        {"role": "system", "content": "You are a pirate."},
        {"role": "user", "content": "Where is the treasure?"},
    ],
    "chat of several turns": [
        {"role": "user", "content": "Name a fruit."},
        {"role": "assistant", "content": "Apple."},
        {"role": "user", "content": "Another one, in French?"},
    ],
    "prose": "Once upon a time, in a village by the sea, there lived",
    "code": "def fibonacci(n: int) -> int:\n    ",
    "numbers": "1234 + 5678 = 6912. 31415 - 9265 =",
    "german": "Die Hauptstadt von Österreich ist",
    "chinese": "北京是中国的首都。上海是",
    "emoji": "🎉🎂 Happy birthday! 🥳 Today we",
    "one token": "The",
}


@pytest.fixture(scope="module")
def gguf() -> Path:
    from mixplan.compiler.sample_model import sample_model_path

    return sample_model_path()


@pytest.fixture(scope="module")
def plan(gguf: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    from mixplan.compiler.pipeline import compile as compile_plan

    out = tmp_path_factory.mktemp("smollm2") / "fp32.plan"
    report = compile_plan(gguf, output=out, scheme="FP32", isa=("native",))
    assert report.refused == [], "every node of a plain decoder runs natively"
    return out


@pytest.fixture(scope="module")
def model(plan: Path) -> Iterator[Model]:
    with load(plan) as loaded:
        assert [placement.device for placement in loaded.placement] == ["cpu"]
        yield loaded


@pytest.fixture(scope="module")
def reference(gguf: Path) -> Any:
    with _quiet():
        return transformers.AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32).eval()


def _quiet() -> Any:
    import warnings

    return warnings.catch_warnings(action="ignore")


def _prompt_ids(model: Model, kind: str) -> list[int]:
    prompt = PROMPTS[kind]
    return model.tokenizer.encode_chat(prompt) if isinstance(prompt, list) else model.tokenizer.encode(prompt)


@pytest.fixture(scope="module")
def answers(model: Model) -> dict[str, list[int]]:
    """Greedy answers of up to 128 tokens to all prompts, generated together in ragged steps."""
    out: dict[str, list[int]] = {kind: [] for kind in PROMPTS}
    kinds = list(PROMPTS)
    prompts = [_prompt_ids(model, kind) for kind in kinds]
    for chunk in generate_batch(model, prompts, max_tokens=NEW_TOKENS, temperature=0.0):
        out[kinds[chunk.index]].append(chunk.token_id)
    return out


@pytest.mark.parametrize("kind", PROMPTS)
def test_each_greedy_token_is_transformers_own(kind: str, model: Model, answers: dict[str, list[int]], reference: Any) -> None:
    """One forward pass of transformers over prompt and answer: each token of the answer must be the one that it would have chosen there.

    By induction that is what its greedy search gives, at a fiftieth of the time.
    """
    ids, ours = _prompt_ids(model, kind), answers[kind]
    assert len(ours) == NEW_TOKENS or ours[-1] in model.plan.model.eos_token_ids
    with torch.no_grad(), _quiet():
        logits = reference(torch.tensor([ids + ours])).logits[0]
    assert logits[len(ids) - 1 : -1].argmax(-1).tolist() == ours


def test_greedy_search_is_transformers_own(model: Model, reference: Any) -> None:
    """The same, by transformers' own token-by-token search, for one prompt."""
    ids = _prompt_ids(model, "chat")
    ours = [chunk.token_id for chunk in model.generate(ids, max_tokens=24, temperature=0.0)]
    tokens, eos = torch.tensor([ids]), list(model.plan.model.eos_token_ids)
    settings = {"max_new_tokens": 24, "do_sample": False, "eos_token_id": eos, "pad_token_id": eos[0]}
    with torch.no_grad(), _quiet():
        out = reference.generate(tokens, attention_mask=torch.ones_like(tokens), **settings)
    assert ours == out[0, len(ids) :].tolist()
