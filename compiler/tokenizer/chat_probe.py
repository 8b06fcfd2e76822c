"""A Jinja chat template's literal form, found by rendering probe conversations, and verified on others.

Most templates only put fixed text around each message. Rendering messages whose contents are marks shows that text; that it depends on
nothing but the two roles is then checked, and so is what the template does with blanks, empty content, and the texts that it looks for.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence

import msgspec

from mixplan.compiler.tokenizer.chat_render import Render, TemplateRefusal, compile_template
from mixplan.runtime.errors import MixplanError
from mixplan.runtime.text.chat import DATE_MARK, END, GENERATION, START, ChatTemplate, LiteralForm, Message

__all__ = ["chat_files", "literal_form"]

_ROLES = ("system", "user", "assistant")
_LETTER = {"s": "system", "u": "user", "a": "assistant"}
# Every conversation that waits for an answer must be literal, or the template is not; with a system message, or without it alone.
_PLAIN = ("u", "uau", "uauau")
_WITH_SYSTEM = ("su", "suau", "suauau")
_CONTENTS = (
    "Hello, world!",
    "¿Qué? 你好 👋🏽",
    "two\n\nlines\tand { braces }",
    "{{ 7 * 7 }} <b>&amp;</b> 'quoted' \"twice\"",
    "0",
    "x" * 300,
)
_BLANK = " \n"
_ESCAPE, _ESCAPES = re.compile(r"\\(.)"), {"n": "\n", "t": "\t", "r": "\r"}


class _NotLiteral(Exception):  # noqa: N818  control flow of this module
    pass


def chat_files(template: str, special_tokens: Mapping[str, str]) -> tuple[dict[str, bytes], tuple[str, ...]]:
    """The plan's `chat.json` and `chat_template.jinja`, and a note where the runtime cannot render the template by itself."""
    form = literal_form(template, special_tokens)
    files = {"chat.json": msgspec.json.format(msgspec.json.encode(form), indent=1) + b"\n", "chat_template.jinja": template.encode("utf-8")}
    if form.literal:
        return files, ()
    return files, (f"the chat template is not of literal form ({form.reason}); the runtime cannot render it without jinja2",)


def literal_form(template: str, special_tokens: Mapping[str, str]) -> LiteralForm:
    """The verified literal form, or one with literal=False and the reason."""
    special = dict(special_tokens)
    try:
        return _Probe(compile_template(template, special), template, special).form()
    except _NotLiteral as reason:
        return LiteralForm(literal=False, reason=str(reason), special_tokens=special)
    except MixplanError as error:
        return LiteralForm(literal=False, reason=error.message, special_tokens=special)


