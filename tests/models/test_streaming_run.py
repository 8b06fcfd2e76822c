"""Streamed runs against the replay of the same graph, at several stages of it, for many architectures; and what an observer is told."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from mixplan.compiler.frontends import Captured, open_checkpoint
from mixplan.compiler.frontends.tiny import tiny_model
from mixplan.compiler.replay import Replay, load_parameters
from mixplan.compiler.streaming import Observer, stream, text_windows
from mixplan.compiler.streaming.segments import cut, parameter_bytes
from mixplan.passes.base import PassContext, PassOptions
from mixplan.passes.patterns import is_constant
from mixplan.passes.pipeline import pass_manager
from mixplan.passes.precision.schemes import parse_scheme
from mixplan.runtime.errors import OptionError, RequestError

# Both sides are torch in f32; batches and fused attention take sums in another order.
TOLERANCE = 5e-6
LENGTHS = (23, 23, 23, 9, 23)
ARCHITECTURES = ("llama", "qwen2", "gpt2", "gemma2", "mixtral", "gpt_oss", "bloom", "phi3", "llama4_text")


class Logits(Observer):
    """Keeps everything."""

    def __init__(self) -> None:
        self.logits: dict[int, Tensor] = {}
        self.inputs: dict[str, list[Tensor]] = {}
        self.experts: dict[tuple[str, int], int] = {}
        self.nodes: list[str] = []

    def on_input(self, layer: str, x: Tensor) -> None:
        self.inputs.setdefault(layer, []).append(x.clone())

    def on_expert_input(self, layer: str, expert: int, x: Tensor) -> None:
        self.experts[layer, expert] = self.experts.get((layer, expert), 0) + len(x)

    def on_node(self, node: Any, args: tuple[Any, ...], kwargs: dict[str, Any], value: Any) -> None:
        self.nodes.append(node.name)

    def on_logits(self, windows: Any, logits: Tensor) -> None:
        for window, part in zip(windows, logits.split([LENGTHS[i] for i in windows]), strict=True):
            self.logits[window] = part.clone()


def some_windows() -> list[list[int]]:
    rng = np.random.default_rng(0)
    return [rng.integers(3, 200, length).tolist() for length in LENGTHS]


def captured_model(name: str, **options: Any) -> Captured:
    torch.set_num_threads(1)
    return open_checkpoint(tiny_model(name, **options)).capture()


def replayed(captured: Captured, windows: list[list[int]]) -> list[Tensor]:
    """Logits of each window by the replay; the graph holds its weights afterwards."""
    load_parameters(captured.graph, captured.weights)
    return [Replay(captured.graph).step(ids, list(range(len(ids))), [0] * len(ids)) for ids in windows]


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_equals_replay(name: str) -> None:
    """The captured graph and the fully fused one, in one segment and in many, give the replay's logits for windows of two lengths."""
    captured, windows = captured_model(name), some_windows()
    wanted = replayed(captured_model(name), windows)
    for fused in (False, True):
        if fused:
            options = PassOptions(parse_scheme("FP32"))
            captured.graph = pass_manager(options).run(captured.graph, PassContext(options, captured.tied)).graph
        for segment_bytes in (None, 1):
            told = Logits()
            report = stream(captured.graph, captured.weights, windows, told, batch_tokens=50, segment_bytes=segment_bytes)
            assert sorted(told.logits) == list(range(len(windows)))
            for index, expected in enumerate(wanted):
                difference = float((told.logits[index] - expected).abs().max() / expected.abs().max())
                assert difference < TOLERANCE, (fused, segment_bytes, index)
            assert report.windows == len(windows) and report.tokens == sum(LENGTHS)
            assert (report.segments > 5) == (segment_bytes == 1)
            assert set(report.seconds) == set(told.nodes)


def test_every_layer_is_told_of_with_its_input() -> None:
    """Each linear layer once for every batch, with the rows that torch's own hooks see, by the name that overrides use."""
    model = tiny_model("llama")
    torch.set_num_threads(1)
    captured, windows = open_checkpoint(model).capture(), some_windows()
    seen: dict[str, list[Tensor]] = {}

    def hook(name: str) -> Any:
        return lambda module, args: seen.setdefault(name, []).append(args[0].reshape(-1, args[0].shape[-1]))

    for name, module in model.named_modules():
        if isinstance(module, nn.Linear):
            module.register_forward_pre_hook(hook(name))
    with torch.no_grad():
        for ids in windows:
            model(torch.tensor([ids]))
    for logits in (True, False):
        told = Logits()
        stream(captured.graph, captured.weights, windows, told, batch_tokens=50, logits=logits)
        assert told.inputs.keys() == seen.keys()
        assert bool(told.logits) == logits
        for name, parts in seen.items():
            torch.testing.assert_close(torch.cat(told.inputs[name]), torch.cat(parts), rtol=1e-4, atol=1e-4)


def test_experts_are_told_of_one_by_one() -> None:
    """The experts of a layer share its routed rows among them."""
    captured, windows = captured_model("mixtral"), some_windows()
    told = Logits()
    stream(captured.graph, captured.weights, windows, told)
    layers = {layer for layer, _ in told.experts}
    assert layers and layers < set(told.inputs)
    for layer in layers:
        assert sum(count for (name, _), count in told.experts.items() if name == layer) == sum(map(len, told.inputs[layer]))
        assert sum(map(len, told.inputs[layer])) == 2 * sum(LENGTHS)  # two experts a token


