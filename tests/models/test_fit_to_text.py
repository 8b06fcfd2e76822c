"""Named schemes fitted to a text: `--quantizer` and `--scaling`, through compile and the runtime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import mixplan
from mixplan.compiler.frontends.tiny import randomize, tiny_model
from mixplan.runtime import load
from mixplan.runtime.errors import OptionError


def test_a_scaled_plan(tmp_path: Path) -> None:
    """Compiled and run: 4 bits come about as near to the original as without scaling; the plan says what was done."""
    model = tiny_model("llama")
    randomize(model)
    ids = torch.randint(3, 250, (2048,), generator=torch.Generator().manual_seed(0)).tolist()
    logits = {}
    for scaling in ("none", "awq"):
        plan = tmp_path / f"{scaling}.plan"
        report = mixplan.compile(
            model, output=plan, scheme="W4A16:g32", text=ids, scaling=scaling, targets=("reference",), kv_dtype="f32", quantizer="clip"
        )
        assert (report.matches.get("scale_inputs", 0) > 0) == (scaling != "none")
        with load(plan, device="reference") as loaded:
            logits[scaling] = loaded.step(ids[:32], list(range(32)), [0] * 32, "all")
            facts = loaded.plan.provenance.options
            assert facts["quantizer"] == "clip" and facts.get("scaling", "none") == scaling and "2048 token ids" in facts["text"]
    with torch.no_grad():
        expected = model(torch.tensor([ids[:32]])).logits[0].numpy()
    errors = {scaling: float(np.square(found - expected).mean()) for scaling, found in logits.items()}
    assert 0 < errors["awq"] < 1.5 * errors["none"]


def test_each_quantizer_is_a_step_further(tmp_path: Path) -> None:
    model = tiny_model("llama", vocab_size=64)
    randomize(model)
    ids = torch.randint(3, 60, (4096,), generator=torch.Generator().manual_seed(0)).tolist()
    with torch.no_grad():
        expected = model(torch.tensor([ids[:256]])).logits[0].numpy()
    errors = []
    for quantizer in ("round", "clip", "gptq"):
        plan = tmp_path / f"{quantizer}.plan"
        mixplan.compile(
            model, output=plan, scheme="W3A16:g32", text=ids, quantizer=quantizer, scaling="none", targets=("reference",), kv_dtype="f32"
        )
        with load(plan, device="reference") as loaded:
            found = loaded.step(ids[:256], list(range(256)), [0] * 256, "all")
        errors.append(float(np.square(found - expected).mean()))
    assert errors[1] < errors[0] and errors[2] < 0.9 * errors[1], errors


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"scheme": "W4A16", "quantizer": "gptq"}, "quantizer gptq needs a text"),
        ({"scheme": "W4A16", "scaling": "awq"}, "there is none"),
        ({"bits": 4.5, "scaling": "awq"}, "there is none"),
        ({"scheme": "W4A16", "quantizer": "best"}, "allowed are round, clip, gptq"),
        ({"scheme": "W4A16", "scaling": "more", "text": [1] * 64}, "allowed are none, awq, smooth"),
        ({"scheme": "W4A16", "text": [1] * 3}, "at least 16"),
        ({"scheme": "W4A16", "text": "none.txt"}, "text none.txt is not a file"),
        ({"bits": 4.5, "text": [1] * 64, "quantizer": "clip"}, "quantizer clip was given with a promise"),
    ],
)
def test_options_that_do_not_go_together(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        mixplan.compile(tiny_model("llama"), output=tmp_path / "a.plan", targets=("reference",), **options)
