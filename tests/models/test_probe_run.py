"""The whole probe on small models: figures against torch's own, several architectures, bounded memory, reports."""

from __future__ import annotations

import json
import re
import tracemalloc
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from mixplan.compiler import probe
from mixplan.compiler.frontends.tiny import tiny_model
from mixplan.compiler.probing import ProbeReport
from mixplan.runtime.errors import OptionError, OutputError, RequestError

WINDOWS = np.random.default_rng(1).integers(3, 200, (3, 32)).tolist()
ARCHITECTURES = ("qwen2", "gpt2", "gemma2", "mixtral", "gpt_oss", "bloom", "phi3")


@pytest.fixture(scope="module")
def model() -> Any:
    torch.set_num_threads(1)
    return tiny_model("llama")


@pytest.fixture(scope="module")
def report(model: Any) -> ProbeReport:
    return probe(model, token_ids=WINDOWS, schemes=["W8A16", "W4A16:g32"], sensitivity="hessian")


def seen_by_torch(model: Any) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Input and output rows of every linear layer, over all windows, as the model itself computes them."""
    rows: dict[str, list[tuple[np.ndarray, np.ndarray]]] = {}

    def hook(name: str) -> Any:
        def keep(module: Any, args: Any, out: Any) -> None:
            rows.setdefault(name, []).append(tuple(x.reshape(-1, x.shape[-1]).numpy().copy() for x in (args[0], out)))  # type: ignore[arg-type]

        return keep

    handles = [module.register_forward_hook(hook(name)) for name, module in model.named_modules() if isinstance(module, nn.Linear)]
    with torch.no_grad():
        for ids in WINDOWS:
            model(torch.tensor([ids]))
    for handle in handles:
        handle.remove()
    return {name: (np.concatenate([a for a, _ in parts]), np.concatenate([b for _, b in parts])) for name, parts in rows.items()}


def test_figures_are_those_of_the_model(model: Any, report: ProbeReport) -> None:
    """Every linear layer's output has the moments, percentiles and channels that numpy finds in what the model computes."""
    tensors = {tensor.name: tensor for tensor in report.tensors if tensor.kind == "activation"}
    for name, (_, out) in seen_by_torch(model).items():
        found = tensors[name]
        assert found.count == out.size and found.channels == out.shape[1]
        wide = out.astype(np.float64)
        np.testing.assert_allclose([found.low, found.high], [wide.min(), wide.max()], rtol=1e-3)
        np.testing.assert_allclose(
            [found.mean, found.std, found.rms], [wide.mean(), wide.std(), (wide**2).mean() ** 0.5], rtol=1e-3, atol=1e-4
        )
        unit = (wide - wide.mean()) / wide.std()
        np.testing.assert_allclose([found.skew, found.kurtosis], [(unit**3).mean(), (unit**4).mean() - 3], atol=1e-2)
        for percent, value in found.percentiles.items():
            assert value == pytest.approx(np.percentile(np.abs(wide), float(percent)), rel=0.08)
        ratio = np.abs(wide).max(0)
        assert found.channel_ratio == pytest.approx(ratio.max() / np.sort(ratio)[(len(ratio) - 1) // 2], rel=1e-3)


def test_weights_and_layers(model: Any, report: ProbeReport) -> None:
    """Every weight is there; work is what the shapes say; shares add up to one."""
    weights = {tensor.name: tensor for tensor in report.tensors if tensor.kind == "weight"}
    for name, parameter in model.named_parameters():
        if name in weights:
            assert weights[name].absmax == pytest.approx(float(parameter.detach().abs().max()))
    layers = {layer.name: layer for layer in report.layers}
    down = layers["model.layers.1.mlp.down_proj"]
    assert (down.rows, down.columns, down.parameters, down.stored) == (64, 128, 8192, "F32")
    assert down.decode.flops == 2 * 8192 and down.decode.bytes == 4 * (8192 + 64 + 128)
    assert down.run.flops == 96 * down.decode.flops and down.run.bytes == 4 * (8192 + 96 * (64 + 128))
    assert down.input == "model.layers.1.mlp / mul" and down.output == "model.layers.1.mlp.down_proj"
    attention = layers["attention.0"]
    # 4 heads of 16: scores and values, 5 more for the softmax, of 32 positions.
    assert attention.decode.flops == 32 * 4 * (2 * 32 + 5)
    assert sum(layer.measured_share for layer in report.layers) == pytest.approx(1.0)
    assert sum(layer.modelled_share for layer in report.layers) == pytest.approx(1.0)
    assert report.time_basis.startswith("measured") and report.model_basis.startswith("modelled")
    assert report.tokens == 96 and report.window == 32 and report.windows == 3


def test_inputs_in_int8(model: Any, report: ProbeReport) -> None:
    """The signal to noise of a layer's input, rounded for each token."""
    layers = {layer.name: layer for layer in report.layers}
    for name, (x, _) in seen_by_torch(model).items():
        scale = np.abs(x).max(1, keepdims=True) / 127
        noise = ((x - np.round(x / scale) * scale).astype(np.float64) ** 2).sum()
        wanted = 10 * np.log10((x.astype(np.float64) ** 2).sum() / noise)
        assert layers[name].input_snr["token"] == pytest.approx(wanted, abs=0.2)
        assert layers[name].input_snr["group"] > layers[name].input_snr["token"] > layers[name].input_snr["tensor"]


def test_sensitivity_is_the_output_error(model: Any, report: ProbeReport) -> None:
    """Fewer bits lose more, and the estimate is near the error of the output that the rounded layer really gives."""
    from mixplan.compiler.quantize import dequantized
    from mixplan.passes.precision.schemes import parse_scheme

    loss = report.sensitivity["loss"]
    assert report.sensitivity["schemes"] == ("W8A16", "W4A16:g32") and report.sensitivity["method"] == "hessian"
    fmt = parse_scheme("W4A16:g32").weight
    for name, (x, out) in seen_by_torch(model).items():
        assert 0 < loss[name]["W8A16"] < loss[name]["W4A16:g32"] < 0.1
        rounded = dequantized(fmt, model.get_submodule(name).weight.detach(), name).numpy()
        true = ((x @ rounded.T - out).astype(np.float64) ** 2).sum() / (out.astype(np.float64) ** 2).sum()
        assert 0.4 < loss[name]["W4A16:g32"] / true < 2.5
        assert report.sensitivity["bits"][name] == {"W8A16": pytest.approx(8 + 32 / x.shape[1]), "W4A16:g32": 4.5}


def test_sensitivity_from_gradients(model: Any, report: ProbeReport) -> None:
    """The default where a model has gradients: every layer has a loss in nats, and the other figures are the same."""
    found = probe(model, token_ids=WINDOWS, schemes=["W8A16", "W4A16:g32"], threads=1)
    assert found.sensitivity["method"] == "fisher" and found.sensitivity["additive"]
    assert found.sensitivity["loss"].keys() == report.sensitivity["loss"].keys() == found.sensitivity["bits"].keys()
    assert all(0 <= row["W8A16"] < row["W4A16:g32"] < 5 for row in found.sensitivity["loss"].values())
    assert [tensor.name for tensor in found.tensors] == [tensor.name for tensor in report.tensors]


def test_heads(model: Any, report: ProbeReport) -> None:
    """One record a head; keys and values are those that query heads share."""
    assert [(head.layer, head.head, head.kv_head) for head in report.heads] == [(i, h, h // 2) for i in range(2) for h in range(4)]
    rows = seen_by_torch(model)
    for head in report.heads:
        values = rows[f"model.layers.{head.layer}.self_attn.v_proj"][1][:, 16 * head.kv_head : 16 * (head.kv_head + 1)]
        assert head.v_absmax == pytest.approx(float(np.abs(values).max()), rel=1e-4)
        assert head.input_high == pytest.approx(head.score_high / 4, rel=1e-4)
        assert 0 < head.mean_span <= head.span


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_architectures(name: str) -> None:
    """All kinds of layers are probed: experts, biases, tied embeddings, windows, caps, sinks, slopes."""
    found = probe(tiny_model(name), token_ids=WINDOWS, schemes=["W4A16:g32"], sensitivity="hessian")
    products = [layer for layer in found.layers if layer.kind in ("linear", "experts")]
    assert len(products) >= 8
    for layer in products:
        assert layer.input_snr and layer.run.flops > 0 and layer.seconds > 0, layer.name
        assert 0 < found.sensitivity["loss"][layer.name]["W4A16:g32"] < 0.5, layer.name
    assert len(found.heads) == 8 and found.advice
    assert ("experts" in {layer.kind for layer in found.layers}) == (name in ("mixtral", "gpt_oss"))


def test_same_bits_on_one_thread(model: Any) -> None:
    """Two runs, with segments of other sizes, give the same statistics in every bit."""
    runs = [probe(model, token_ids=WINDOWS, schemes=["W4A16:g32"], threads=1, segment_bytes=size) for size in (1, None)]
    first, second = (run.tensors for run in runs)
    assert first == second and runs[0].heads == runs[1].heads and runs[0].sensitivity == runs[1].sensitivity


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """At no moment more than a few layers' worth of a deep model has been read; what stays of each tensor is its statistics."""
    from mixplan.compiler.weights.memory import ModuleWeights

    read, rows = ModuleWeights.read, ModuleWeights.read_rows
    monkeypatch.setattr(ModuleWeights, "read", lambda self, name: read(self, name).copy())
    monkeypatch.setattr(ModuleWeights, "read_rows", lambda self, name, start, stop: rows(self, name, start, stop).copy())
    deep = tiny_model("llama", num_hidden_layers=16, hidden_size=256, intermediate_size=512, vocab_size=512)
    total = 4 * sum(parameter.numel() for parameter in deep.parameters())
    peaks: list[int] = []

    def watch(stage: str, fraction: float) -> None:
        if stage in ("run", "weights", "sensitivity"):
            if fraction == 0:
                tracemalloc.start()
            elif fraction == 1 and tracemalloc.is_tracing():
                peaks.append(tracemalloc.get_traced_memory()[1])
                tracemalloc.stop()

    probe(deep, token_ids=WINDOWS, schemes=["W4A16:g32"], sensitivity="hessian", segment_bytes=total // 16, progress=watch)
    assert len(peaks) == 3 and max(peaks) < total // 4


class _Tags(HTMLParser):
    """Counts elements, and keeps whatever would load something."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: dict[str, int] = {}
        self.loads: list[str] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.counts[tag] = self.counts.get(tag, 0) + 1
        self.loads += [f"{tag} {name}={value}" for name, value in attrs if name in ("src", "href", "xlink:href", "action", "data")]
        if tag not in ("meta", "rect", "line", "polygon", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in ("rect", "line", "polygon"):
            assert self.open.pop() == tag


def test_reports(model: Any, tmp_path: Path, report: ProbeReport) -> None:
    """JSON holds everything that Python gets; HTML is one sound file without scripts, with plots."""
    page, data = tmp_path / "r.html", tmp_path / "r.json"
    found = probe(model, token_ids=WINDOWS, output=(page, data), schemes=["W8A16", "W4A16:g32"])
    loaded = json.loads(data.read_text(encoding="utf-8"))
    assert loaded["schema"] == 1 and len(loaded["tensors"]) == len(found.tensors) and len(loaded["heads"]) == len(found.heads)
    assert loaded["layers"][3]["decode"]["flops_per_byte"] == pytest.approx(found.layers[3].decode.flops_per_byte)
    assert [one["text"] for one in loaded["advice"]] == [one.text for one in found.advice]
    text = page.read_text(encoding="utf-8")
    tags = _Tags()
    tags.feed(text)
    assert not tags.open and not tags.loads and "script" not in tags.counts and "@import" not in text and "url(" not in text
    assert tags.counts["svg"] > 30 and tags.counts["rect"] > 300 and tags.counts["polygon"] >= len(found.tensors) - 5
    for words in ("Advice", "Sensitivity", "Distributions", "Attention heads", "prefers-color-scheme", found.advice[0].text[:20]):
        assert words in text
    assert not re.search(r"\bnan\b|\binf\b", text)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["r.html", "r.json"]


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"token_ids": [[1, 2], [3]]}, OptionError, "one length"),
        ({"token_ids": [[]]}, OptionError, "shape"),
        ({"token_ids": [[1, 100_000]]}, RequestError, "100000"),
        ({"text": "x"}, RequestError, "no tokenizer"),
        ({}, OptionError, "text or token_ids"),
        ({"text": "x", "token_ids": WINDOWS}, OptionError, "text or token_ids"),
        ({"token_ids": WINDOWS, "schemes": ["W9A9"]}, OptionError, "W9A9"),
        ({"token_ids": WINDOWS, "schemes": ["FP32"]}, OptionError, "No candidate"),
        ({"token_ids": WINDOWS, "sensitivity": "x"}, OptionError, "'x'"),
        ({"token_ids": WINDOWS, "output": "r.txt"}, OptionError, ".txt"),
        ({"token_ids": WINDOWS, "output": "/nonexistent/r.html"}, OutputError, "not a folder"),
        ({"token_ids": WINDOWS, "context": 1}, OptionError, "context"),
    ],
)
def test_what_cannot_be_probed(model: Any, options: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=re.escape(words)):
        probe(model, **options)


def test_nothing_is_left_of_a_failure(model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A report that exists is not replaced unasked, and a write that fails leaves the old one."""
    path = tmp_path / "r.html"
    path.write_text("old", encoding="utf-8")
    with pytest.raises(OutputError, match="exists"):
        probe(model, token_ids=WINDOWS, output=path)

    def broken(self: Path, *args: Any, **kwargs: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", broken)
    with pytest.raises(OutputError, match="no room"):
        probe(model, token_ids=WINDOWS, output=path, force=True, schemes=["W4A16:g32"])
    assert path.read_bytes() == b"old" and len(list(tmp_path.iterdir())) == 1
