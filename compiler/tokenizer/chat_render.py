"""Rendering a chat template with Jinja itself, sandboxed, in the environment that transformers gives to templates."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from mixplan.runtime.errors import CheckpointError, MissingExtraError, RequestError
from mixplan.runtime.text.chat import LiteralForm, Message, check_messages

if TYPE_CHECKING:
    from mixplan.runtime.plan_io import LoadedPlan

__all__ = ["TemplateRefusal", "compile_template", "render_plan_chat"]

Render = Callable[..., str]


class TemplateRefusal(Exception):  # noqa: N818  internal: callers turn it into the error that fits
    """The template raised, on purpose or not."""


def compile_template(template: str, special_tokens: Mapping[str, str]) -> Render:
    """A function (messages, add_generation_prompt, strftime=None) -> text; raises TemplateRefusal.

    A template that is not valid Jinja raises CheckpointError at once. `strftime` replaces the clock that a template may ask for the date.
    """
    try:
        import jinja2
        from jinja2.ext import Extension, loopcontrols
        from jinja2.sandbox import ImmutableSandboxedEnvironment
    except ImportError as error:
        raise MissingExtraError("Rendering a chat template", "compile") from error

    class Generation(Extension):
        """`{% generation %}` marks what the assistant said, for training; here it renders its body."""

        tags = {"generation"}  # noqa: RUF012  jinja2's own interface

        def parse(self, parser: Any) -> Any:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return jinja2.nodes.Scope(body).set_lineno(line)

    def refuse(message: str) -> None:
        raise jinja2.TemplateError(message)

    def tojson(value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False) -> str:
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols])
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = refuse
    try:
        compiled = environment.from_string(template)
    except Exception as error:  # besides its own errors, what a strange template makes of the parser
        raise CheckpointError(
            f"The chat template is not valid Jinja: {type(error).__name__}: {error}.", hint="Mend or remove it in the checkpoint."
        ) from error

    def render(messages: Sequence[Message], add_generation_prompt: bool, strftime: Callable[[str], str] | None = None) -> str:
        clock = strftime if strftime is not None else datetime.now().astimezone().strftime
        plain = [dict(message) for message in messages]
        try:
            return compiled.render(
                messages=plain,
                tools=None,
                documents=None,
                add_generation_prompt=add_generation_prompt,
                strftime_now=clock,
                **special_tokens,
            )
        except Exception as error:  # a template is a program: it may fail in any way
            raise TemplateRefusal(f"{type(error).__name__}: {error}") from error

    return render


def render_plan_chat(plan: LoadedPlan, messages: Sequence[Message], *, add_generation_prompt: bool = True) -> str:
    """What the plan's own Jinja template makes of the messages: for templates that are not of literal form."""
    import msgspec

    check_messages(messages)
    if "chat_template.jinja" not in plan.files:
        raise RequestError("This model has no chat template.", hint="Give the prompt as text.")
    special = msgspec.json.decode(plan.read_file("chat.json"), type=LiteralForm).special_tokens
    render = compile_template(plan.read_file("chat_template.jinja").decode("utf-8"), special)
    try:
        return render(messages, add_generation_prompt)
    except TemplateRefusal as error:
        raise RequestError(f"The model's chat template refuses these messages: {error}.") from error
