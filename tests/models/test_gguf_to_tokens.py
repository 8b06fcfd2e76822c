"""From a GGUF file to tokens: compiled, loaded and run, it says what transformers says of the same file."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from tokenizers import pre_tokenizers
from transformers import AutoModelForCausalLM

import mixplan
import mixplan.runtime
from mixplan.compiler.frontends.gguf import GgufCheckpoint
from mixplan.compiler.tokenizer.chat_render import render_plan_chat
from mixplan.runtime.errors import MissingExtraError

_TEMPLATE = (
    "{% for m in messages %}<|turn|>{{ m.role }}\n{{ m.content }}{% endfor %}{% if add_generation_prompt %}<|turn|>assistant\n{% endif %}"
)
_COUNTING = "{% for m in messages %}{{ loop.index }}{{ m.content }}{% endfor %}"


def _write(path: Path, template: str) -> Path:
    rng = np.random.default_rng(1)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(128)
    writer.add_embedding_length(32)
    writer.add_block_count(2)
    writer.add_feed_forward_length(64)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(8)
    tokens = [*sorted(pre_tokenizers.ByteLevel.alphabet()), "<|turn|>", "<|end|>"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([gguf.TokenType.NORMAL] * 256 + [gguf.TokenType.CONTROL] * 2)
    writer.add_eos_token_id(257)
    writer.add_chat_template(template)
    shapes: dict[str, tuple[int, ...]] = {"token_embd.weight": (258, 32), "output_norm.weight": (32,)}
    for layer in range(2):
        block = {
            "attn_norm": (32,),
            "attn_q": (32, 32),
            "attn_k": (16, 32),
            "attn_v": (16, 32),
            "attn_output": (32, 32),
            "ffn_norm": (32,),
            "ffn_gate": (64, 32),
            "ffn_up": (64, 32),
            "ffn_down": (32, 64),
        }
        shapes.update({f"blk.{layer}.{name}.weight": shape for name, shape in block.items()})
    for name, shape in shapes.items():
        array = (rng.standard_normal(shape) * (1.0 if len(shape) > 1 else 0.1) + (len(shape) == 1)).astype(np.float32)
        writer.add_tensor(name, gguf.quantize(array, gguf.GGMLQuantizationType.Q8_0) if len(shape) > 1 else array,
                          raw_dtype=gguf.GGMLQuantizationType.Q8_0 if len(shape) > 1 else None)  # fmt: skip
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.filterwarnings("ignore")
def test_tokens_equal_transformers(tmp_path: Path) -> None:
    path = _write(tmp_path / "tiny.gguf", _TEMPLATE)
    mixplan.compile(path, output=tmp_path / "tiny.plan", scheme="FP32", targets=("reference",))
    checkpoint = GgufCheckpoint(path)
    reference = AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file="tiny.gguf", config=checkpoint.config, dtype=torch.float32).eval()
    messages = [{"role": "user", "content": "Count to 12 👋"}]
    with mixplan.runtime.load(tmp_path / "tiny.plan", device="reference") as model:
        for prompt in ("hello 42", messages, [1, 2, 3]):
            done = mixplan.runtime.generate_text(model, prompt, max_tokens=24, temperature=0.0)
            if isinstance(prompt, str):
                ids = model.tokenizer.encode(prompt)
            else:
                ids = model.tokenizer.encode_chat(messages) if prompt is messages else prompt  # type: ignore[assignment]
            with torch.no_grad():
                expected = reference.generate(torch.tensor([ids]), max_new_tokens=24, do_sample=False, eos_token_id=257, pad_token_id=0)
            assert list(done.token_ids) == expected[0, len(ids) :].tolist()
            assert done.text == model.tokenizer.decode(done.token_ids)
        assert model.plan.model.eos_token_ids == (257,)
        assert model.tokenizer.chat is not None
        assert render_plan_chat(model.loaded, messages) == model.tokenizer.chat.render(messages)
        assert model.metrics().sequences == 0


def test_template_that_only_jinja_renders(tmp_path: Path) -> None:
    path = _write(tmp_path / "tiny.gguf", _COUNTING)
    mixplan.compile(path, output=tmp_path / "tiny.plan", scheme="FP32", targets=("reference",))
    with mixplan.runtime.load(tmp_path / "tiny.plan", device="reference") as model:
        messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
        with pytest.raises(MissingExtraError):
            model.generate(messages)
        assert render_plan_chat(model.loaded, messages) == "1a2b"
