"""A plan's tokenizer: text to token ids and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from mixplan.runtime.errors import RequestError
from mixplan.runtime.text.backend import ParsedAhead, parse, sound
from mixplan.runtime.text.chat import ChatTemplate, Message

if TYPE_CHECKING:
    from mixplan.runtime.plan_io import LoadedPlan

__all__ = ["Tokenizer"]


class Tokenizer:
    """Wraps the `tokenizers` library, which is imported when the first tokenizer is made."""

    def __init__(self, data: bytes, chat: ChatTemplate | None = None, *, backend: Any = None) -> None:
        """`data`: the content of a tokenizer.json, or `backend`: what the library made of it. `chat`: None without a chat template."""
        self._backend: Any = parse(data) if backend is None else backend
        self.chat = chat

    @classmethod
    def from_plan(cls, plan: LoadedPlan, ahead: ParsedAhead | None = None) -> Tokenizer:
        """The tokenizer of an opened plan, which `ahead` may have made already; RequestError where the plan has none."""
        entry = plan.plan.files.get("tokenizer.json")
        if entry is None:
            raise RequestError("This plan has no tokenizer.json: its checkpoint had no tokenizer.", hint="Give token ids instead of text.")
        chat = ChatTemplate.from_json(plan.read_file("chat.json")) if "chat.json" in plan.files else None
        backend = None if ahead is None else ahead.take(entry.sha256)
        return cls(b"" if backend is not None else plan.read_file("tokenizer.json"), chat, backend=backend)

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
        with sound():
            return list(self._backend.encode(text, add_special_tokens=add_special_tokens).ids)

    def encode_chat(self, messages: Sequence[Message], *, add_generation_prompt: bool = True) -> list[int]:
        """Token ids of messages put into the model's chat template."""
        if self.chat is None:
            raise RequestError("This model has no chat template.", hint="Give the prompt as text.")
        return self.encode(self.chat.render(messages, add_generation_prompt=add_generation_prompt), add_special_tokens=False)

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Text of token ids; ids that the tokenizer does not know read as nothing."""
        with sound():
            return str(self._backend.decode(list(ids), skip_special_tokens=skip_special_tokens))

    def token_to_id(self, token: str) -> int | None:
        """The id of a token by its exact text, None where there is none."""
        found = self._backend.token_to_id(token)
        return None if found is None else int(found)

    def id_to_token(self, index: int) -> str | None:
        """The token's text as the vocabulary spells it."""
        found = self._backend.id_to_token(index)
        return None if found is None else str(found)
