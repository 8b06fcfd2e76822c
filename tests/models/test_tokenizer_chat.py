"""Chat templates: the literal form equals what transformers renders, and what is not literal is refused, not guessed."""

from __future__ import annotations

import time
from typing import Any

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from mixplan.compiler.tokenizer.chat_probe import chat_files, literal_form
from mixplan.compiler.tokenizer.chat_render import TemplateRefusal, compile_template
from mixplan.runtime.errors import CheckpointError, MissingExtraError, PlanError, RequestError
from mixplan.runtime.text.chat import ChatTemplate, LiteralForm

_SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}

CHATML = (
    "{% for m in messages %}{% if loop.first and m['role'] != 'system' %}<|im_start|>system\nBe kind.<|im_end|>\n{% endif %}"
    "{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
HEADERS = (
    "{{ bos_token }}{% for m in messages %}<|h|>{{ m.role }}<|/h|>\n\n{{ m.content | trim }}<|eot|>{% endfor %}"
    "{% if add_generation_prompt %}<|h|>assistant<|/h|>\n\n{% endif %}"
)
# The system message goes into the first user message; roles must alternate.
INST = (
    "{% if messages[0]['role'] == 'system' %}{% set system = messages[0]['content'] %}{% set rest = messages[1:] %}"
    "{% else %}{% set system = none %}{% set rest = messages %}{% endif %}"
    "{% for m in rest %}{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}"
    "{% if loop.first and system is not none %}{% set text = '<<SYS>>\n' + system + '\n<</SYS>>\n\n' + m['content'] %}"
    "{% else %}{% set text = m['content'] %}{% endif %}"
    "{% if m['role'] == 'user' %}{{ bos_token + '[INST] ' + text + ' [/INST]' }}{% else %}"
    "{{ ' ' + text + ' ' + eos_token }}{% endif %}{% endfor %}"
)
NO_SYSTEM = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system role') }}{% endif %}"
    "<turn>{{ 'model' if m.role == 'assistant' else m.role }}\n{{ m.content | trim }}</turn>\n{% endfor %}"
    "{% if add_generation_prompt %}<turn>model\n{% endif %}"
)
# Thoughts of earlier answers are cut out, and a last answer gets an empty one.
THINKING = (
    "{% for m in messages %}{% set text = m.content %}"
    "{% if m.role == 'assistant' and '</think>' in text %}{% set text = text.split('</think>')[-1] %}{% endif %}"
    "<|{{ m.role }}|>{% if m.role == 'assistant' and loop.last %}<think></think>{% endif %}{{ text }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
DATED = "Today is {{ strftime_now('%d %B %Y') }}.\n" + CHATML
SYSTEM_LAST = (
    "{% if messages[0].role == 'system' %}{% set sys = messages[0].content %}{% set rest = messages[1:] %}"
    "{% else %}{% set sys = '' %}{% set rest = messages %}{% endif %}"
    "{% for m in rest %}[{{ m.role }}]{% if loop.last and sys %}{{ sys }}: {% endif %}{{ m.content }}{% endfor %}"
)
COUNTING = "{% for m in messages %}{{ loop.index }}. {{ m.content }}\n{% endfor %}"
UPPER = "{% for m in messages %}{{ m.role }}: {{ m.content | upper }}\n{% endfor %}"
EMPTY = "{% for m in messages %}{% if m.content %}{{ m.role }}: {{ m.content }}\n{% endif %}{% endfor %}"

_LITERAL = {"chatml": CHATML, "headers": HEADERS, "inst": INST, "no-system": NO_SYSTEM, "thinking": THINKING, "empty": EMPTY}


def _messages(roles: str, *contents: str) -> list[dict[str, str]]:
    names = {"s": "system", "u": "user", "a": "assistant"}
    return [{"role": names[role], "content": content} for role, content in zip(roles, contents, strict=True)]


def _transformers(template: str, messages: list[dict[str, str]], generation: bool) -> str:
    texts, _ = render_jinja_template([messages], chat_template=template, add_generation_prompt=generation, **_SPECIAL)
    return str(texts[0])


_CONVERSATIONS = [
    _messages("u", "What is 2 + 2?"),
    _messages("uau", "Hi", "Hello 👋", "  你好\n\n"),
    _messages("uauau", " a ", "\tb", "c\n", "{{ d }}", "e"),
    _messages("su", "Be terse.", "¿Por qué?"),
    _messages("suau", " You are\n\na pirate. ", "Ahoy", "Arr\n", "Where?"),
]


@pytest.mark.parametrize("name", _LITERAL)
@pytest.mark.parametrize("messages", _CONVERSATIONS, ids=lambda m: "".join(x["role"][0] for x in m))
@pytest.mark.parametrize("generation", [True, False])
def test_literal_form_equals_transformers(name: str, messages: list[dict[str, str]], generation: bool) -> None:
    template = _LITERAL[name]
    form = literal_form(template, _SPECIAL)
    assert form.literal, form.reason
    chat = ChatTemplate.from_json(chat_files(template, _SPECIAL)[0]["chat.json"])
    if name == "no-system" and messages[0]["role"] == "system":
        with pytest.raises(RequestError, match="takes no 'system' at the start; allowed there: assistant, user"):
            chat.render(messages, add_generation_prompt=generation)
        return
    assert chat.render(messages, add_generation_prompt=generation) == _transformers(template, messages, generation)


@pytest.mark.parametrize("name", _LITERAL)
def test_any_order_of_roles_equals_transformers_or_is_refused(name: str) -> None:
    template = _LITERAL[name]
    chat = ChatTemplate(literal_form(template, _SPECIAL))
    for roles in ("a", "s", "ua", "uu", "aa", "us", "sua", "uaa", "ss", "au"):
        messages = _messages(roles, *(f"text {n}" for n in range(len(roles))))
        try:
            text = chat.render(messages)
        except (RequestError, MissingExtraError):
            continue
        assert text == _transformers(template, messages, True), roles


def test_the_strip_of_contents_is_found() -> None:
    assert literal_form(HEADERS, _SPECIAL).strip == {"assistant": "both", "system": "both", "user": "both"}
    assert literal_form(CHATML, _SPECIAL).strip == {}


def test_an_order_that_the_template_refuses() -> None:
    chat = ChatTemplate(literal_form(INST, _SPECIAL))
    with pytest.raises(RequestError, match=r"messages\[1\].*takes no 'user' after 'user'; allowed there: assistant"):
        chat.render(_messages("uu", "a", "b"))


def test_texts_that_the_template_looks_for() -> None:
    form = literal_form(THINKING, _SPECIAL)
    assert form.not_with == ("</think>",)
    with pytest.raises(MissingExtraError, match=r"'</think>'(.|\n)*pip install 'mixplan\[compile\]'"):
        ChatTemplate(form).render(_messages("uau", "a", "<think>b</think>c", "d"))


def test_texts_with_escapes() -> None:
    template = "{% for m in messages %}{{ m.role }}: {{ m.content.replace('a\\n\\'b', 'c').replace('\\\\d', 'e') }}\n{% endfor %}"
    form = literal_form(template, _SPECIAL)
    assert form.literal
    assert form.not_with == ("\\d", "a\n'b")


def test_a_last_answer_that_is_changed_is_left_to_the_template() -> None:
    form = literal_form(THINKING, _SPECIAL)
    assert "assistant>end" in form.elsewhere and "user>assistant" in form.between
    with pytest.raises(MissingExtraError):
        ChatTemplate(form).render(_messages("ua", "a", "b"), add_generation_prompt=False)


def test_empty_content() -> None:
    form = literal_form(EMPTY, _SPECIAL)
    assert form.not_empty
    with pytest.raises(MissingExtraError):
        ChatTemplate(form).render(_messages("u", ""))
    assert ChatTemplate(literal_form(CHATML, _SPECIAL)).render(_messages("u", "")).endswith("user\n<|im_end|>\n<|im_start|>assistant\n")


def test_dates_are_those_of_the_request() -> None:
    form = literal_form(DATED, _SPECIAL)
    assert form.literal
    text = ChatTemplate(form).render(_messages("u", "\ue0d0%Y\ue0d1"), now=time.strptime("2031-05-06", "%Y-%m-%d"))
    assert text.startswith("Today is 06 May 2031.\n") and "\ue0d0%Y\ue0d1" in text


def test_a_system_message_that_goes_elsewhere_is_left_to_the_template() -> None:
    form = literal_form(SYSTEM_LAST, _SPECIAL)
    assert form.literal and "start>system" in form.elsewhere
    assert ChatTemplate(form).render(_messages("uau", "a", "b", "c")) == "[user]a[assistant]b[user]c"
    with pytest.raises(MissingExtraError, match="'system'"):
        ChatTemplate(form).render(_messages("suau", "s", "a", "b", "c"))


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        (COUNTING, "more than their roles"),
        (UPPER, "once, in order"),
        ("{{ raise_exception('never') }}", "refuses a plain conversation: TemplateError: never"),
        ("{{ messages[-1].content }}", "once, in order"),
        ("{% for m in messages %}{{ m.role }}{{ m.content | replace('a', 'b') }}{% endfor %}", "depends on the message"),
        ("{% for m in messages %}{{ m.role }}{{ m.content.strip('\n') }}{% endfor %}", "blanks|rewrites"),
        ("{% if %}", "not valid Jinja"),
    ],
)
def test_not_literal(template: str, reason: str) -> None:
    form = literal_form(template, _SPECIAL)
    assert not form.literal
    import re

    assert re.search(reason, form.reason), form.reason
    with pytest.raises(MissingExtraError, match=r"pip install 'mixplan\[compile\]'"):
        ChatTemplate(form).render(_messages("u", "hi"))