class _Probe:
    def __init__(self, render: Render, template: str, special: dict[str, str]) -> None:
        self._render = render
        self._template = template
        self._special = special
        self._between: dict[str, str] = {}
        self._elsewhere: set[str] = set()
        self._strip: dict[str, str] = {}

    def form(self) -> LiteralForm:
        for shape in _PLAIN:
            self._learn(shape, required=True)
        known = dict(self._between)
        try:
            for shape in _WITH_SYSTEM:
                self._learn(shape, required=True)
            systems = True
        except TemplateRefusal:
            systems = False
            self._between = known
        except _NotLiteral:
            systems = False
            self._between = known
            self._elsewhere.add(f"{START}>system")
        shapes = (*_PLAIN, *(_WITH_SYSTEM if systems else ()))
        others = ["".join(s) for n in (1, 2, 3) for s in itertools.product("sua", repeat=n)] + ["uaua", "suaua"]
        for shape in others:
            if shape not in shapes and (systems or "s" not in shape):
                self._learn_other(shape)
        for role in _ROLES if systems else _ROLES[1:]:
            self._learn_strip(role, "suau" if systems else "uau")
        form = self._make()
        self._verify(form, shapes)
        looked_for = tuple(
            text for text in self._candidates() if not self._holds(form, shapes[-1:], [f"x{text}y", text, f"{text} z", f"z {text}"])
        )
        empty = not self._holds(form, shapes, [""])
        return msgspec.structs.replace(form, not_with=looked_for, not_empty=empty)

    # -- learning -----------------------------------------------------------------------------------------------------------------

    def _text(self, messages: Sequence[Message], generation: bool) -> str:
        return self._render(messages, generation, lambda code: f"{DATE_MARK[0]}{code}{DATE_MARK[1]}")

    def _pieces(self, shape: str, generation: bool) -> dict[str, str]:
        """The texts around the marks of a conversation, by their pair of roles."""
        marks = [f"Qk{number}zW" for number in range(len(shape))]
        text = self._text([{"role": _LETTER[c], "content": mark} for c, mark in zip(shape, marks, strict=True)], generation)
        roles = [START, *(_LETTER[c] for c in shape), GENERATION if generation else END]
        found: dict[str, str] = {}
        for number, mark in enumerate([*marks, None]):
            head, hit, rest = (text, "", "") if mark is None else text.partition(mark)
            if mark is not None and not hit:
                raise _NotLiteral("it does not put every message into the text once, in order")
            if found.setdefault(f"{roles[number]}>{roles[number + 1]}", head) != head:
                raise _NotLiteral("the text between two messages depends on more than their roles")
            text = rest
        if any("Qk" in piece for piece in found.values()):
            raise _NotLiteral("it does not put every message into the text once, in order")
        return found

    def _learn(self, shape: str, *, required: bool) -> None:
        for generation in (True, False):
            try:
                pieces = self._pieces(shape, generation)
            except TemplateRefusal as error:
                if shape in _WITH_SYSTEM:
                    raise
                raise _NotLiteral(f"it refuses a plain conversation: {error}") from error
            for pair, text in pieces.items():
                if self._between.setdefault(pair, text) != text:
                    raise _NotLiteral("the text between two messages depends on more than their roles")

    def _learn_other(self, shape: str) -> None:
        """Conversations of other orders add pairs; a pair in one that is not literal is left to the template."""
        roles = [START, *(_LETTER[c] for c in shape)]
        for generation in (True, False):
            pairs = {f"{a}>{b}" for a, b in itertools.pairwise([*roles, GENERATION if generation else END])}
            try:
                pieces = self._pieces(shape, generation)
                literal = all(self._between.get(pair, text) == text for pair, text in pieces.items())
            except TemplateRefusal:
                continue
            except _NotLiteral:
                literal, pieces = False, {}
            settled = self._settled()
            if literal:
                self._between.update({pair: text for pair, text in pieces.items() if pair not in self._elsewhere})
                continue
            for pair in pairs - settled:
                self._elsewhere.add(pair)
                self._between.pop(pair, None)

    def _settled(self) -> set[str]:
        """Pairs of the conversations that wait for an answer, which were all found literal."""
        pairs: set[str] = set()
        for shape in (*_PLAIN, *_WITH_SYSTEM):
            roles = [START, *(_LETTER[c] for c in shape)]
            pairs.update(f"{a}>{b}" for ending in (GENERATION, END) for a, b in itertools.pairwise([*roles, ending]))
        return pairs

    def _learn_strip(self, role: str, shape: str) -> None:
        at = [_LETTER[c] for c in shape].index(role)
        contents = ["Qk"] * len(shape)
        contents[at] = f"{_BLANK}Zz{_BLANK[::-1]}"
        text = self._text([{"role": _LETTER[c], "content": content} for c, content in zip(shape, contents, strict=True)], True)
        head, _, tail = text.partition("Zz")
        roles = [START, *(_LETTER[c] for c in shape), GENERATION]
        before = self._between[f"{roles[at]}>{role}"]
        after = self._between[f"{role}>{roles[at + 2]}"]
        rest = "Qk" if at + 1 < len(shape) else ""
        if not head.endswith((before, before + _BLANK)) or not tail.startswith((after + rest, _BLANK[::-1] + after + rest)):
            raise _NotLiteral(f"it rewrites the content of the role {role!r}")
        left, right = not head.endswith(before + _BLANK), not tail.startswith(_BLANK[::-1] + after + rest)
        how = {(True, True): "both", (True, False): "left", (False, True): "right"}.get((left, right))
        if how:
            self._strip[role] = how

    def _candidates(self) -> list[str]:
        """Texts that the template may look for in a message."""
        searches = (
            r"""(['"])((?:\\.|(?!\1)[^\\]){2,60})\1\s+(?:not\s+)?in\s""",
            r"""\.(?:r?split|startswith|endswith|replace|r?partition|find)\(\s*(['"])((?:\\.|(?!\1)[^\\])+)\1""",
        )
        found = [match[1] for search in searches for match in re.findall(search, self._template)]
        texts = {_ESCAPE.sub(lambda match: _ESCAPES.get(match[1], match[1]), text) for text in found}
        return sorted(text for text in texts if len(text) > 1)

    def _make(self) -> LiteralForm:
        return LiteralForm(
            literal=True,
            between=dict(sorted(self._between.items())),
            elsewhere=tuple(sorted(self._elsewhere)),
            strip=dict(sorted(self._strip.items())),
            special_tokens=self._special,
        )

    # -- verifying ----------------------------------------------------------------------------------------------------------------

    def _verify(self, form: LiteralForm, shapes: Sequence[str]) -> None:
        blanks = ("  indented\n\n", "\n", "\ttab ")
        if not self._holds(form, shapes, _CONTENTS):
            raise _NotLiteral("what it does with a message depends on the message")
        if not self._holds(form, shapes, [f"{text}{word}{text}" for text in blanks for word in ("a", "b c")]):
            raise _NotLiteral("what it does with blanks around a message is not a plain strip")

    def _holds(self, form: LiteralForm, shapes: Sequence[str], contents: Sequence[str]) -> bool:
        """Whether the literal form gives what the template gives, with each content in each place."""
        chat = _Undated(form)
        for shape in shapes:
            for shift in range(len(contents)):
                messages = [{"role": _LETTER[c], "content": contents[(shift + n) % len(contents)]} for n, c in enumerate(shape)]
                for generation in (True, False):
                    try:
                        if self._text(messages, generation) != chat.text(messages, generation):
                            return False
                    except TemplateRefusal:
                        return False
        return True


class _Undated(ChatTemplate):
    """Renders with the dates still as marks, as the probe's own rendering has them."""

    def text(self, messages: Sequence[Message], generation: bool) -> str:
        pieces, last = [], START
        for message in messages:
            pieces += [self._between(last, message["role"], 0), self._content(message["role"], message["content"])]
            last = message["role"]
        return "".join([*pieces, self._between(last, GENERATION if generation else END, 0)])
