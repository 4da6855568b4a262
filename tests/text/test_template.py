"""Templates: ids as the reference renderer gives them, and no control token from anybody but the template."""

from __future__ import annotations

import datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from icarus_local.errors import TemplateError
from icarus_local.text.template import Answer, ChatTemplate, own_template
from icarus_local.text.tokenizer import Tokenizer

CONTROLS = ["<|im_start|>", "<|im_end|>", "<|endoftext|>", "<file_sep>"]


@pytest.fixture(scope="module")
def template(smollm2_tokenizer: Tokenizer) -> ChatTemplate:
    assert smollm2_tokenizer.template_source is not None
    return ChatTemplate(smollm2_tokenizer.template_source, smollm2_tokenizer)


class Words:
    """A vocabulary whose tokens are characters, with one control and one USER_DEFINED token."""

    def __init__(self) -> None:
        self.controls = {"<c>": 1, "<cc>": 2}
        self.user_defined = ["<tool>"]
        self.bos: int | None = 1
        self.eos: int | None = None

    def encode(self, text: str) -> list[int]:
        ids = []
        while text:
            if text.startswith("<tool>"):
                ids.append(3)
                text = text[6:]
            else:
                ids.append(1000 + ord(text[0]))
                text = text[1:]
        return ids

    def token_text(self, token: int | None) -> str:
        return "" if token is None else {1: "<c>", 2: "<cc>"}[token]


def plain(text: str) -> list[int]:
    return [1000 + ord(c) for c in text]


def words(source: str) -> ChatTemplate:
    return ChatTemplate(source, Words(), "test")


EACH = "{% for m in messages %}<c>{{ m.role }} {{ m.content }}<cc>{% endfor %}"


def user(text: Any) -> dict[str, Any]:
    return {"role": "user", "content": text}


def test_control_text_in_a_message_stays_text() -> None:
    assert words(EACH).render([user("a<cc>b<c>")]) == [1, *plain("user a<cc>b<c>"), 2]


def test_a_user_defined_token_in_a_message_is_broken_up_and_the_templates_is_not() -> None:
    ids = words("<tool>" + EACH).render([user("x<tool>y")])
    assert ids == [3, 1, *plain("user x<tool>y"), 2]


def test_answers_are_placed_as_they_are() -> None:
    messages = [user("q"), {"role": "assistant", "content": Answer([7, 7, 2])}, user("r")]
    assert words(EACH).render(messages) == [
        *[1, *plain("user q"), 2],
        *[1, *plain("assistant "), 7, 7, 2, 2],
        *[1, *plain("user r"), 2],
    ]


def test_a_template_that_loses_or_reorders_answers_is_refused() -> None:
    messages = [user("q"), *({"role": "assistant", "content": Answer([i])} for i in (5, 6))]
    for source in (
        "{{ messages[0].content }}",
        "{{ messages[2].content }}{{ messages[1].content }}",
        "{{ messages[1].content }}{{ messages[1].content }}{{ messages[2].content }}",
    ):
        with pytest.raises(TemplateError, match="drops, repeats or reorders"):
            words(source).render(messages)


def test_white_space_that_a_template_puts_before_old_answers_is_left_out() -> None:
    template = words(
        "{% for m in messages %}{% if m.role == 'user' %}<c>{{ m.content }}<cc>{% else %} {{ m.content }}<c>{% endif %}"
        "{% endfor %}"
    )
    prompt = template.render([user("q")])
    messages = [user("q"), {"role": "assistant", "content": Answer([7, 8])}, user("r")]
    assert template.render(messages)[: len(prompt) + 2] == [*prompt, 7, 8]


def test_a_broken_template_is_named_with_its_line() -> None:
    with pytest.raises(TemplateError, match="test is broken at line 2"):
        words("{{ messages }}\n{% for m in %}")


@pytest.mark.parametrize(
    "source",
    [
        "{{ 1 // 0 }}",
        "{{ messages[0].nothing.at.all }}",
        "{{ ''.__class__.__mro__ }}",
        "{{ '{1}'.format(2) }}",
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    ],
)
def test_a_failing_or_escaping_template_is_an_error(source: str) -> None:
    with pytest.raises(TemplateError, match="fails on this conversation"):
        words(source).render([user("q")])


def test_a_refusing_templates_own_words_are_shown() -> None:
    with pytest.raises(TemplateError, match="roles must alternate"):
        words("{{ raise_exception('roles must alternate') }}").render([user("q")])


@pytest.mark.slow
def test_ids_are_transformers_apply_chat_template(template: ChatTemplate, smollm2_tokenizer: Tokenizer) -> None:
    import jinja2

    from icarus_local.ggml.library import load_llama

    messages = [user("What is 12 + 345?"), {"role": "assistant", "content": "357"}, user("Thank you.\n\n  Bye ")]
    # transformers renders the template and tokenises it in one go, controls on.
    text = jinja2.Template(template.source, trim_blocks=True, lstrip_blocks=True).render(
        messages=messages, add_generation_prompt=True
    )
    data, ids = text.encode(), (load_llama().llama_token * 512)()
    n = load_llama().llama_tokenize(smollm2_tokenizer.vocab_address, data, len(data), ids, 512, False, True)
    assert template.render(messages) == list(ids[:n])


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from([*CONTROLS, "<|im_", "end|>", "a", " ", "\n", "é", "模", "", "<"]), max_size=12))
def test_whatever_a_person_types_adds_no_control_token(
    template: ChatTemplate, smollm2_tokenizer: Tokenizer, parts: list[str]
) -> None:
    text = "".join(parts)
    controls = set(smollm2_tokenizer.controls.values())

    def count(content: str) -> int:
        return sum(token in controls for token in template.render([user(content)]))

    assert count(text) == count("hello")
    # And nothing of it is lost: control tokens have no text of their own.
    before, after = smollm2_tokenizer.decode(template.render([user("\x00")])).split("\x00")
    assert smollm2_tokenizer.decode(template.render([user(text)])) == before + text + after


def test_end_of_turn(template: ChatTemplate, smollm2_tokenizer: Tokenizer) -> None:
    assert template.end_of_turn == smollm2_tokenizer.controls["<|im_end|>"]


def test_a_template_is_told_the_date_that_is_given() -> None:
    source = "{{ strftime_now('%d %b %Y') }}{% for m in messages %}{{ m.content }}{% endfor %}"
    then = datetime.datetime(1999, 12, 31)
    assert own_template(source, Words(), then).render([user("!")]) == plain("31 Dec 1999!")
    assert own_template(source, Words()).render([user("!")]) == plain(f"{datetime.datetime.now():%d %b %Y}!")
