"""Scaled inputs: whatever the numbers, a model computes the same function in f32."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from mixplan.compiler.capture import capture_decoder
from mixplan.compiler.frontends.tiny import randomize, tiny_model
from mixplan.passes.base import PassContext, PassOptions, ScaledLayers
from mixplan.passes.manager import PipelineReport
from mixplan.passes.pipeline import pass_manager
from mixplan.passes.precision.overrides import Override
from mixplan.passes.precision.schemes import parse_scheme

_TOKENS = 24


def _passed(model: nn.Module, scaler: Any, overrides: tuple[Override, ...] = ()) -> tuple[PipelineReport, PassContext]:
    torch.set_num_threads(1)
    captured = capture_decoder(model)
    context = PassContext(PassOptions(parse_scheme("FP32"), overrides, scaler=scaler), tied=dict(captured.tied))
    report = pass_manager(context.options).run(captured.graph, context)
    for name, value in model.named_parameters(remove_duplicate=False):
        *path, last = name.split(".")
        owner: Any = report.graph
        for part in path:
            owner = getattr(owner, part, None)
        if owner is not None and hasattr(owner, last):
            delattr(owner, last)
            owner.register_buffer(last, value.detach())
    return report, context


def _difference(model: nn.Module, report: PipelineReport) -> float:
    ids = torch.randint(3, 200, (1, _TOKENS), generator=torch.Generator().manual_seed(0))
    positions, rows = torch.arange(_TOKENS)[None], torch.arange(_TOKENS)
    with torch.no_grad():
        expected: Tensor = model(input_ids=ids, position_ids=positions, use_cache=False).logits
        found = report.graph(ids, positions, torch.full((1, _TOKENS), _TOKENS), rows)
    return float((expected - found).abs().max() / expected.abs().max())


class _Random:
    """Scales from 1/4 to 4, equal where they must be; keeps what it was asked."""

    def __init__(self) -> None:
        self.asked: list[ScaledLayers] = []
        self._generator = torch.Generator().manual_seed(5)

    def __call__(self, layers: ScaledLayers) -> Tensor:
        self.asked.append(layers)
        columns = int(layers.weights[0].meta["val"].shape[1])
        scales = 4.0 ** (torch.rand(columns, generator=self._generator) * 2 - 1)
        return scales if layers.shared is None else scales[layers.shared]


# Groups of layers that are scaled, of the two layers' QKV, O, gate and up, down.
@pytest.mark.parametrize(
    ("model_type", "options", "scaled"),
    [
        ("llama", {}, 8),
        ("qwen2", {"tie_word_embeddings": True}, 8),
        ("phi3", {}, 8),
        ("gemma", {}, 8),
        # Its MLP has no product, and a head of its own for each value.
        ("gpt2", {}, 6),
        # Norms behind the layers: nothing is between the residual stream and Q, K and V.
        ("olmo2", {}, 4),
        # A router reads the same value.
        ("mixtral", {}, 4),
    ],
)
def test_the_function_is_the_same(model_type: str, options: dict[str, Any], scaled: int) -> None:
    model = tiny_model(model_type, **options)
    randomize(model)
    scaler = _Random()
    report, _ = _passed(model, scaler)
    assert report.matches["scale_inputs"] == len(scaler.asked) == scaled
    assert _difference(model, report) < 1e-5
    plain, _ = _passed(model, None)
    fused = {name: report.matches.get(name) for name in ("merge_qkv", "fuse_gated", "fuse_residual", "fuse_rope")}
    assert fused == {name: plain.matches.get(name) for name in fused}, "scaling keeps nothing from being fused"


def test_a_tied_head_and_an_embedding_stay_one_weight() -> None:
    model = tiny_model("llama", tie_word_embeddings=True)
    scaler = _Random()
    _passed(model, scaler)
    names = [str(weight.args[0].target) if weight.args else str(weight.target) for asked in scaler.asked for weight in asked.weights]
    assert not any("embed_tokens" in name or "lm_head" in name for name in names)


def test_query_heads_share_the_numbers_of_their_keys_and_values() -> None:
    scaler = _Random()
    _passed(tiny_model("llama"), scaler)
    (shared, other) = [asked.shared for asked in scaler.asked if asked.shared is not None]
    # Four query heads of 16 columns, two to a KV head.
    expected = torch.tensor([0, 0, 1, 1]).repeat_interleave(16) * 16 + torch.arange(16).repeat(4)
    assert torch.equal(shared, expected) and torch.equal(other, expected)


def test_layers_that_are_left_alone_say_why() -> None:
    _, context = _passed(tiny_model("mixtral"), _Random())
    assert any(rejection.rule == "scale_inputs" and "is also used by" in rejection.reason for rejection in context.rejections)
