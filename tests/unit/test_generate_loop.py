"""The generation loop over a model that counts: what it feeds, when it stops, what it frees."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers

from mixplan.runtime.errors import RequestError
from mixplan.runtime.generate import Chunk, collect, generate, generate_batch, generate_text
from mixplan.runtime.hal import CacheSpec
from mixplan.runtime.sampling import SamplingParams
from mixplan.runtime.text.chat import ChatTemplate, LiteralForm
from mixplan.runtime.text.tokenizer import Tokenizer

_VOCAB = 256
_EOS = 0


def _tokenizer() -> Tokenizer:
    """One token per byte."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Backend(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    form = LiteralForm(literal=True, between={"start>user": "<", "user>generation": ">"})
    return Tokenizer(backend.to_str().encode(), ChatTemplate(form))


class CountingModel:
    """Its next token is `script[position]`, whatever the prompt: position is that of the token fed last. Checks the step's rules."""

    def __init__(
        self, script: bytes | list[int] = b"", *, max_step_tokens: int = 8, sequences: int = 4, pages: int = 8, context: int = 64
    ) -> None:
        self.tokenizer = _tokenizer()
        ids = self.tokenizer.encode(script.decode()) if isinstance(script, bytes) else script
        self.script = ids + [_EOS] * context
        record = SimpleNamespace(context_length=context, vocab_size=_VOCAB, eos_token_ids=(_EOS,), generation={})
        self.plan: Any = SimpleNamespace(model=record, files={"tokenizer.json": None}, max_step_tokens=max_step_tokens)
        self.max_step_tokens = max_step_tokens
        self.caches = CacheSpec(pages=pages, page_size=8, max_sequences=sequences, max_pages_per_sequence=min(pages, context // 8))
        self.lengths: dict[int, int] = {}
        self.steps: list[int] = []
        self.rows = 0

    def step(self, token_ids: Any, positions: Any, sequences: Any, logits: Any = "last") -> NDArray[np.float32]:
        assert 0 < len(token_ids) <= self.max_step_tokens and len(token_ids) == len(positions) == len(sequences)
        for position, sequence in zip(positions, sequences, strict=True):
            assert self.lengths.get(sequence, 0) == position
            self.lengths[sequence] = position + 1
        assert len(self.lengths) <= self.caches.max_sequences
        assert sum(-(-length // 8) for length in self.lengths.values()) <= self.caches.pages
        self.steps.append(len(token_ids))
        rows = [] if isinstance(logits, str) else list(logits)
        self.rows += len(rows)
        out = np.zeros((len(rows), _VOCAB), np.float32)
        for row, at in enumerate(rows):
            out[row, self.script[positions[at]]] = 9.0
        return out

    def free(self, sequence: int) -> None:
        del self.lengths[sequence]


def _text(model: CountingModel, prompt: Any, **settings: Any) -> tuple[str, str]:
    done = generate_text(model, prompt, **settings)
    assert model.lengths == {}
    return done.text, done.finish_reason


def test_until_the_end_token() -> None:
    # The script begins at the prompt's last token: "ab" has positions 0 and 1.
    model = CountingModel(b"?hello")
    assert _text(model, "ab") == ("hello", "eos")
    assert model.steps == [2, 1, 1, 1, 1, 1]


def test_statistics() -> None:
    ticks = iter(range(100))
    chunks = list(generate_batch(CountingModel(b"?hey"), ["ab"], clock=lambda: float(next(ticks))))
    assert [chunk.elapsed for chunk in chunks] == [1.0, 2.0, 3.0, 4.0]
    stats = chunks[-1].stats
    assert stats is not None and all(chunk.stats is None for chunk in chunks[:-1])
    assert (stats.prompt_tokens, stats.new_tokens, stats.ttft, stats.total) == (2, 4, 1.0, 4.0)
    assert stats.tokens_per_second == 1.0 and stats.prompt_tokens_per_second == 2.0


def test_max_tokens() -> None:
    assert _text(CountingModel(b"?hello"), "ab", max_tokens=3) == ("hel", "length")


def test_a_full_context_ends_the_text() -> None:
    model = CountingModel([5] * 64, context=16)
    done = generate_text(model, [1] * 10, max_tokens=None)
    assert (len(done.token_ids), done.finish_reason) == (6, "length")


def test_end_tokens_can_be_ignored() -> None:
    model = CountingModel([_EOS] * 9)
    assert len(generate_text(model, [1], ignore_eos=True, max_tokens=5).token_ids) == 5


def test_whole_characters_only() -> None:
    chunks = list(generate(CountingModel("?né你👋.".encode()), "ab"))
    assert [chunk.text for chunk in chunks if chunk.text] == ["n", "é", "你", "👋", "."]


def test_incomplete_character_at_the_limit() -> None:
    assert _text(CountingModel("?n你".encode()), "ab", max_tokens=3) == ("n\ufffd", "length")


def test_stop_string_across_tokens() -> None:
    model = CountingModel(b"?one\n\nUser: two")
    done = generate_text(model, "ab", stop=("\n\nUser:",))
    assert (done.text, done.finish_reason, done.stop) == ("one", "stop", "\n\nUser:")
    assert model.lengths == {}


def test_text_held_back_for_a_stop_string_comes_at_the_end() -> None:
    assert _text(CountingModel(b"?one\n\n"), "ab", stop=("\n\nUser:",)) == ("one\n\n", "eos")


def test_long_prompts_go_in_chunks_and_only_the_last_row_is_asked_for() -> None:
    model = CountingModel([7] * 64)
    generate_text(model, [1] * 21, max_tokens=2)
    assert model.steps == [8, 8, 5, 1]
    assert model.rows == 2


def test_closing_early_frees_the_sequence() -> None:
    model = CountingModel(b"?hello")
    chunks = generate(model, "ab")
    assert next(chunks).text == "h"
    assert len(model.lengths) == 1
    chunks.close()  # type: ignore[attr-defined]
    assert model.lengths == {}


def test_a_failing_step_frees_the_sequence() -> None:
    model = CountingModel([5, 300, 5])
    with pytest.raises(IndexError):
        generate_text(model, [1])
    assert model.lengths == {}


def test_chat_messages() -> None:
    model = CountingModel(b"???ok")
    assert _text(model, [{"role": "user", "content": "hi"}]) == ("ok", "eos")
    assert model.steps[0] == 4


def test_a_batch_gives_each_what_it_gets_alone() -> None:
    prompts = ["a" * n for n in (1, 5, 20, 3, 11, 2)]
    script = "".join(chr(97 + n % 26) for n in range(60)).encode()
    params = SamplingParams(max_tokens=9)
    alone = [generate_text(CountingModel(script), prompt, params).text for prompt in prompts]
    model = CountingModel(script)
    together = collect(generate_batch(model, prompts, params))
    assert [done.text for done in together] == alone
    assert model.lengths == {}
    assert max(model.steps) == 8


def test_a_batch_waits_for_pages() -> None:
    # Each takes 3 pages of 8 tokens at most, and there are 4: one after the other.
    model = CountingModel([5] * 64, pages=4, context=32)
    done = collect(generate_batch(model, [[1] * 12, [2] * 12, [3] * 12], SamplingParams(max_tokens=10)))
    assert [len(d.token_ids) for d in done] == [10, 10, 10]


def test_params_for_each() -> None:
    model = CountingModel([5] * 64)
    done = collect(generate_batch(model, [[1], [2]], [SamplingParams(max_tokens=2), SamplingParams(max_tokens=4)]))
    assert [len(d.token_ids) for d in done] == [2, 4]
    with pytest.raises(RequestError, match="1 params for 2 prompts"):
        generate_batch(model, [[1], [2]], [SamplingParams()])


def test_the_models_defaults_count() -> None:
    model = CountingModel(b"?hello")
    model.plan.model.generation = {"temperature": 0.5, "top_k": 3.0}
    assert next(generate(model, "ab", seed=1)).token_id == model.script[1]


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ("", "no tokens"),
        ([], "no tokens"),
        ([1, 256], r"prompt\[1\] is 256; token ids are whole numbers from 0 to 255"),
        ([1, -1], "is -1"),
        ([1.5], "is 1.5"),
        ([1] * 64, "64 tokens; at most 63 leave room"),
        ([{"role": "robot", "content": "x"}], "no 'robot'|takes no 'robot'"),
        ([{"role": "user"}], "must have the texts"),
    ],
)
def test_refused_before_the_first_step(prompt: Any, message: str) -> None:
    model = CountingModel(b"?hello")
    with pytest.raises(RequestError, match=message):
        generate(model, prompt)
    assert model.steps == []


def test_params_and_settings_together_are_refused() -> None:
    with pytest.raises(RequestError, match="not both"):
        generate(CountingModel(), "ab", SamplingParams(), top_k=3)


def test_no_text_is_wanted() -> None:
    model = CountingModel(b"?hello")
    assert {chunk.text for chunk in generate(model, "ab", text=False)} == {""}
    with pytest.raises(RequestError, match="text=False decodes none"):
        generate(model, "ab", text=False, stop=("x",))


def test_stop_strings_need_a_tokenizer() -> None:
    model = CountingModel([5] * 64)
    model.plan.files = {}
    with pytest.raises(RequestError, match="no tokenizer"):
        generate(model, [1, 2], stop=("x",))


def test_token_ids_without_a_tokenizer() -> None:
    model = CountingModel([5] * 64)
    model.plan.files = {}
    model.tokenizer = None  # type: ignore[assignment]
    chunks = list(generate(model, [1, 2], max_tokens=3))
    assert [(chunk.text, chunk.token_id) for chunk in chunks] == [("", 5)] * 3
    assert isinstance(chunks[0], Chunk)
