"""Chat messages to the model's prompt, without a template engine.

A plan's `chat.json` holds the model's chat template in literal form: the text between the contents of two messages, which depends on their
roles only, the text in front of the first one, and the text at the end. The compiler derives it from the Jinja template and verifies it
against what the template itself gives; what is not of this form is marked, and only the compile half can render it.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import msgspec

from mixplan.runtime.errors import MissingExtraError, PlanError, RequestError

__all__ = ["DATE_MARK", "END", "GENERATION", "START", "ChatTemplate", "LiteralForm", "Message", "check_messages"]

Message: TypeAlias = Mapping[str, Any]
# What stands for a role in front of the first message, after the last one, and after the last one where an answer is wanted.
START, END, GENERATION = "start", "end", "generation"
# A date in a literal text: the strftime format between these two (of Unicode's private use area).
DATE_MARK = ("\ue0d0", "\ue0d1")
_DATE = re.compile(f"{DATE_MARK[0]}([^{DATE_MARK[1]}]*){DATE_MARK[1]}")
_MAX_BYTES = 1 << 20


class LiteralForm(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """What `chat.json` holds.

    literal: False: the template is not of literal form, for `reason`, and what follows is empty.
    between: "role>next role" -> the text between their contents, where `start`, `end` and `generation` stand for roles too. A pair that is
    missing is an order of roles that the template refuses; one in `elsewhere` is an order that only the template itself can render.
    strip: role -> "both", "left" or "right": the blanks of the content that the template drops.
    not_with: texts for which the template does something else. not_empty: so it does for empty content.
    special_tokens: the template's own variables (bos_token, eos_token, ...).
    """

    literal: bool
    reason: str = ""
    between: dict[str, str] = {}
    elsewhere: tuple[str, ...] = ()
    strip: dict[str, str] = {}
    not_with: tuple[str, ...] = ()
    not_empty: bool = False
    special_tokens: dict[str, str] = {}


class ChatTemplate:
    """Renders messages from a plan's `chat.json`."""

    def __init__(self, form: LiteralForm) -> None:
        self.form = form

    @classmethod
    def from_json(cls, data: bytes) -> ChatTemplate:
        """PlanError where the file is not what PLAN_FORMAT.md says."""
        if len(data) > _MAX_BYTES:
            raise PlanError(f"chat.json has {len(data)} bytes; {_MAX_BYTES} are allowed.", hint="Compile the plan again.")
        try:
            return cls(msgspec.json.decode(data, type=LiteralForm))
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise PlanError(f"chat.json is malformed: {error}.", hint="Compile the plan again.") from error

    def render(self, messages: Sequence[Message], *, add_generation_prompt: bool = True, now: time.struct_time | None = None) -> str:
        """The prompt for messages of the form {"role": "user", "content": "..."}; `now` is for templates that tell the date.

        Raises RequestError for messages that the template refuses, MissingExtraError where only the template itself can render them.
        """
        check_messages(messages)
        if not self.form.literal:
            raise MissingExtraError(f"Rendering this model's chat template ({self.form.reason})", "compile")
        pieces: list[str] = []
        last = START
        for number, message in enumerate(messages):
            role = message["role"]
            pieces += [self._between(last, role, number), self._content(role, message["content"])]
            last = role
        pieces.append(self._between(last, GENERATION if add_generation_prompt else END, len(messages)))
        clock = time.localtime() if now is None else now
        # Contents stand at the odd places, and are left as they are.
        return "".join(piece if at % 2 else _DATE.sub(lambda m: time.strftime(m.group(1), clock), piece) for at, piece in enumerate(pieces))

    def _between(self, last: str, role: str, number: int) -> str:
        text = self.form.between.get(f"{last}>{role}")
        if text is not None:
            return text
        if f"{last}>{role}" in self.form.elsewhere:
            raise MissingExtraError(f"Rendering the role {role!r} after {last!r} with this model's chat template", "compile")
        allowed = sorted(pair.partition(">")[2] for pair in self.form.between if pair.startswith(f"{last}>"))
        where = "at the start" if last == START else f"after {last!r}"
        raise RequestError(f"messages[{number}]: the model's chat template takes no {role!r} {where}; allowed there: {', '.join(allowed)}.")

    def _content(self, role: str, content: str) -> str:
        for text in self.form.not_with:
            if text in content:
                raise MissingExtraError(f"Rendering a message that holds {text!r} with this model's chat template", "compile")
        if self.form.not_empty and not content.strip():
            raise MissingExtraError("Rendering an empty message with this model's chat template", "compile")
        how = self.form.strip.get(role)
        if how == "both":
            return content.strip()
        if how == "left":
            return content.lstrip()
        return content.rstrip() if how == "right" else content


def check_messages(messages: Sequence[Message]) -> None:
    """RequestError unless this is a list of messages, each with a role and text."""
    if isinstance(messages, (str, Mapping)) or not messages:
        raise RequestError(f"messages is {messages!r}; it must be a list of at least one {{'role': ..., 'content': ...}}.")
    for number, message in enumerate(messages):
        if not isinstance(message, Mapping) or not all(isinstance(message.get(key), str) for key in ("role", "content")):
            raise RequestError(f"messages[{number}] is {message!r}; it must have the texts 'role' and 'content'.")
        if message["role"] in (START, END, GENERATION):
            raise RequestError(f"messages[{number}] has the role {message['role']!r}, which is none.")
