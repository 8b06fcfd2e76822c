"""`mixplan export`: what transformers and the compressed-tensors library load from it has the plan's own weights and its logits."""

from __future__ import annotations

import json
import shutil
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner, Result
from safetensors.torch import load_file

from mixplan.cli import main
from mixplan.compiler.compressed_tensors.export import export_plan
from mixplan.compiler.compressed_tensors.shards import ShardWriter
from mixplan.compiler.compressed_tensors.tensors import pack_int32
from mixplan.compiler.frontends.tiny import tiny_model
from mixplan.compiler.pipeline import compile as compile_plan
from mixplan.runtime import load
from mixplan.runtime.dtypes import DType
from mixplan.runtime.errors import CheckpointError, OptionError, OutputError, UnsupportedError
from mixplan.runtime.formats import WeightFormat
from mixplan.runtime.packing import split_gated, unpack
from mixplan.runtime.plan_io import read_plan

_IDS = [3, 17, 101, 42, 7, 9, 250, 33, 8, 12, 77]
_LAYER0 = "model.layers.0"


@pytest.fixture(scope="module")
def qwen2_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Biases in Q, K and V; a head tied to the embedding; bfloat16."""
    folder = tmp_path_factory.mktemp("export") / "tiny-qwen2"
    tiny_model("qwen2", tie_word_embeddings=True, seed=3).to(torch.bfloat16).save_pretrained(folder)
    return folder


def _plan(model: Path, output: Path, scheme: str, *overrides: str, **options: Any) -> Path:
    compile_plan(
        model, output=output, scheme=scheme, overrides=overrides, targets=("reference",), max_step_tokens=32, kv_dtype="f32", **options
    )
    return output


def _plan_logits(plan: Path) -> np.ndarray:
    with load(plan, device="reference") as model:
        return model.step(_IDS, list(range(len(_IDS))), [0] * len(_IDS), "all")


def _engine_logits(model: Any) -> np.ndarray:
    with torch.no_grad(), warnings.catch_warnings():  # other packages' own
        warnings.simplefilter("ignore")
        return model(torch.tensor([_IDS])).logits[0].numpy()


def _by_transformers(folder: Path) -> Any:
    from transformers import AutoModelForCausalLM

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


def _by_the_library(folder: Path) -> Any:
    """A plain model with the weights that the library decompresses: transformers cannot load packed zero points."""
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization import QuantizationConfig
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.from_pretrained(folder)
    quantization = QuantizationConfig.model_validate(config.quantization_config)
    del config.quantization_config
    state = load_file(folder / "model.safetensors")
    for scheme in quantization.config_groups.values():
        compressor = BaseCompressor.get_value_from_registry(getattr(scheme.format, "value", scheme.format))
        for name in scheme.targets:
            parts = {
                key.removeprefix(f"{name}."): state.pop(key) for key in list(state) if key.startswith(f"{name}.") and "bias" not in key
            }
            state[f"{name}.weight"] = compressor.decompress(parts, scheme)["weight"]
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    missing = model.load_state_dict({key: value.float() for key, value in state.items()}, strict=False)
    assert not missing.unexpected_keys and set(missing.missing_keys) <= {"lm_head.weight"}
    return model


def _relative(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.abs(a - b).max() / np.abs(b).max())


# Between two ways to sum in float32 through two layers.
_SUMS = 2e-5
# One layer's input is rounded to bfloat16 by the plan alone.
_BF16 = 5e-3
# The library's scales of int8 inputs are 127 / 127.5 of the plan's.
_INT8 = 0.06
# A number near the middle of two floats may be rounded either way, by 1/16 of it; and a tied head's input stays unrounded in the engine.
_FLOATS = 0.15


@pytest.mark.parametrize(
    ("scheme", "overrides", "limit"),
    [
        ("W4A16:g32", ("re:down_proj=W8A16", "re:layers.1.*(gate_proj|up_proj)=FP32"), _SUMS),
        ("W4A16:g32", ("re:layers.1.*o_proj=BF16",), _BF16),
        ("W4A16:g32,asym", ("re:o_proj=W8A16:g64,asym", "re:layers.0.mlp.down_proj=W8A16:asym"), _SUMS),
        ("W3A16:g32", ("re:o_proj=W5A16:g32", "re:(q|k|v)_proj=W6A16:g64", "re:down_proj=W2A16:g32"), _SUMS),
        ("W4A16:g32,s8", ("re:o_proj=W8A16:g32,s32", "re:down_proj=W6A16:g32,s8,asym"), _SUMS),
        ("W4A8:g32", ("re:down_proj=W8A8", "re:o_proj=W8A8:g32"), _INT8),
        ("W8A16:e4m3", ("re:down_proj=W4A16:g32",), _SUMS),
        ("FP8", (), _FLOATS),
    ],
)
@pytest.mark.parametrize("kind", ["llama", "qwen2"])
def test_what_is_loaded_computes_the_plans_logits(
    scheme: str, overrides: tuple[str, ...], limit: float, kind: str, tiny_llama_dir: Path, qwen2_dir: Path, tmp_path: Path
) -> None:
    model = {"llama": tiny_llama_dir, "qwen2": qwen2_dir}[kind]
    plan = _plan(model, tmp_path / "a.plan", scheme, *overrides)
    report = export_plan(plan, model, tmp_path / "out", dtype="float32")
    assert sum(report.groups.values()) + report.plain == 15  # seven linear modules in each of two layers, and the head
    asymmetric = any("asym" in text for text in (scheme, *overrides))
    loaded = _by_the_library(tmp_path / "out") if asymmetric else _by_transformers(tmp_path / "out")
    assert _relative(_engine_logits(loaded), _plan_logits(plan)) < limit


def test_weights_are_the_plans_own_to_the_last_bit(tiny_llama_dir: Path, tmp_path: Path) -> None:
    plan = _plan(tiny_llama_dir, tmp_path / "a.plan", "W4A16:g32", "re:o_proj=W4A16:g32,asym", "re:mlp=W3A16:g64,s8")
    export_plan(plan, tiny_llama_dir, tmp_path / "out", dtype="float32")
    model = _by_the_library(tmp_path / "out")
    weights = {name: module.weight.detach().numpy() for name, module in model.named_modules() if isinstance(module, torch.nn.Linear)}
    with read_plan(plan) as loaded:

        def held(name: str, fmt: WeightFormat, rows: int, columns: int, gated: bool = False) -> list[np.ndarray]:
            index = {value.name: i for i, value in enumerate(loaded.plan.values)}
            roles = {"weight": name, "scales": f"{name}.scales", "zeros": f"{name}.zeros"}
            packed = {role: loaded.constant(index[value]) for role, value in roles.items() if value in index}
            return [unpack(fmt, part, rows, columns) for part in (split_gated(packed) if gated else (packed,))]

        (qkv,) = held(f"{_LAYER0}.self_attn.q_proj.weight+2", WeightFormat.of("i4", 32), 128, 64)
        for name, rows in (("q", slice(0, 64)), ("k", slice(64, 96)), ("v", slice(96, 128))):
            np.testing.assert_array_equal(weights[f"{_LAYER0}.self_attn.{name}_proj"], qkv[rows])
        (out,) = held(f"{_LAYER0}.self_attn.o_proj.weight", WeightFormat.of("i4", 32, False), 64, 64)
        np.testing.assert_array_equal(weights[f"{_LAYER0}.self_attn.o_proj"], out)
        three = WeightFormat.of("i3", 64, True, DType.i8)
        gate, up = held(f"{_LAYER0}.mlp.gate_proj.weight", three, 128, 64, gated=True)
        np.testing.assert_array_equal(weights[f"{_LAYER0}.mlp.gate_proj"], gate)
        np.testing.assert_array_equal(weights[f"{_LAYER0}.mlp.up_proj"], up)
        (head,) = held("lm_head.weight", WeightFormat.of("i8"), 512, 64)
        np.testing.assert_array_equal(weights["lm_head"], head)
    for name, norm in load_file(tiny_llama_dir / "model.safetensors").items():
        if "norm" in name:
            np.testing.assert_array_equal(model.state_dict()[name].numpy(), norm.numpy())


def test_codes_are_packed_as_the_library_packs_them() -> None:
    from compressed_tensors.compressors.pack_quantized.helpers import pack_to_int32, unpack_from_int32

    rng = np.random.default_rng(0)
    for bits in (2, 3, 4, 5, 6, 8):
        codes = rng.integers(0, 1 << bits, (5, 70), dtype=np.uint8)
        signed = torch.from_numpy((codes.astype(np.int16) - (1 << bits - 1)).astype(np.int8))
        packed = pack_int32(codes, bits)
        np.testing.assert_array_equal(packed, pack_to_int32(signed, bits).numpy())
        np.testing.assert_array_equal(unpack_from_int32(torch.from_numpy(packed), bits, signed.shape).numpy(), signed.numpy())


def test_config_and_files(tiny_llama_dir: Path, tmp_path: Path) -> None:
    plan = _plan(tiny_llama_dir, tmp_path / "a.plan", "W4A8:g32", "re:down_proj=W8A8", "re:layers.1.self_attn=BF16")
    done = _export(plan, "--model", tiny_llama_dir, "-o", tmp_path / "out", "--json")
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    assert report["plain"] == 4 and report["dtype"] == "float32" and report["tables"] == ["model.embed_tokens"]
    assert report["groups"] == {
        "int4 groups of 32, symmetric, inputs int8 (pack-quantized)": 8,
        "int8 per channel, symmetric, inputs int8 (int-quantized)": 3,
    }
    assert any("127.5" in note for note in report["notes"])
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    quantization = config["quantization_config"]
    assert quantization["quant_method"] == "compressed-tensors" and quantization["format"] == "mixed-precision"
    assert sorted(quantization["ignore"]) == [f"model.layers.1.self_attn.{name}_proj" for name in "koqv"]
    four, eight = quantization["config_groups"].values()
    assert eight["targets"] == [f"model.layers.{i}.mlp.down_proj" for i in (0, 1)] + ["lm_head"]
    assert four["weights"] == {"num_bits": 4, "type": "int", "symmetric": True, "dynamic": False, "strategy": "group", "group_size": 32}
    assert four["input_activations"]["strategy"] == "group" and eight["input_activations"]["strategy"] == "token"
    assert four["input_activations"]["dynamic"] is True
    tensors = load_file(tmp_path / "out" / "model.safetensors")
    assert tensors[f"{_LAYER0}.mlp.down_proj.weight"].dtype == torch.int8
    assert tensors[f"{_LAYER0}.self_attn.q_proj.weight_packed"].shape == (64, 8)
    assert list(tensors[f"{_LAYER0}.self_attn.q_proj.weight_shape"]) == [64, 64]
    assert tensors[f"{_LAYER0}.self_attn.q_proj.weight_scale"].dtype == torch.float32
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json", "chat_template.jinja"):
        assert (tmp_path / "out" / name).read_bytes() == (tiny_llama_dir / name).read_bytes()
    done = _export(plan, "--model", tiny_llama_dir, "-o", tmp_path / "out", "--weight-only", "--dtype", "float16")
    assert done.exit_code == 2 and "exists" in done.output
    done = _export(plan, "--model", tiny_llama_dir, "-o", tmp_path / "out", "--weight-only", "--dtype", "float16", "--force")
    assert done.exit_code == 0 and "unrounded" in done.output and "--weight-only" in done.output
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert all(group["input_activations"] is None for group in config["quantization_config"]["config_groups"].values())
    assert config["dtype"] == "float16"
    assert load_file(tmp_path / "out" / "model.safetensors")[f"{_LAYER0}.self_attn.q_proj.weight_scale"].dtype == torch.float16


def test_a_plan_without_quantized_layers_is_a_plain_checkpoint(qwen2_dir: Path, tmp_path: Path) -> None:
    plan = _plan(qwen2_dir, tmp_path / "a.plan", "BF16")
    export_plan(plan, qwen2_dir, tmp_path / "out")
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert "quantization_config" not in config and config["dtype"] == "bfloat16"
    assert _relative(_engine_logits(_by_transformers(tmp_path / "out")), _plan_logits(plan)) < 0.02


def test_many_shards_have_an_index(qwen2_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ShardWriter.__init__, "__defaults__", (20_000,))
    plan = _plan(qwen2_dir, tmp_path / "a.plan", "W4A16:g32")
    report = export_plan(plan, qwen2_dir, tmp_path / "out", dtype="float32")
    index = json.loads((tmp_path / "out" / "model.safetensors.index.json").read_text())
    assert len(set(index["weight_map"].values())) > 3 and index["metadata"]["total_size"] == report.nbytes
    assert _relative(_engine_logits(_by_transformers(tmp_path / "out")), _plan_logits(plan)) < _SUMS


def test_what_has_no_counterpart_is_named(tiny_llama_dir: Path, tmp_path: Path) -> None:
    plan = _plan(tiny_llama_dir, tmp_path / "a.plan", "W4A16:g32", "re:o_proj=W3A16:g32,nl", "re:layers.1.mlp.down_proj=W4A16:g32,min")
    done = _export(plan, "--model", tiny_llama_dir, "-o", tmp_path / "out")
    assert done.exit_code == 2 and not (tmp_path / "out").exists()
    for words in ("3 layers have", "model.layers.0.self_attn.o_proj (W3A16:g32,nl): its codes are entries", "f16 minima", "--override"):
        assert words in done.output
    assert "q_proj" not in done.output
    plan = _plan(tiny_llama_dir, tmp_path / "b.plan", "W4A16:g128")
    with pytest.raises(UnsupportedError, match="its 64 columns are no multiple of the group of 128"):
        export_plan(plan, tiny_llama_dir, tmp_path / "out")


def test_scaled_plans_are_refused(tiny_llama_dir: Path, tmp_path: Path) -> None:
    plan = _plan(tiny_llama_dir, tmp_path / "a.plan", "W4A16:g32", scaling="awq", text=list(range(3, 250)))
    with pytest.raises(UnsupportedError, match="--scaling awq"):
        export_plan(plan, tiny_llama_dir, tmp_path / "out")


def test_experts_are_refused(tmp_path: Path) -> None:
    model = tmp_path / "moe"
    tiny_model("mixtral", seed=1).save_pretrained(model)
    for name, overrides in (("a.plan", ()), ("b.plan", ("re:experts=FP32",))):
        plan = _plan(model, tmp_path / name, "W4A16:g32", *overrides)
        with pytest.raises(UnsupportedError, match="of experts, for which this export has no layout"):
            export_plan(plan, model, tmp_path / "out")


def test_the_model_must_be_the_plans_own(tiny_llama_dir: Path, qwen2_dir: Path, tmp_path: Path) -> None:
    plan = _plan(tiny_llama_dir, tmp_path / "a.plan", "W4A16:g32")
    other = tmp_path / "other"
    shutil.copytree(tiny_llama_dir, other)
    tiny_model("llama", seed=9, vocab_size=512, bos_token_id=0, eos_token_id=1, pad_token_id=1).save_pretrained(other)
    for model in (other, qwen2_dir):
        with pytest.raises(CheckpointError, match="not the checkpoint that the plan was compiled from"):
            export_plan(plan, model, tmp_path / "out")
    with pytest.raises(CheckpointError, match="no such file"):
        export_plan(plan, tmp_path / "nowhere", tmp_path / "out")
    with pytest.raises(OptionError, match="dtype is 'int8'"):
        export_plan(plan, tiny_llama_dir, tmp_path / "out", dtype="int8")
    (tmp_path / "mine").mkdir()
    with pytest.raises(OutputError, match="not an export of a plan"):
        export_plan(plan, tiny_llama_dir, tmp_path / "mine", force=True)
    done = _export(plan, "-o", tmp_path / "out")
    assert done.exit_code == 2 and "--model" in done.output
    assert not (tmp_path / "out").exists()


def _export(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["export", *map(str, arguments)])