def test_files_and_note_of_a_template_that_is_not_literal() -> None:
    files, notes = chat_files(COUNTING, _SPECIAL)
    assert files["chat_template.jinja"].decode() == COUNTING
    assert "cannot render it without jinja2" in notes[0]
    assert chat_files(CHATML, _SPECIAL)[1] == ()


@pytest.mark.parametrize("template", [*_LITERAL.values(), DATED, SYSTEM_LAST, COUNTING, UPPER])
def test_own_rendering_equals_transformers(template: str) -> None:
    render = compile_template(template, _SPECIAL)
    for messages in _CONVERSATIONS[:3]:
        assert render(messages, True) == _transformers(template, messages, True)


@pytest.mark.parametrize(
    "template",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{% for x in range(999999999) %}a{% endfor %}",
        "{{ cycler.__init__.__globals__ }}",
    ],
)
def test_templates_are_sandboxed(template: str) -> None:
    with pytest.raises(TemplateRefusal):
        compile_template(template, {})([{"role": "user", "content": "x"}], True)


def test_generation_blocks_and_loop_controls() -> None:
    template = (
        "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% if loop.first %}{% break %}{% endif %}{% endfor %}"
    )
    assert compile_template(template, {})(_messages("ua", "x", "y"), False) == "x"


def test_invalid_template() -> None:
    with pytest.raises(CheckpointError, match="not valid Jinja"):
        compile_template("{% for %}", {})


@pytest.mark.parametrize(
    "data", [b"", b"[]", b'{"literal": 1}', b'{"literal": true, "more": 1}', b"\xff", b'{"literal": true, "between": {"a": 1}}']
)
def test_malformed_chat_json(data: bytes) -> None:
    with pytest.raises(PlanError, match=r"chat\.json is malformed"):
        ChatTemplate.from_json(data)


@pytest.mark.parametrize(
    "messages", [[], "hi", {}, [1], [{"role": "user"}], [{"role": "user", "content": 3}], [{"role": "end", "content": ""}]]
)
def test_malformed_messages(messages: Any) -> None:
    with pytest.raises(RequestError, match="messages"):
        ChatTemplate(LiteralForm(literal=True)).render(messages)
