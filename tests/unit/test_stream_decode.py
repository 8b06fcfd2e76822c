"""Streaming decode: the pieces add up to the whole text, each whole characters, with few ids decoded again."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

from mixplan.runtime.text.stream import StreamDecoder

_TEXTS = (
    "Hello, world! It's 2026.",
    "naïve café — “quotes”",
    "你好，世界。これは日本語です。",
    "👋🏽👨‍👩‍👧‍👦🇩🇪",
    "def f(x):\n    return x  # two\n\n\n",
    "   leading and trailing   ",
    "mixed 漢字 and emoji 🎉 and é́ accents",
)


def _byte_level() -> Tokenizer:
    """Every byte is a token, so that each character is as many tokens as it has bytes."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _sentencepiece() -> Tokenizer:
    """Letters and byte tokens; a blank before the text."""
    pieces = ["<unk>", *(f"<0x{b:02X}>" for b in range(256)), "▁", *"abcdefghijklmnopqrstuvwxyz", "▁a", "▁i"]
    merges = [("▁", "a"), ("▁", "i")]
    tokenizer = Tokenizer(
        models.BPE(vocab={p: i for i, p in enumerate(pieces)}, merges=merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    )
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    return tokenizer


@pytest.mark.parametrize("make", [_byte_level, _sentencepiece])
@pytest.mark.parametrize("text", _TEXTS)
def test_pieces_add_up_to_the_text(make, text: str) -> None:  # type: ignore[no-untyped-def]
    tokenizer = make()
    longest = 0

    def decode(ids: Sequence[int]) -> str:
        nonlocal longest
        longest = max(longest, len(ids))
        return str(tokenizer.decode(list(ids)))

    stream = StreamDecoder(decode)
    pieces = [stream.push(token) for token in tokenizer.encode(text).ids]
    assert "".join([*pieces, stream.flush()]) == text
    assert not any("\ufffd" in piece for piece in pieces)
    assert longest <= 8


@pytest.mark.parametrize("make", [_byte_level, _sentencepiece])
def test_text_after_a_prompt_keeps_its_leading_blank(make) -> None:  # type: ignore[no-untyped-def]
    tokenizer = make()
    ids = tokenizer.encode("is it a cat and a dog").ids
    for cut in range(1, len(ids)):
        stream = StreamDecoder(tokenizer.decode, ids[:cut])
        pieces = [stream.push(token) for token in ids[cut:]]
        assert tokenizer.decode(ids[:cut]) + "".join(pieces) == "is it a cat and a dog"


def test_incomplete_character_at_the_end() -> None:
    tokenizer = _byte_level()
    ids = tokenizer.encode("ok 你").ids[:-1]
    stream = StreamDecoder(tokenizer.decode)
    assert "".join(stream.push(token) for token in ids) == "ok "
    assert stream.flush() == "\ufffd"
    assert stream.flush() == ""


def test_incomplete_character_after_byte_tokens() -> None:
    # The decoder reads a run of byte tokens with one byte missing as broken altogether; what was shown stays.
    tokenizer = _sentencepiece()
    ids = [tokenizer.token_to_id(f"<0x{b:02X}>") for b in "你".encode() + "好".encode()[:2]]
    stream = StreamDecoder(tokenizer.decode)
    assert "".join(stream.push(token) for token in ids) == "你"
    assert stream.flush() == "\ufffd\ufffd"


def test_prompt_that_ends_in_byte_tokens() -> None:
    tokenizer = _sentencepiece()
    ids = tokenizer.encode("a 你好 dog").ids
    cut = len(ids) - 4
    stream = StreamDecoder(tokenizer.decode, ids[:cut])
    assert "".join(stream.push(token) for token in ids[cut:]) == " dog"


def test_blank_after_a_special_token_stays() -> None:
    tokenizer = _sentencepiece()
    tokenizer.add_special_tokens(["<sep>"])
    sep = tokenizer.token_to_id("<sep>")
    stream = StreamDecoder(tokenizer.decode)
    ids = tokenizer.encode("a").ids
    assert "".join(stream.push(token) for token in [*ids, sep, sep, *ids]) == "a a"


@pytest.mark.parametrize("make", [_byte_level, _sentencepiece])
def test_bytes_that_are_no_utf8_do_not_pile_up(make) -> None:  # type: ignore[no-untyped-def]
    tokenizer = make()
    name = "ÿ" if make is _byte_level else "<0xFF>"
    longest = 0

    def decode(ids: Sequence[int]) -> str:
        nonlocal longest
        longest = max(longest, len(ids))
        return str(tokenizer.decode(list(ids)))

    stream = StreamDecoder(decode)
    bad = tokenizer.token_to_id(name)
    text = "".join(stream.push(bad) for _ in range(200)) + "".join(stream.push(t) for t in tokenizer.encode("abc").ids) + stream.flush()
    assert text.endswith("abc") and text.count("\ufffd") == 200
    assert longest <= 8
