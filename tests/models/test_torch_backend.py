"""`torch.compile(model, backend="mixplan")`: a plan's logits in eval mode, the module's own gradients in training."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from mixplan.compiler.frontends import open_checkpoint
from mixplan.compiler.frontends.tiny import tiny_model
from mixplan.compiler.importance import input_moments
from mixplan.compiler.pipeline import compile as compile_plan
from mixplan.compiler.torch_backend.backend import CACHE, mixplan_backend
from mixplan.compiler.torch_backend.options import parse_backend_options
from mixplan.runtime import load
from mixplan.runtime.errors import OptionError, UnsupportedError

_IDS = torch.tensor([[3, 17, 101, 42, 7, 9, 250, 33, 8, 12, 77]])


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    with warnings.catch_warnings():  # torch's own, while it captures
        warnings.simplefilter("ignore")
        yield
    torch._dynamo.reset()


def _compiled(model: nn.Module, **options: Any) -> Any:
    return torch.compile(model, backend=mixplan_backend, options=options)


def _logits(model: Any) -> np.ndarray:
    with torch.no_grad():
        out = model(_IDS, use_cache=False) if hasattr(model, "config") else model(_IDS)
    return (out.logits if hasattr(out, "logits") else out)[0].numpy()


def _plan(model: Any, folder: Path, scheme: str, *overrides: str) -> Path:
    model.save_pretrained(folder / "model")
    fixed: dict[str, Any] = {"targets": ("reference",), "max_step_tokens": 32, "kv_dtype": "f32"}
    compile_plan(folder / "model", output=folder / "a.plan", scheme=scheme, overrides=overrides, **fixed)
    return folder / "a.plan"


def _plan_logits(plan: Path) -> np.ndarray:
    ids = _IDS[0].tolist()
    with load(plan, device="reference") as model:
        return model.step(ids, list(range(len(ids))), [0] * len(ids), "all")


def _relative(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.abs(a - b).max() / np.abs(b).max())


@pytest.mark.parametrize(
    ("kind", "scheme", "overrides", "limit"),
    [
        ("llama", "W4A16:g32", ("re:down_proj=W8A16", "re:layers.1.self_attn=W3A16:g32,nl,s8"), 2e-5),
        # A few elements of rounded inputs fall to the other side, as sums in another order differ in their last bits.
        ("llama", "W4A8:g32", ("re:down_proj=W8A8", "re:layers.1.*o_proj=BF16"), 2e-2),
        ("qwen2", "W8A8", ("model.layers.0.mlp.down_proj=W4A8:g64,asym",), 5e-3),
    ],
)
def test_eval_gives_the_plans_logits(kind: str, scheme: str, overrides: tuple[str, ...], limit: float, tmp_path: Path) -> None:
    model = tiny_model(kind, tie_word_embeddings=kind == "qwen2")
    plan = _plan(model, tmp_path, scheme, *overrides)
    wanted, wide = _plan_logits(plan), _logits(model)
    moments = input_moments(open_checkpoint(tmp_path / "model").capture())
    by_rules = _logits(_compiled(model, scheme=scheme, overrides=list(overrides), inputs=moments))
    assert _relative(by_rules, wanted) < limit < _relative(wide, wanted) / 5
    torch._dynamo.reset()
    assert np.array_equal(_logits(_compiled(model, plan=plan, inputs=moments)), by_rules)
    torch._dynamo.reset()
    if "W4A16" in scheme:
        assert limit < _relative(_logits(_compiled(model, scheme=scheme, overrides=list(overrides))), wanted)


class _Small(nn.Module):
    """No dropout, so that nothing in it depends on `training`. An adapter of low rank beside the first layer."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(256, 32)
        self.first, self.head = nn.Linear(32, 64), nn.Linear(64, 256, bias=False)
        self.down, self.up = nn.Linear(32, 4, bias=False), nn.Linear(4, 64, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids)
        y: torch.Tensor = self.head(torch.relu(self.first(x) + self.up(self.down(x))))
        return y


def _gradients(module: Any, parameters: nn.Module) -> dict[str, torch.Tensor]:
    parameters.zero_grad()
    module(_IDS).square().mean().backward()
    return {name: p.grad.clone() for name, p in parameters.named_parameters() if p.grad is not None}


