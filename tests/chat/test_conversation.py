"""The conversation: roles alternate, and a change of agent changes no token that is already there."""

from __future__ import annotations

import pytest

from icarus_local.chat.agents import Agent
from icarus_local.chat.conversation import Conversation
from icarus_local.errors import RequestError
from icarus_local.text.template import ChatTemplate
from icarus_local.text.tokenizer import Tokenizer

CODER = Agent(name="coder", instruction="Reply as coder.")
REVIEWER = Agent(name="reviewer", instruction="Reply as reviewer.")
PLAIN = Agent(name="plain")


@pytest.fixture
def conversation(smollm2_tokenizer: Tokenizer) -> Conversation:
    assert smollm2_tokenizer.template_source is not None
    return Conversation(ChatTemplate(smollm2_tokenizer.template_source, smollm2_tokenizer))


def test_an_instruction_stands_at_the_agents_turn(conversation: Conversation) -> None:
    conversation.ask("question")
    conversation.hand_over(CODER)
    conversation.answer("coder", [40, 41])
    conversation.hand_over(REVIEWER)
    conversation.answer("reviewer", [42])
    conversation.ask("more")
    conversation.hand_over(PLAIN)
    assert [(message["role"], message["content"]) for message in conversation.messages()[1:]] == [
        ("user", "question\n\nReply as coder."),
        ("assistant", [40, 41]),
        ("user", "Reply as reviewer."),
        ("assistant", [42]),
        ("user", "more"),
    ]


def test_an_agent_without_instruction_is_named_when_another_has_just_spoken(conversation: Conversation) -> None:
    conversation.ask("question")
    conversation.hand_over(CODER)
    conversation.answer("coder", [40])
    conversation.hand_over(PLAIN)
    assert conversation.turns[-1].content == "plain, please answer."


def test_each_prompt_continues_the_last_one_and_its_answer(
    conversation: Conversation, smollm2_tokenizer: Tokenizer
) -> None:
    conversation.ask("How many vowels?")
    conversation.hand_over(CODER)
    # Ids that no tokenizer would give for their text: kept all the same.
    answer = [smollm2_tokenizer.encode(c)[0] for c in "return"]
    assert smollm2_tokenizer.encode("return") != answer
    history = conversation.prompt() + answer
    conversation.answer("coder", answer)
    conversation.hand_over(REVIEWER)
    prompt = conversation.prompt()
    assert prompt[: len(history)] == history
    assert prompt[len(history)] == conversation.end_of_turn


def test_nobody_answers_unasked(conversation: Conversation) -> None:
    with pytest.raises(RequestError, match="without having been asked"):
        conversation.answer("coder", [1])


def test_a_template_without_system_messages_gets_it_in_the_first_question(smollm2_tokenizer: Tokenizer) -> None:
    source = (
        "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('alternate') }}"
        "{% endif %}<|im_start|>{{ m.content }}<|im_end|>{% endfor %}"
    )
    conversation = Conversation(ChatTemplate(source, smollm2_tokenizer), "Be kind.")
    conversation.ask("question")
    conversation.hand_over(CODER)
    assert conversation.messages()[0]["content"] == "Be kind.\n\nquestion\n\nReply as coder."
    assert smollm2_tokenizer.decode(conversation.prompt()) == conversation.messages()[0]["content"]
    conversation.answer("coder", [40])
    conversation.hand_over(REVIEWER)
    assert conversation.turns[-1].content == "Reply as reviewer."
