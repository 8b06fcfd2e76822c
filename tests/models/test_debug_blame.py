"""`mixplan debug`: a layer that was corrupted on purpose is named first."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from click.testing import CliRunner, Result

from mixplan.cli import main
from mixplan.compiler.debug.original import Original
from mixplan.compiler.debug.report import DebugReport, Figures, SpanReport
from mixplan.compiler.debug.run import debug_plan
from mixplan.compiler.debug.spans import Span
from mixplan.compiler.frontends import open_checkpoint
from mixplan.compiler.frontends.tiny import tiny_model
from mixplan.compiler.pipeline import compile as compile_plan
from mixplan.compiler.replay import load_parameters
from mixplan.compiler.verify_report import Coverage
from mixplan.runtime import load
from mixplan.runtime.errors import RequestError
from mixplan.runtime.plan_io import read_plan, write_manifest

_TEXT = "The keeper wrote down the weather."


@pytest.fixture(scope="module", params=["W8A16", "W8A8"])
def plan(request: pytest.FixtureRequest, tiny_llama_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("debug") / "a.plan"
    compile_plan(tiny_llama_dir, output=path, scheme=request.param, targets=("reference",))
    return path


def _corrupt(plan: Path, key: str, start: float, stop: float, where: Path) -> Path:
    """A copy of the plan in which a part of a packed weight is random."""
    shutil.copytree(plan, where)
    loaded = read_plan(where)
    (tensor,) = (value.tensor for value in loaded.plan.values if value.tensor is not None and value.tensor.key == key)
    file = where / tensor.file
    data = bytearray(file.read_bytes())
    at = loaded.headers[tensor.file].data_start + tensor.offset
    first, last = at + int(start * tensor.nbytes), at + int(stop * tensor.nbytes)
    data[first:last] = np.random.default_rng(0).integers(0, 256, last - first, np.uint8).tobytes()
    loaded.close()
    file.write_bytes(bytes(data))
    write_manifest(where, msgspec.structs.replace(loaded.plan, files={}))
    return where


@pytest.mark.parametrize(
    ("key", "part", "layer"),
    [
        ("model.layers.1.mlp.down_proj.weight", (0, 1), "model.layers.1.mlp.down_proj"),
        ("model.layers.0.mlp.gate_proj.weight", (0, 1), "model.layers.0.mlp.gate_proj"),
        ("model.layers.1.self_attn.o_proj.weight", (0, 1), "model.layers.1.self_attn.o_proj"),
        ("model.layers.0.self_attn.q_proj.weight+2", (0.75, 1), "model.layers.0.self_attn.v_proj"),
        ("model.embed_tokens.weight", (0, 1), "model.embed_tokens"),
        ("lm_head.weight", (0, 1), "lm_head"),
    ],
)
def test_a_corrupted_layer_is_named_first(
    key: str, part: tuple[float, float], layer: str, plan: Path, tiny_llama_dir: Path, tmp_path: Path
) -> None:
    report = debug_plan(_corrupt(plan, key, *part, tmp_path / "bad.plan"), tiny_llama_dir, text=_TEXT, tokens=24)
    first, second, *_ = report.spans
    assert layer in first.span.layers
    assert first.isolated.snr < 10 and first.isolated.kld is not None and second.isolated.kld is not None
    assert first.isolated.kld > 3 * second.isolated.kld


def test_a_sound_plan(plan: Path, tiny_llama_dir: Path) -> None:
    report = debug_plan(plan, tiny_llama_dir, text=_TEXT, tokens=24)
    spans = {span.span.title: span for span in report.spans}
    assert {f"model.layers.{n}.self_attn.{x}_proj" for n in (0, 1) for x in "qkvo"} <= set(spans)
    assert {"model.layers.0.mlp.gate_proj+up_proj", "model.layers.1.mlp.down_proj", "model.embed_tokens", "lm_head"} <= set(spans)
    assert all(span.isolated.snr > 25 and span.isolated.cosine > 0.99 for span in report.spans)
    assert spans["lm_head"].span.schemes[0].startswith("W8A")
    # What comes last has the errors of all before it, and what comes first only its own.
    assert spans["lm_head"].cumulative.kld == pytest.approx(report.kld_reference, rel=1e-3)
    first = spans["model.embed_tokens"]
    assert first.cumulative == first.isolated
    assert spans["lm_head"].cumulative.snr < spans["lm_head"].isolated.snr
    assert report.kld_devices == pytest.approx(report.kld_reference) and report.tokens == 24 and report.warnings == ()
    assert report.coverage.compared + sum(report.coverage.skipped.values()) == report.coverage.total


def test_what_a_span_costs_is_what_the_original_makes_of_it(tiny_llama_dir: Path) -> None:
    """Runs that go on from the middle, against whole runs with a changed node."""
    checkpoint = open_checkpoint(tiny_llama_dir)
    captured = checkpoint.capture()
    load_parameters(captured.graph, captured.weights)
    checkpoint.close()
    ids = [5, 9, 17, 33, 65, 129, 257]
    original = Original(captured.graph, ids)
    linears = [node.name for node in captured.graph.graph.nodes if node.target is torch.ops.aten.linear.default][:5]
    seen, logits = original.record(set(linears))
    assert set(seen) == set(linears) and logits.shape == (7, 512) and set(linears) <= original.tensors
    noise = {name: value * np.float32(1.1) for name, value in seen.items()}
    found: dict[str, tuple[np.ndarray, np.ndarray]] = {}
    original.blame(noise, noise, lambda name, *both: found.update({name: both}), linears[1:])
    assert list(found) == linears[1:]

    class _Changed(torch.fx.Interpreter):
        def __init__(self, names: set[str]) -> None:
            super().__init__(captured.graph)
            self.names = names

        def run_node(self, n: torch.fx.Node) -> object:
            return torch.from_numpy(noise[n.name]) if n.name in self.names else super().run_node(n)

    places = torch.arange(len(ids))
    for at, name in enumerate(linears[1:], 1):
        for got, names in zip(found[name], ({name}, set(linears[: at + 1])), strict=True):
            with torch.no_grad():
                wanted = _Changed(names).run(torch.tensor(ids)[None], places[None], torch.full((1, 7), 7), places)
            np.testing.assert_allclose(got, wanted[0].numpy(), rtol=1e-4, atol=1e-5)


def test_a_tap_may_put_another_value_in_place(plan: Path) -> None:
    with load(plan) as model:
        name = model.plan.values[model.plan.nodes[-1].outputs[0]].name
        made = model.step([1, 2], [0, 1], [0, 0], "all", tap=lambda at, array: np.full_like(array, 3) if at == name else None)
        assert (made == 3).all()
        with pytest.raises(RequestError, match=r"A tap gave float64 \[1\] for"):
            model.step([1], [0], [1], tap=lambda at, array: np.zeros(1))


def _debug(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["debug", *map(str, arguments)])


def test_the_command(plan: Path, tiny_llama_dir: Path, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text(_TEXT, encoding="utf-8")
    done = _debug(plan, tiny_llama_dir, "--text", text, "--tokens", 8)
    assert done.exit_code == 0, done.output
    assert "Most to blame: " in done.stdout and "the reference device" in done.stdout and "nodes were compared" in done.stdout
    done = _debug(plan, tiny_llama_dir, "--tokens", 8, "--worst", 2, "--json")
    assert done.exit_code == 0, done.output
    spans = json.loads(done.stdout)["spans"]
    assert sum(span["isolated"]["kld"] not in (0, None) for span in spans) == 2
    assert [span["isolated"]["kld"] is None for span in spans[2:4]] == [True, True]


def test_what_is_refused(plan: Path, tiny_llama_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\xff")
    (tmp_path / "short").write_text("a", encoding="utf-8")
    for arguments, message in [
        ((plan, tmp_path / "none"), "no such file"),
        ((tmp_path / "none.plan", tiny_llama_dir), "no plan at"),
        ((plan, tiny_llama_dir, "--tokens", 1), "1 is not in the range"),
        ((plan, tiny_llama_dir, "--text", tmp_path / "none"), "does not exist"),
        ((plan, tiny_llama_dir, "--text", tmp_path / "binary"), "is not UTF-8"),
        ((plan, tiny_llama_dir, "--text", tmp_path / "short"), "at least 2 are needed"),
    ]:
        done = _debug(*arguments)
        assert done.exit_code == 2 and message in done.output, done.output
    with pytest.raises(RequestError, match="vocabulary of 512, the model one of 256"):
        debug_plan(plan, tiny_model("llama"))


def test_kernels_that_differ_are_told() -> None:
    span = SpanReport(Span("node", "value", "origin", ("linear",), (), 0, ()), Figures(20, 0.9, float("inf")), Figures(20, 0.9, None))
    report = DebugReport(4, (span,), Coverage(1, 1, {}, 0, 1), 0.001, 0.5, ("r0: cpu (x)",))
    *_, line = report.render(_Table)
    assert "Most to blame: node. The plan's own devices diverge otherwise" in line
    assert report.to_dict()["spans"][0]["isolated"]["kld"] is None


class _Table:
    def __init__(self, title: str, *columns: str) -> None:
        self.columns = columns

    def add_row(self, *cells: str) -> None:
        assert len(cells) == len(self.columns)
