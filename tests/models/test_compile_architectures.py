"""Every decoder of the list, from a random tiny checkpoint to logits: the plan against torch, ragged lengths, in pieces and by tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from mixplan.compiler.frontends.tiny import tiny_model
from mixplan.compiler.pipeline import compile as compile_plan
from mixplan.runtime import load
from mixplan.runtime.devices.cpu_info import runnable_levels
from mixplan.runtime.model import Model
from mixplan.runtime.plan import Sym

_LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
_LONG = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0 + 0.1 * i for i in range(8)],
    "long_factor": [2.0 + 0.3 * i for i in range(8)],
    "original_max_position_embeddings": 32,
}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    **{
        name: (name, {})
        for name in (
            "llama qwen2 qwen3 phi3 mistral gemma2 gemma3_text gpt2 gpt_neox olmo2 granite stablelm starcoder2 cohere glm4 mixtral "
            "qwen2_moe deepseek_v3 deepseek_v2 gpt_oss falcon bloom"
        ).split()
    },
    "llama-3 rope": ("llama", {"rope_parameters": _LLAMA3}),
    "phi3 long rope": ("phi3", {"rope_parameters": _LONG, "original_max_position_embeddings": 32}),
    "llama tied": ("llama", {"tie_word_embeddings": True}),
}
# Largest difference of any logit, relative to the largest logit: f32 sums of some hundred terms in another order, through two layers.
TOLERANCE = 2e-4
LENGTHS = (1, 7, 65)


def _logits(model: Model, ids: np.ndarray, pieces: int, sequence: int) -> np.ndarray:
    """All logits of one sequence, run in pieces of so many tokens."""
    out = []
    for start in range(0, len(ids), pieces):
        chunk = ids[start : start + pieces]
        out.append(model.step(chunk, np.arange(start, start + len(chunk)), np.full(len(chunk), sequence), "all"))
    model.free(sequence)
    return np.concatenate(out)


def _ragged(model: Model, prompts: list[np.ndarray]) -> list[np.ndarray]:
    """All prompts in one step."""
    ids = np.concatenate(prompts)
    places = np.concatenate([np.arange(len(p)) for p in prompts])
    sequences = np.concatenate([np.full(len(p), number) for number, p in enumerate(prompts)])
    rows = model.step(ids, places, sequences, "all")
    for number in range(len(prompts)):
        model.free(number)
    return np.split(rows, np.cumsum([len(p) for p in prompts])[:-1])


def _exact(module: Any, ids: np.ndarray, pieces: int) -> np.ndarray:
    """transformers' logits of one sequence, run in pieces of so many tokens."""
    from transformers import DynamicCache

    out = []
    kept = {"cache": DynamicCache(), "use_cache": True} if pieces < len(ids) else {"use_cache": False}
    for start in range(0, len(ids), pieces):
        chunk = torch.from_numpy(ids[start : start + pieces])[None]
        with torch.no_grad():
            out.append(module(input_ids=chunk, **kept).logits[0].numpy())
    return np.concatenate(out)


def _check(model: Model, module: Any, *, pieces_matter: bool = False) -> None:
    """pieces_matter: the model itself gives other logits in pieces than in one (long rope looks at the length so far)."""
    prompts = [np.random.default_rng(n).integers(3, 200, n) for n in LENGTHS]
    wanted = [_exact(module, p, len(p)) for p in prompts]
    for prompt, want in zip(prompts, wanted, strict=True):
        for pieces in (len(prompt), 24, 1):
            got = _logits(model, prompt, pieces, 100 + pieces)
            expected = _exact(module, prompt, pieces) if pieces_matter else want
            assert np.abs(got - expected).max() <= TOLERANCE * np.abs(want).max(), f"{len(prompt)} tokens in pieces of {pieces}"
    for got, want in zip(_ragged(model, prompts), wanted, strict=True):
        assert np.abs(got - want).max() <= TOLERANCE * np.abs(want).max(), "in one ragged step"


def _checkpoint(case: str, folder: Path) -> Any:
    name, options = CASES[case]
    module = tiny_model(name, **options)
    module.save_pretrained(folder)
    return module


