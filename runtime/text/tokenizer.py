"""A plan's tokenizer: text to token ids and back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from mixplan.runtime.errors import PlanError, RequestError, UnsupportedError
from mixplan.runtime.text.chat import ChatTemplate, Message

if TYPE_CHECKING:
    from mixplan.runtime.plan_io import LoadedPlan

__all__ = ["Tokenizer"]


@contextmanager
def _sound() -> Iterator[None]:
    """PlanError where the library fails: a panic inside it is no Exception, and would pass every handler."""
    try:
        yield
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise PlanError(f"tokenizer.json is malformed: {error}.", hint="Compile the plan again.") from error


class Tokenizer:
    """Wraps the `tokenizers` library, which is imported here only, when the first tokenizer is made."""

    def __init__(self, data: bytes, chat: ChatTemplate | None = None) -> None:
        """`data`: the content of a tokenizer.json. `chat`: the model's chat template, None where it has none."""
        try:
            from tokenizers import Tokenizer as Backend
        except ImportError as error:
            raise UnsupportedError(
                "Text needs the package tokenizers, which is not installed.", hint="Run: pip install tokenizers"
            ) from error
        with _sound():
            self._backend: Any = Backend.from_str(data.decode("utf-8"))
        # A checkpoint's settings for training batches have no place in inference.
        self._backend.no_truncation()
        self._backend.no_padding()
        self.chat = chat

    @classmethod
    def from_plan(cls, plan: LoadedPlan) -> Tokenizer:
        """The tokenizer of an opened plan; RequestError where the plan has none."""
        if "tokenizer.json" not in plan.files:
            raise RequestError("This plan has no tokenizer.json: its checkpoint had no tokenizer.", hint="Give token ids instead of text.")
        chat = ChatTemplate.from_json(plan.read_file("chat.json")) if "chat.json" in plan.files else None
        return cls(plan.read_file("tokenizer.json"), chat)

    @property
    def vocab_size(self) -> int:
        """Number of tokens, added ones counted in. The model's vocabulary may be padded to more."""
        return int(self._backend.get_vocab_size(with_added_tokens=True))

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids. `add_special_tokens`: also the BOS or EOS that the model expects around a text; off for a rendered chat."""
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise RequestError(f"The text is not valid Unicode: {error}.", hint="Read it with the encoding that it has.") from None
        with _sound():
            return list(self._backend.encode(text, add_special_tokens=add_special_tokens).ids)

    def encode_chat(self, messages: Sequence[Message], *, add_generation_prompt: bool = True) -> list[int]:
        """Token ids of messages put into the model's chat template."""
        if self.chat is None:
            raise RequestError("This model has no chat template.", hint="Give the prompt as text.")
        return self.encode(self.chat.render(messages, add_generation_prompt=add_generation_prompt), add_special_tokens=False)

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Text of token ids; ids that the tokenizer does not know read as nothing."""
        with _sound():
            return str(self._backend.decode(list(ids), skip_special_tokens=skip_special_tokens))

    def token_to_id(self, token: str) -> int | None:
        """The id of a token by its exact text, None where there is none."""
        found = self._backend.token_to_id(token)
        return None if found is None else int(found)

    def id_to_token(self, index: int) -> str | None:
        """The token's text as the vocabulary spells it."""
        found = self._backend.id_to_token(index)
        return None if found is None else str(found)
