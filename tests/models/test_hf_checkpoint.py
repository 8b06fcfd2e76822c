"""Hugging Face directories: converted, sharded and tied weights, and one test per way in which a directory can be wrong."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from safetensors.torch import load_file, save_file  # noqa: E402

from mixplan.compiler.frontends import open_checkpoint  # noqa: E402
from mixplan.compiler.frontends.tiny import tiny_model  # noqa: E402
from mixplan.compiler.replay import Replay, load_parameters  # noqa: E402
from mixplan.runtime.errors import CheckpointError, UnsupportedError  # noqa: E402


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny llama in one file."""
    folder = tmp_path_factory.mktemp("llama")
    tiny_model("llama").save_pretrained(folder)
    return folder


def copied(source: Path, target: Path) -> Path:
    """A writable copy."""
    for file in source.iterdir():
        (target / file.name).write_bytes(file.read_bytes())
    return target


@pytest.mark.parametrize("model_type", ["mixtral", "gpt2"])
def test_weights_have_the_models_names(model_type: str, tmp_path: Path) -> None:
    """Experts that are stored one by one, weights in shards, a tied head."""
    model = tiny_model(model_type)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter.bfloat16())
    # A copy: casting a model rounds its buffers (inv_freq) too, which loading does not.
    copy.deepcopy(model).to(torch.bfloat16).save_pretrained(tmp_path, max_shard_size="100KB")
    checkpoint = open_checkpoint(tmp_path)
    captured = checkpoint.capture()
    weights = captured.weights
    assert set(weights.names()) == {name for name, _ in model.named_parameters()}
    for name, parameter in model.named_parameters():
        want = parameter.detach().numpy()
        assert weights.shape(name) == want.shape and weights.dtype(name) == "BF16"
        np.testing.assert_array_equal(weights.read(name), want)
        np.testing.assert_array_equal(weights.read_rows(name, 1, 3), want[1:3])
    load_parameters(captured.graph, weights)
    with torch.no_grad():
        want = model(torch.tensor([[5, 6, 7]])).logits[0]
    got = Replay(captured.graph).step([5, 6, 7], [0, 1, 2], [0, 0, 0])
    assert float((got - want).abs().max()) < 1e-5 * float(want.abs().max())
    assert captured.model.architecture == model_type and captured.model.eos_token_ids == (2,)
    assert all(path.is_file() for path in captured.source.files.values()) and "config.json" in captured.source.files
    checkpoint.close()


def test_special_tokens_and_sampling(saved: Path, tmp_path: Path) -> None:
    folder = copied(saved, tmp_path)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, 5], "temperature": 0.5, "top_k": 20, "do_sample": True}))
    model = open_checkpoint(folder).capture().model
    assert model.eos_token_ids == (2, 5) and model.generation == {"temperature": 0.5, "top_k": 20.0}


def edit_config(**changes: Any) -> Callable[[Path], None]:
    """Change fields of config.json; None takes a field away."""

    def edit(folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text())
        config = {key: value for key, value in {**config, **changes}.items() if value is not None}
        (folder / "config.json").write_text(json.dumps(config))

    return edit


def edit_weights(change: Callable[[dict[str, Any]], Any]) -> Callable[[Path], None]:
    """Change the tensors of model.safetensors."""

    def edit(folder: Path) -> None:
        tensors = load_file(folder / "model.safetensors")
        change(tensors)
        save_file(tensors, folder / "model.safetensors")

    return edit


def to_int8(tensors: dict[str, Any]) -> None:
    """A weight of a type that is not floating."""
    tensors["model.norm.weight"] = tensors["model.norm.weight"].to(torch.int8)


WRONG: dict[str, tuple[Callable[[Path], Any], type[Exception], str]] = {
    "no config": (lambda f: (f / "config.json").unlink(), CheckpointError, "config.json is missing"),
    "config is not JSON": (lambda f: (f / "config.json").write_text("{"), CheckpointError, "cannot be read as JSON"),
    "no model_type": (edit_config(model_type=None), CheckpointError, "has no model_type"),
    "unknown model_type": (edit_config(model_type="nonesuch"), UnsupportedError, "'nonesuch' is unknown to transformers"),
    "remote code": (edit_config(model_type="x", auto_map={"AutoConfig": "a.B"}), UnsupportedError, "defined by Python code inside"),
    "no language model": (edit_config(model_type="vit"), UnsupportedError, "no causal language model"),
    "quantized": (edit_config(quantization_config={"quant_method": "gptq"}), UnsupportedError, r"already quantized \(gptq\)"),
    "config asks for more layers": (edit_config(num_hidden_layers=3), CheckpointError, r"config asks for .*, not in the checkpoint"),
    "config asks for fewer layers": (edit_config(num_hidden_layers=1), CheckpointError, "for which the config has no place"),
    "config asks for other sizes": (
        edit_config(intermediate_size=96),
        CheckpointError,
        r"shape \[128, 64\], but the config asks for \[96, 64\]",
    ),
    "missing tensor": (edit_weights(lambda t: t.pop("model.norm.weight")), CheckpointError, "config asks for tensor 'model.norm.weight'"),
    "unknown tensor": (edit_weights(lambda t: t.update(extra=torch.zeros(2))), CheckpointError, "the checkpoint has tensor 'extra'"),
    "integer weights": (edit_weights(to_int8), CheckpointError, "'model.norm.weight' in model.safetensors has dtype I8"),
    "no weights": (lambda f: (f / "model.safetensors").unlink(), CheckpointError, "no weights"),
}


@pytest.mark.parametrize("case", WRONG, ids=lambda case: case.replace(" ", "-"))
def test_wrong_directory(case: str, saved: Path, tmp_path: Path) -> None:
    edit, error, message = WRONG[case]
    edit(copied(saved, tmp_path))
    with pytest.raises(error, match=message):
        open_checkpoint(tmp_path)


def test_nan_weights_are_found_when_they_are_read(saved: Path, tmp_path: Path) -> None:
    def spoil(tensors: dict[str, Any]) -> None:
        tensors["model.norm.weight"][5] = float("nan")

    edit_weights(spoil)(copied(saved, tmp_path))
    weights = open_checkpoint(tmp_path).capture().weights
    with pytest.raises(CheckpointError, match=r"'model.norm.weight' of model.safetensors holds 1 NaN and 0 Inf among 64"):
        weights.read("model.norm.weight")


def test_head_that_differs_from_the_embedding_it_should_be_tied_to(saved: Path, tmp_path: Path) -> None:
    edit_config(tie_word_embeddings=True)(copied(saved, tmp_path))
    names = open_checkpoint(tmp_path).weights.names()  # type: ignore[attr-defined]
    assert "lm_head.weight" in names and "model.embed_tokens.weight" in names


@pytest.mark.parametrize("name", ["nothing-here", "weights.safetensors"])
def test_paths_that_are_no_checkpoint(name: str, tmp_path: Path) -> None:
    (tmp_path / "weights.safetensors").write_bytes(b"12345678")
    with pytest.raises(CheckpointError, match=r"no such file|neither a model directory nor a GGUF file"):
        open_checkpoint(tmp_path / name)