@pytest.mark.parametrize("case", CASES)
def test_reference_matches_torch(case: str, tmp_path: Path) -> None:
    module = _checkpoint(case, tmp_path / "model")
    compile_plan(tmp_path / "model", output=tmp_path / "out.plan", scheme="FP32", targets=("reference",))
    with load(tmp_path / "out.plan") as model:
        _check(model, module, pieces_matter="long rope" in case)
        assert model.plan.values[model.plan.outputs[0]].shape == (1, Sym("R"), 256)


@pytest.mark.parametrize(
    "case", ["llama", "gemma2", "gpt2", "gpt_neox", "cohere", "phi3 long rope", "qwen2_moe", "deepseek_v3", "gpt_oss", "bloom"]
)
def test_cpu_matches_torch(case: str, tmp_path: Path) -> None:
    module = _checkpoint(case, tmp_path / "model")
    report = compile_plan(tmp_path / "model", output=tmp_path / "out.plan", scheme="FP32", isa=("native",))
    assert [region.device for region in report.regions] == ["cpu"], report.refused
    with load(tmp_path / "out.plan", device="cpu") as model:
        _check(model, module, pieces_matter="long rope" in case)


UNIFORM = ["BF16", "W8A16", "W8A8", "W4A16", "W4A8", "W4A16:g64,asym", "W4A8:g32,asym", "W8A8:g32", "FP8"]
OTHER = ["W6A8:g64,s32", "W5A16:min", "W5A8:nl,s8", "W4A8:nl,s8", "W3A16:nl", "W2A8:g64,asym,s8", "W8A16:g64,e4m3"]


@pytest.mark.parametrize("scheme", [*UNIFORM, *OTHER])
@pytest.mark.parametrize("name", ["llama", "qwen2_moe"])
def test_cpu_matches_the_reference_in_every_scheme(scheme: str, name: str, tmp_path: Path) -> None:
    module = tiny_model(name, hidden_size=128, num_hidden_layers=1)
    module.save_pretrained(tmp_path / "model")
    best, *others = runnable_levels()
    plain = next(level for level in (best, *others) if not level.endswith(("bf16", "amx")))
    compile_plan(tmp_path / "model", output=tmp_path / "out.plan", scheme=scheme, isa=tuple({plain, best}))
    ids = np.random.default_rng(0).integers(3, 200, 33)
    made = {}
    for device, isa in (("cpu", plain), ("cpu", best), ("reference", None)):
        with load(tmp_path / "out.plan", device=device, isa=isa) as model:
            made[isa or device] = _logits(model, ids, 16, 0)
    largest = np.abs(made["reference"]).max()
    # An activation near the middle of two codes may be rounded either way: 1/127 of its group's largest in int8, in few elements.
    rounds = "A8" in scheme or scheme == "FP8"
    limit = 0.02 if rounds else 1e-3
    assert np.abs(made[plain] - made["reference"]).max() <= limit * largest
    # Levels with bf16 units round what prompts multiply to bf16, 2^-9 of each factor (see numbers.md in docs). Where experts are routed,
    # a token may then change its expert: there the bound is on the middle of all differences, not on the largest.
    apart = np.abs(made[best] - made["reference"])
    # A step of e4m3 at a row's largest is 32/448.
    coarse = 2 if scheme == "FP8" else 1
    assert np.median(apart) <= 5e-3 * coarse * largest
    if name == "llama":
        assert apart.max() <= (0.04 * coarse if rounds else 0.015) * largest
    with torch.no_grad():
        exact = module(input_ids=torch.from_numpy(ids)[None], use_cache=False).logits[0].numpy()
    # Random weights are the worst case of 4 bits, with 8% of noise in each layer; where experts are routed, a token may change its expert.
    noise = np.square(made["reference"] - exact).mean() / np.square(exact).mean()
    assert noise < {"BF": 1e-2, "FP": 3e-2, "W8": 3e-2, "W6": 0.05, "W5": 0.15, "W4": 0.3, "W3": 0.6, "W2": 1.5}[scheme[:2]]
