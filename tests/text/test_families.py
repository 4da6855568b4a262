"""Templates as well-known models have them: the ids are transformers', and a conversation only ever grows."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jinja2.exceptions import TemplateError as JinjaError

from icarus_local.chat.agents import Agent
from icarus_local.chat.conversation import Conversation
from icarus_local.errors import TemplateError
from icarus_local.text.template import Answer, ChatTemplate, own_template
from icarus_local.text.tokenizer import Tokenizer
from tests.text.families import (
    FAMILIES,
    GEMMA3,
    LLAMA3,
    MISTRAL,
    PHI3,
    PHI4,
    QWEN3,
    SMOLLM2,
    Family,
    reference,
    write_gguf,
)

NAMES = [family.name for family in FAMILIES]
CODER = Agent(name="coder", instruction="Reply as coder.")
REVIEWER = Agent(name="reviewer", instruction="Reply as reviewer.")
PLAIN = Agent(name="plain")

QUESTIONS = [
    "hello world",
    "  two  spaces\tand a tab \n\n",
    "héllo 模 😀 it's 12345",
    "def f(x):\n    return x  # the 'world'\n\n\n",
]
ANSWERS = ["the answer", " 42\n", "<b>world</b>\n\n1. in the world", "é"]


class Kit:
    """One family's tokenizer, template and reference."""

    def __init__(self, family: Family, directory: Path) -> None:
        self.family = family
        self.tokenizer = Tokenizer(write_gguf(family, directory / f"{family.name}.gguf"))
        self.template = own_template(self.tokenizer.template_source, self.tokenizer)
        self.reference = reference(family)

    def expected(self, messages: list[dict[str, str]], prompt: bool) -> list[int] | str:
        """transformers' ids, or the words with which the template refuses."""
        try:
            ids = self.reference.apply_chat_template(
                messages, tokenize=True, add_generation_prompt=prompt, return_dict=False
            )
        except JinjaError as error:
            return str(error)
        return list(ids)

    def rendered(self, messages: list[dict[str, str]], prompt: bool) -> list[int] | str:
        try:
            return self.template.render(messages, prompt)
        except TemplateError as error:
            return error.what.removeprefix("the chat template refuses this conversation: ")


@pytest.fixture(scope="module")
def kits(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Kit]]:
    kits = {family.name: Kit(family, tmp_path_factory.mktemp("families")) for family in FAMILIES}
    yield kits
    for kit in kits.values():
        kit.tokenizer.close()