def test_one_thread_is_bitwise_the_same() -> None:
    """Runs on one thread agree in every bit, whatever the segments are, and leave torch's threads as they were."""
    captured, windows = captured_model("qwen2"), some_windows()
    torch.set_num_threads(2)
    try:
        runs = []
        for segment_bytes in (None, 1, 100_000):
            told = Logits()
            stream(captured.graph, captured.weights, windows, told, threads=1, segment_bytes=segment_bytes)
            runs.append(torch.cat([told.logits[i] for i in range(len(windows))]))
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)
    assert torch.equal(runs[0], runs[1]) and torch.equal(runs[0], runs[2])


class _Counting:
    """A weight source that counts how often a weight is read whole."""

    def __init__(self, inner: Any) -> None:
        self.inner, self.reads = inner, dict[str, int]()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def read(self, name: str) -> Any:
        self.reads[name] = self.reads.get(name, 0) + 1
        return self.inner.read(name).copy()


def test_weights_are_read_once_and_dropped() -> None:
    """No weight is read twice, the embedding table is never read whole, and segments hold what they may, however long the text is."""
    captured = captured_model("llama", num_hidden_layers=12, hidden_size=128, intermediate_size=256)
    counting: Any = _Counting(captured.weights)
    windows = some_windows() * 4
    total = sum(parameter_bytes(captured.graph, node) for node in captured.graph.graph.nodes if node.op == "get_attr")
    limit = total // 8
    report = stream(captured.graph, counting, windows, batch_tokens=50, segment_bytes=limit)
    assert set(counting.reads.values()) == {1}
    assert "model.embed_tokens.weight" not in counting.reads
    assert 8 <= report.segments <= 20 and report.weight_bytes <= limit
    # Between segments only the residual stream waits, and the rotary tables: f32 [T, 128] and 2 x [T, 16].
    assert report.kept_bytes <= report.tokens * (128 + 2 * 16) * 4 + 100_000


def test_python_memory_is_bounded() -> None:
    """What numpy reads of a deep model at any moment is a few segments' worth, not the model."""
    captured = captured_model("llama", num_hidden_layers=24, hidden_size=128, intermediate_size=256, num_attention_heads=8)
    counting: Any = _Counting(captured.weights)  # copies, so that each read is an allocation
    total = sum(parameter_bytes(captured.graph, node) for node in captured.graph.graph.nodes if node.op == "get_attr")
    stream(captured.graph, counting, some_windows(), segment_bytes=total // 20)
    tracemalloc.start()
    stream(captured.graph, counting, some_windows(), segment_bytes=total // 20)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < total // 5


def test_cuts_cover_the_graph() -> None:
    """Segments hold every node that is no constant, once and in order, and the last keeps the logits."""
    captured = captured_model("gpt2")
    segments = cut(captured.graph, 10_000)
    nodes = [node for segment in segments for node in segment.nodes]
    wanted = [node for node in captured.graph.graph.nodes if node.op not in ("placeholder", "output") and not is_constant(node)]
    assert nodes == wanted and len(segments) > 3
    assert captured.graph.graph.output_node().all_input_nodes[0] in segments[-1].keep


def test_progress_ends_at_one() -> None:
    captured = captured_model("llama")
    seen: list[float] = []
    stream(captured.graph, captured.weights, some_windows(), progress=seen.append)
    assert seen == sorted(seen) and seen[-1] == 1.0


@pytest.mark.parametrize("windows", [[], [[]], [[1, 2], []], [[-1, 2]]])
def test_windows_that_cannot_be(windows: list[list[int]]) -> None:
    captured = captured_model("llama")
    with pytest.raises(RequestError):
        stream(captured.graph, captured.weights, windows)


@pytest.mark.parametrize("option", ["threads", "batch_tokens", "segment_bytes"])
def test_options_are_at_least_one(option: str) -> None:
    captured = captured_model("llama")
    with pytest.raises(OptionError, match=option):
        stream(captured.graph, captured.weights, [[1]], **{option: 0})


def test_text_windows(tiny_llama_dir: Any) -> None:
    """Whole windows without overlap; a short text is one short window; what cannot be is refused."""
    checkpoint = open_checkpoint(tiny_llama_dir)
    try:
        captured = checkpoint.capture()
    finally:
        checkpoint.close()
    windows = text_windows(captured, "abcdefghij" * 10, tokens=70, length=32)
    assert windows.shape == (2, 32)
    assert windows.reshape(-1).tolist() == (windows.reshape(-1)[:10].tolist() * 7)[:64]
    assert text_windows(captured, "abc", tokens=70, length=32).shape == (1, 3)
    for text, length, word in (("a", 32, "at least 2"), ("abc", 1, "Windows"), ("abc", 10**6, "context")):
        with pytest.raises(RequestError, match=word):
            text_windows(captured, text, tokens=70, length=length)
    captured.files.clear()
    with pytest.raises(RequestError, match="no tokenizer"):
        text_windows(captured, "abc", tokens=70, length=2)