def test_training_keeps_the_wide_formats_and_eval_returns_to_the_narrow() -> None:
    torch.manual_seed(0)
    module = _Small()
    for parameter in (*module.embed.parameters(), *module.first.parameters(), *module.head.parameters()):
        parameter.requires_grad_(False)
    compiled = _compiled(module, scheme="W4A8:g32")
    module.eval()
    narrow = _logits(compiled)
    assert _relative(narrow, _logits(module)) > 1e-3
    module.train()
    wanted = _gradients(module, module)
    assert wanted.keys() == {"down.weight", "up.weight"}
    got = _gradients(compiled, module)
    assert got.keys() == wanted.keys() and all(torch.equal(got[name], wanted[name]) for name in wanted)
    with torch.no_grad():
        assert np.array_equal(compiled(_IDS)[0].numpy(), module(_IDS)[0].numpy())
    module.eval()
    assert np.array_equal(_logits(compiled), narrow)


def test_gradients_pass_straight_through_the_rounding_in_eval() -> None:
    torch.manual_seed(0)
    module = _Small().eval()
    got, wanted = _gradients(_compiled(module, scheme="W8A8"), module), _gradients(module, module)
    assert got.keys() == wanted.keys()
    for name in wanted:
        assert float((got[name] - wanted[name]).norm() / wanted[name].norm()) < 0.1


def test_a_weight_is_quantized_once_until_it_changes() -> None:
    torch.manual_seed(0)
    module = _Small().eval()
    compiled = _compiled(module, scheme="W4A16:g32")
    before = CACHE.quantized
    first = _logits(compiled)
    assert CACHE.quantized == before + 5
    assert np.array_equal(_logits(compiled), first) and CACHE.quantized == before + 5
    with torch.no_grad():
        module.up.weight.mul_(2)
    assert not np.array_equal(_logits(compiled), first) and CACHE.quantized == before + 6


def test_the_head_is_kept_wide_unless_it_is_named() -> None:
    torch.manual_seed(0)
    module = _Small().eval()
    with torch.no_grad():
        kept = _logits(_compiled(module, scheme="W4A16:g32", overrides=["re:first|down|up|embed=FP32"]))
        torch._dynamo.reset()
        narrow = _logits(_compiled(module, scheme="W4A16:g32", overrides=["re:first|down|up|embed=FP32", "head=W4A16:g32"]))
    wide = _logits(module)
    assert _relative(kept, wide) < 0.01 < _relative(narrow, wide)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"shceme": "W4A8"}, "'shceme' is not known; allowed: scheme, overrides"),
        ({"scheme": "W7A8"}, "'W7A8' is not known"),
        ({"scheme": 4}, "scheme is 4"),
        ({"overrides": "head=W8A8"}, "must be a list"),
        ({"overrides": ["head"]}, "not of the form"),
        ({"group_size": 48}, "group_size is 48"),
        ({"symmetric": "no"}, "symmetric is 'no'"),
        ({"inputs": {"head": 1}}, "inputs must map"),
        ({"plan": "x.plan", "scheme": "W4A8"}, "scheme cannot be given beside it"),
    ],
)
def test_bad_options_are_named(options: dict[str, Any], words: str) -> None:
    with pytest.raises(OptionError, match=words):
        parse_backend_options(options)


def test_torch_reports_our_errors_as_causes() -> None:
    from torch._dynamo.exc import BackendCompilerFailed

    module = _Small().eval()
    with pytest.raises(BackendCompilerFailed, match="matches no layer") as caught:
        _compiled(module, overrides=["haed=W8A8"])(_IDS)
    assert isinstance(caught.value.inner_exception, OptionError) and "head" in str(caught.value.inner_exception.hint)
    weight = nn.Parameter(torch.randn(4, 4))
    with pytest.raises(BackendCompilerFailed, match="no names") as caught:
        torch.compile(lambda x: nn.functional.linear(x, weight), backend=mixplan_backend)(torch.randn(2, 4))
    assert isinstance(caught.value.inner_exception, UnsupportedError)


def test_torch_finds_the_backend_by_its_name() -> None:
    (found,) = (one for one in entry_points(group="torch_dynamo_backends") if one.name == "mixplan")
    assert found.load() is mixplan_backend
    torch.manual_seed(0)
    module = _Small().eval()
    named = _logits(torch.compile(module, backend="mixplan", options={"scheme": "W8A8"}))
    torch._dynamo.reset()
    assert np.array_equal(named, _logits(_compiled(module, scheme="W8A8")))