def dialogue(turns: int, system: str | None) -> list[dict[str, str]]:
    messages = [] if system is None else [{"role": "system", "content": system}]
    for question, answer in zip(QUESTIONS[:turns], ANSWERS, strict=False):
        messages += [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
    return messages


@pytest.mark.parametrize("name", NAMES)
def test_ids_are_transformers(kits: dict[str, Kit], name: str) -> None:
    kit = kits[name]
    systems = (None, "Be kind to the world.", " \n")
    for turns, system, cut, prompt in itertools.product(range(1, 5), systems, (0, 1), (True, False)):
        messages = dialogue(turns, system)[: -1 if cut else None]
        expected = kit.expected(messages, prompt)
        assert kit.rendered(messages, prompt) == expected
        assert isinstance(expected, str) == (system is not None and kit.family.system == "refused")
        if isinstance(expected, list) and kit.family.bos is not None:
            # BOS once where the template writes it, and never by the tokenizer.
            assert expected.count(kit.template._vocabulary.bos or 0) == ("bos_token" in kit.family.source)


@pytest.mark.parametrize("name", NAMES)
def test_two_of_a_role_in_a_row_are_rendered_or_refused_as_by_transformers(kits: dict[str, Kit], name: str) -> None:
    kit = kits[name]
    question, answer = dialogue(1, None)
    for messages in ([question, question], [question, answer, answer], [answer, question]):
        expected = kit.expected(messages, True)
        assert kit.rendered(messages, True) == expected
        assert isinstance(expected, str) == kit.family.alternates


@settings(max_examples=30, deadline=None)
@given(
    st.lists(
        st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs", "Co", "Cn"]), max_size=20),
        min_size=1,
        max_size=4,
    )
)
@pytest.mark.parametrize("name", NAMES)
def test_ids_are_transformers_for_any_text(kits: dict[str, Kit], name: str, texts: list[str]) -> None:
    kit = kits[name]
    messages = [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(texts)]
    assert kit.rendered(messages, True) == kit.expected(messages, True)


def test_qwen3_drops_what_an_assistant_thought_before_the_last_question(kits: dict[str, Kit]) -> None:
    kit = kits[QWEN3.name]
    thought = {"role": "assistant", "content": "<think>\nin the world\n</think>\n\nhello"}
    question = {"role": "user", "content": "hello"}
    for messages in ([question, thought], [question, thought, question], [question, thought, thought]):
        assert kit.rendered(messages, False) == kit.expected(messages, False)
    think = kit.tokenizer.encode("<think>")
    assert len(think) == 1
    assert think[0] in kit.template.render([question, thought], False)
    assert think[0] not in kit.template.render([question, thought, question])


def test_a_thought_among_an_answers_ids_stays(kits: dict[str, Kit]) -> None:
    """A template sees ids as a word that it cannot look into: the conversation leaves out what is to be dropped."""
    kit = kits[QWEN3.name]
    question = {"role": "user", "content": "hello"}
    answer = Answer(kit.tokenizer.encode("<think>\nin\n</think>\n\nhello"))
    prompt = kit.template.render([question])
    more = kit.template.render([question, {"role": "assistant", "content": answer}, question])
    assert more[: len(prompt) + len(answer)] == [*prompt, *answer]


@pytest.mark.parametrize("name", NAMES)
def test_a_conversation_among_agents_only_grows(kits: dict[str, Kit], name: str) -> None:
    kit = kits[name]
    for system in ("Be kind.", ""):
        conversation = Conversation(kit.template, system)
        kept: list[int] = []
        for question, agents in (
            ("hello", [CODER, REVIEWER, PLAIN]),
            ("in the world?", [PLAIN]),
            ("a", [CODER, PLAIN]),
        ):
            conversation.ask(question)
            for agent in agents:
                conversation.hand_over(agent)
                prompt = conversation.prompt()
                assert prompt[: len(kept)] == kept
                assert prompt == conversation.prompt()
                # Ids that no tokenizer would give for their text.
                answer = [i for c in "hello\n" for i in kit.tokenizer.encode(c)]
                kept = [*prompt, *answer]
                conversation.answer(agent.name, answer)
        roles = [message["role"] for message in conversation.messages()]
        body = roles[roles[0] == "system" :]
        assert body == ["user", "assistant"] * 6
        assert (roles[0] == "system") == (bool(system) and kit.family.system in {"shown", "folded"})
        text = kit.tokenizer.decode(conversation.prompt())
        assert text.count("Be kind.") == bool(system)


def test_a_system_message_that_a_template_loses_is_folded(kits: dict[str, Kit]) -> None:
    tokenizer = kits[SMOLLM2.name].tokenizer
    source = "{% for m in messages if m.role != 'system' %}<|im_start|>{{ m.content }}<|im_end|>{% endfor %}"
    conversation = Conversation(ChatTemplate(source, tokenizer), "Be kind.")
    conversation.ask("hello")
    assert conversation.messages() == [{"role": "user", "content": "Be kind.\n\nhello"}]


def test_how_much_stays_where_a_template_writes_into_the_prompt_what_it_later_leaves_out(kits: dict[str, Kit]) -> None:
    """As templates do that open the thought for the model: all stays up to where the first answer began."""
    kit = kits[QWEN3.name]
    source = QWEN3.source.replace("'<|im_start|>assistant\\n' }}", "'<|im_start|>assistant\\n<think>\\n' }}")
    assert source != QWEN3.source
    template = ChatTemplate(source, kit.tokenizer)
    question = {"role": "user", "content": "hello"}
    prompt = template.render([question])
    opening = kit.tokenizer.encode("<think>\n")
    assert prompt[-len(opening) :] == opening
    more = template.render([question, {"role": "assistant", "content": Answer([300])}, question])
    common = next(i for i, (a, b) in enumerate(zip(prompt, more, strict=False)) if a != b)
    assert common == len(prompt) - len(opening)
    assert more[common] == 300


def test_how_much_stays_where_a_template_moves_the_system_message(kits: dict[str, Kit]) -> None:
    kit = kits["mistral-moved"]
    question = {"role": "user", "content": "hello"}
    messages: list[dict[str, Any]] = [{"role": "system", "content": "Be kind."}, question]
    prompt = kit.template.render(messages)
    more = kit.template.render([*messages, {"role": "assistant", "content": Answer([300])}, question])
    common = next(i for i, (a, b) in enumerate(zip(prompt, more, strict=False)) if a != b)
    # BOS and "[INST]": so the conversation folds the message instead, and then all stays.
    assert common == len(kit.template.render([question])) - len(kit.tokenizer.encode("hello [/INST]"))
    assert not kit.template.accepts_system


def test_the_date_in_a_template_does_not_change_while_it_is_in_use(
    kits: dict[str, Kit], monkeypatch: pytest.MonkeyPatch
) -> None:
    import datetime

    template = kits[LLAMA3.name].template
    before = template.render([{"role": "user", "content": "hello"}])

    class Later(datetime.datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return cls(2099, 1, 1)

    monkeypatch.setattr(datetime, "datetime", Later)
    assert template.render([{"role": "user", "content": "hello"}]) == before


TYPED = ["<|im_", "end|>", "a", " ", "\n", "é", "模", "\ue000", "\uf8fe", "<", ">", "0", "[INST]"]


@settings(max_examples=40, deadline=None)
@given(st.data())
@pytest.mark.parametrize("name", NAMES)
def test_no_text_becomes_a_special_token(kits: dict[str, Kit], name: str, data: st.DataObject) -> None:
    kit = kits[name]
    tokenizer, template = kit.tokenizer, kit.template
    markup = [text for text in tokenizer.user_defined if text.strip()]
    pieces = st.sampled_from([*tokenizer.controls, *markup, *TYPED])
    text = "".join(data.draw(st.lists(pieces, max_size=12)))
    special = {*tokenizer.controls.values(), *(tokenizer.encode(text)[-1] for text in markup)}
    # What a template itself looks for in an answer's text it must find whole.
    read = any(special in kit.family.source and special in text for special in markup)
    roles = ["user"] if read else ["user", "assistant"]
    systems = [None, "system"] if kit.family.system != "refused" else [None]
    for role, system in itertools.product(roles, systems):

        def render(content: str, role: str = role, system: str | None = system) -> list[int]:
            messages = [{"role": "user", "content": content}]
            if role == "assistant":
                messages += [{"role": "assistant", "content": content}, {"role": "user", "content": "a"}]
            return template.render(([{"role": "system", "content": content}] if system else []) + messages)

        assert [i for i in render(text) if i in special] == [i for i in render("hello") if i in special]
    # And nothing of what a person types is lost or added, but for the white space that a template trims.
    before, after = tokenizer.decode(template.render([{"role": "user", "content": "~"}])).split("~")
    shown = tokenizer.decode(template.render([{"role": "user", "content": f"~{text}~"}]))
    assert shown == f"{before}~{text}~{after}"


@pytest.mark.parametrize("name", NAMES)
def test_the_end_of_a_turn(kits: dict[str, Kit], name: str) -> None:
    kit = kits[name]
    text = kit.tokenizer.token_text(kit.template.end_of_turn)
    assert text == {"gemma2": "<end_of_turn>", "gemma3": "<end_of_turn>", "phi-3": "<|end|>"}.get(name, kit.family.eos)


def test_text_right_behind_an_answer_gets_no_space(kits: dict[str, Kit]) -> None:
    tokenizer = kits[MISTRAL.name].tokenizer
    source = "{% for m in messages %}{{ m.content }}. {% endfor %}"
    answer = Answer(tokenizer.encode("world"))
    ids = ChatTemplate(source, tokenizer).render(
        [{"role": "user", "content": "a"}, {"role": "assistant", "content": answer}]
    )
    assert tokenizer.decode(ids) == " a.  world. "


def test_white_space_behind_phi3s_control_tokens_is_swallowed(kits: dict[str, Kit]) -> None:
    tokenizer = kits[PHI3.name].tokenizer
    ids = kits[PHI3.name].template.render([{"role": "user", "content": " \n a"}])
    named = {text: tokenizer.controls[text] for text in ("<|user|>", "<|end|>", "<|assistant|>")}
    assert ids == [named["<|user|>"], *tokenizer.encode("a"), named["<|end|>"], named["<|assistant|>"]]


def test_gemmas_blank_lines_stay_one_token(kits: dict[str, Kit]) -> None:
    tokenizer = kits[GEMMA3.name].tokenizer
    (blank,) = tokenizer.encode("\n\n")
    assert blank in kits[GEMMA3.name].template.render([{"role": "user", "content": "a\n\nb"}])


def test_the_default_template_begins_with_bos_where_the_vocabulary_does(kits: dict[str, Kit]) -> None:
    question = [{"role": "user", "content": "a"}]
    for name in (GEMMA3.name, SMOLLM2.name, PHI4.name):
        tokenizer = kits[name].tokenizer
        ids = own_template(None, tokenizer).render(question)
        assert ids.count(-1 if tokenizer.bos is None else tokenizer.bos) == tokenizer.adds_bos
        assert ids[0] == tokenizer.bos or not tokenizer.adds_bos
    assert kits[GEMMA3.name].tokenizer.adds_bos
    # libllama would name token 11 here.
    assert kits[SMOLLM2.name].tokenizer.bos is None


@pytest.mark.slow
def test_smollm2s_ids_are_transformers(smollm2: Path, smollm2_tokenizer: Tokenizer) -> None:
    from tokenizers import pre_tokenizers
    from transformers import AutoTokenizer

    theirs = AutoTokenizer.from_pretrained(smollm2.parent, gguf_file=smollm2.name)
    # transformers does not read tokenizer.ggml.pre = smollm, which splits every digit.
    theirs.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    ours = own_template(smollm2_tokenizer.template_source, smollm2_tokenizer)
    for turns, system, prompt in itertools.product(range(1, 5), (None, "Be kind."), (True, False)):
        messages = dialogue(turns, system)
        expected = theirs.apply_chat_template(messages, tokenize=True, add_generation_prompt=prompt, return_dict=False)
        assert ours.render(messages, prompt) == list(expected)
