"""Modules in memory: plain torch decoders are captured, and whatever mixes tokens outside causal attention is refused by node and line."""

from __future__ import annotations

import re
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

from mixplan.compiler.capture import capture_decoder  # noqa: E402
from mixplan.compiler.frontends import open_checkpoint  # noqa: E402
from mixplan.compiler.frontends.tiny import tiny_model  # noqa: E402
from mixplan.compiler.replay import Replay, load_parameters  # noqa: E402
from mixplan.runtime.errors import UnsupportedError  # noqa: E402

VOCABULARY, WIDTH, HEADS, LENGTH = 50, 32, 4, 64


class Decoder(nn.Module):
    """One attention layer between a token table and a tied head; `kind` says how the attention is written."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.tokens, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.convolution = nn.Conv1d(WIDTH, WIDTH, 3, padding=2)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.head.weight = self.tokens.weight
        self.register_buffer("seen", torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril())

    def forward(self, ids: Any) -> Any:
        count = ids.shape[1]
        x = self.tokens(ids) + self.places(torch.arange(count))
        q, k, v = (t.view(1, count, HEADS, -1).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        x = x + self.out(getattr(self, self.kind)(q, k, v, count).transpose(1, 2).reshape(1, count, WIDTH))
        return self.head(x)

    def fused(self, q: Any, k: Any, v: Any, count: int) -> Any:
        return functional.scaled_dot_product_attention(q, k, v, is_causal=True)

    def written(self, q: Any, k: Any, v: Any, count: int) -> Any:
        scores = (q @ k.transpose(-1, -2)) / 8**0.5
        return scores.masked_fill(~self.seen[:count, :count], float("-inf")).softmax(-1) @ v

    def windowed(self, q: Any, k: Any, v: Any, count: int) -> Any:
        place = torch.arange(count)
        keep = (place[None] <= place[:, None]) & (place[None] > place[:, None] - 5)
        return functional.scaled_dot_product_attention(q, k, v, attn_mask=keep, scale=0.3)

    def bidirectional(self, q: Any, k: Any, v: Any, count: int) -> Any:
        return functional.scaled_dot_product_attention(q, k, v)

    def convolved(self, q: Any, k: Any, v: Any, count: int) -> Any:
        flat = self.convolution(v.transpose(1, 2).reshape(1, count, WIDTH).transpose(1, 2))[..., :count]
        return flat.transpose(1, 2).view(1, count, HEADS, -1).transpose(1, 2)

    def running_mean(self, q: Any, k: Any, v: Any, count: int) -> Any:
        return v.cumsum(2)

    def shifted(self, q: Any, k: Any, v: Any, count: int) -> Any:
        return functional.pad(v, (0, 0, 1, 0))[:, :, :-1]

    def counted(self, q: Any, k: Any, v: Any, count: int) -> Any:
        return v * count

    def branching(self, q: Any, k: Any, v: Any, count: int) -> Any:
        return v if v.sum() > 0 else -v

    def looping(self, q: Any, k: Any, v: Any, count: int) -> Any:
        return torch.stack([v[:, :, i] for i in range(count)], 2)

    def last(self, q: Any, k: Any, v: Any, count: int) -> Any:
        return v + v[:, :, -1:]


@pytest.mark.parametrize(("kind", "window"), [("fused", 0), ("written", 0), ("windowed", 5)])
def test_plain_decoder(kind: str, window: int) -> None:
    torch.manual_seed(0)
    module = Decoder(kind).eval()
    captured = open_checkpoint(module, example_inputs=(torch.zeros(1, 5, dtype=torch.long),)).capture()
    (attention,) = [n for n in captured.graph.graph.nodes if "mixplan.attention" in str(n.target)]
    assert attention.args[5] == window
    assert captured.tied == {"head.weight": "tokens.weight"} and "head.weight" not in captured.weights.names()
    load_parameters(captured.graph, captured.weights)
    ids = list(range(3, 33))
    with torch.no_grad():
        want = module(torch.tensor([ids]))[0]
    run = Replay(captured.graph)
    got = torch.cat([run.step(ids[:9], list(range(9)), [0] * 9), *(run.step([ids[p]], [p], [0]) for p in range(9, 30))])
    assert float((got - want).abs().max()) < 1e-5 * float(want.abs().max())


def test_context_length_is_that_of_the_position_table() -> None:
    model = open_checkpoint(Decoder("fused").eval()).capture().model
    assert (model.architecture, model.vocab_size, model.context_length) == ("Decoder", VOCABULARY, LENGTH)


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("bidirectional", "scaled_dot_product_attention.* is attention that bypasses"),
        ("convolved", "convolves over the token dimension"),
        ("running_mean", "cumsum.* works along the token dimension"),
        ("shifted", "pads or shifts the token dimension|picks tokens by their place"),
        ("counted", "computes with the number of tokens"),
        ("last", "picks tokens by their place in the step"),
    ],
)
def test_mixing_is_refused_with_node_and_line(kind: str, reason: str) -> None:
    with pytest.raises(UnsupportedError, match=reason) as caught:
        open_checkpoint(Decoder(kind).eval()).capture()
    assert "node '" in str(caught.value) and "models/test_capture_modules.py:" in str(caught.value)


@pytest.mark.parametrize(
    ("kind", "reason", "line"),
    [("branching", "data-dependent", "return v if v.sum() > 0 else -v"), ("looping", "fixes the number of tokens", "return torch.stack([")],
)
def test_what_cannot_be_traced_is_refused_with_the_modules_line(kind: str, reason: str, line: str) -> None:
    """Not with one of mixplan's, wherever the package lies."""
    with pytest.raises(UnsupportedError, match=reason) as caught:
        open_checkpoint(Decoder(kind).eval()).capture()
    assert re.search(r"\(at models/test_capture_modules\.py:\d+: " + re.escape(line), str(caught.value))


def test_modules_that_take_something_else() -> None:
    with pytest.raises(UnsupportedError, match=r"the first example input of Linear is torch.float32 \[1, 3\]"):
        open_checkpoint(nn.Linear(3, 4), example_inputs=(torch.zeros(1, 3),))
    with pytest.raises(UnsupportedError, match=r"Bilinear\.forward takes"):
        open_checkpoint(nn.Bilinear(3, 4, 5))


@pytest.mark.parametrize(
    ("model_type", "reason"),
    [
        ("mamba", r"fixes the number of tokens in a step.*\(at mamba/modeling_mamba.py:\d+: for "),
        (
            "qwen3_next",
            r"not work for every number of tokens T in a step, but needs .*64.*\(at qwen3_next/modeling_qwen3_next.py:\d+: ",
        ),
        ("doge", r"computes with its attention mask.*modeling_doge.py:\d+"),
        ("lfm3", "convolves"),
    ],
)
def test_architectures_that_cannot_be_captured(model_type: str, reason: str) -> None:
    with pytest.raises(UnsupportedError, match=reason):
        capture_decoder(tiny_model(model_type))


def test_the_module_is_left_as_it_is() -> None:
    model = tiny_model("llama").to(torch.bfloat16)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    implementation = model.config._attn_implementation
    graph = capture_decoder(model).graph
    assert model.config._attn_implementation == implementation
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert {n.meta["val"].dtype for n in graph.graph.nodes if n.op == "get_attr"} == {torch.float32}
