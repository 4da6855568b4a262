"""Where a template drops older thoughts, so does the conversation: the rest of an answer's ids stay, and the counts say
what is encoded again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack

import pytest

from icarus_local.chat.agents import Agent, base_agent
from icarus_local.chat.conversation import Conversation
from icarus_local.chat.events import AnswerDone
from icarus_local.chat.requests import Join
from icarus_local.chat.session import Session
from icarus_local.text.template import ChatTemplate
from tests.chat.chats import agree, done, make_session
from tests.chat.scripted import generate, script
from tests.text.families import FAMILIES, LLAMA3, PHI4, QWEN3, QWEN25, SMOLLM2
from tests.text.test_families import Kit
from tests.tiny import CHATML, Tiny

PLAIN = Agent(name="plain")
OTHER = Agent(name="other", instruction="Go on.")
ANSWERS = [
    "<think>\nin the world\n</think>\n\nhello",
    "<think>\n\n</think>\n\nhello\n\nworld",
    "<think>the</think>é",
    "world",
    "<think>\nit never ends",
]
QUESTIONS = ["hello", "in the world?", "a", "b\n", "c"]


@pytest.fixture(scope="module")
def kits(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Kit]]:
    kits = {family.name: Kit(family, tmp_path_factory.mktemp("families")) for family in FAMILIES}
    yield kits
    for kit in kits.values():
        kit.tokenizer.close()


def says(kit: Kit, text: str) -> tuple[list[int], int]:
    """Ids of an answer, and how many of them a generation counts as its thought."""
    ids = kit.tokenizer.encode(text)
    generation, _ = generate(kit.tokenizer, kit.tokenizer.n_vocab, ids)
    assert generation.tokens == ids
    return ids, generation.thought


def opening(source: str) -> str:
    """A template that opens the thought for the model."""
    for prompt in ("'<|im_start|>assistant\\n' }}", "<|im_start|>assistant\n{% endif %}"):
        source = source.replace(prompt, prompt.replace("assistant\\n", "assistant\\n<think>\\n"))
        source = source.replace(prompt, prompt.replace("assistant\n", "assistant\n<think>\n"))
    return source


def test_only_templates_like_qwen3s_drop_thoughts(kits: dict[str, Kit]) -> None:
    assert [name for name, kit in kits.items() if kit.template.drops_thoughts] == [QWEN3.name]


def test_which_templates_open_a_thought(kits: dict[str, Kit]) -> None:
    assert not any(kit.template.opens_thought for kit in kits.values())
    tokenizer = kits[QWEN3.name].tokenizer
    for source in (QWEN3.source, CHATML):
        assert ChatTemplate(opening(source), tokenizer).opens_thought
    for closed in (
        CHATML.replace("assistant\n{%", "assistant\n<think>\n\n</think>\n\n{%"),
        # What the system prompt says of marks opens nothing.
        "<|im_start|>system\nBegin with <think> if you must.<|im_end|>\n" + CHATML,
    ):
        assert not ChatTemplate(closed, tokenizer).opens_thought


@pytest.mark.parametrize("name", [family.name for family in (QWEN3, SMOLLM2, QWEN25, LLAMA3, PHI4)])
@pytest.mark.parametrize("system", ["", "Be kind."])
def test_ids_are_transformers(kits: dict[str, Kit], name: str, system: str) -> None:
    kit = kits[name]
    conversation = Conversation(kit.template, system)
    messages = [{"role": "system", "content": system}] if system else []
    for question, answer in zip(QUESTIONS, ANSWERS, strict=True):
        conversation.ask(question)
        messages.append({"role": "user", "content": question})
        assert conversation.prompt() == kit.expected(messages, True)
        ids, thought = says(kit, answer)
        conversation.answer("plain", ids, thought)
        messages.append({"role": "assistant", "content": answer})
    conversation.hand_over(OTHER)
    assert conversation.prompt() == kit.expected([*messages, {"role": "user", "content": OTHER.instruction}], True)


@pytest.mark.parametrize("name", [QWEN3.name, SMOLLM2.name])
def test_the_rest_of_an_answer_stays_as_it_was_generated(kits: dict[str, Kit], name: str) -> None:
    """Its ids are none that a tokenizer would give for their text, and marks in them are text."""
    kit = kits[name]
    encode = kit.tokenizer.encode
    thought = encode("<think>\nhm</think>\n")
    rest = [token for c in "hello <think> in </think>\n" for token in encode(c)] + encode("</think>")
    conversation = Conversation(kit.template, "")
    conversation.ask("hello")
    before = conversation.prompt()
    conversation.answer("plain", [*thought, *rest], len(thought))
    # Nobody has asked again yet, and the cache holds the thought.
    unasked = conversation.prompt()
    assert any(unasked[i : i + len(thought) + len(rest)] == [*thought, *rest] for i in range(len(unasked)))
    for ask in (lambda: conversation.ask("a"), lambda: conversation.hand_over(OTHER)):
        turns = conversation.turns
        ask()
        kept = rest if kit.template.drops_thoughts else [*thought, *rest]
        assert conversation.prompt()[: len(before) + len(kept) + 1] == [*before, *kept, conversation.end_of_turn]
        conversation.turns = turns
    # The transcript keeps all.
    assert conversation.turns[-1].content == [*thought, *rest]


def test_an_answer_that_is_nothing_but_a_thought(kits: dict[str, Kit]) -> None:
    kit = kits[QWEN3.name]
    conversation = Conversation(kit.template, "")
    conversation.ask("hello")
    before = conversation.prompt()
    conversation.answer("plain", *says(kit, "<think>in</think>\n"))
    conversation.ask("a")
    assert conversation.prompt()[: len(before) + 1] == [*before, conversation.end_of_turn]


# -- a session ---------------------------------------------------------------------------------------------------------

DROPS = CHATML.replace(
    "{{ message['content'] }}",
    "{% if loop.last or message.role != 'assistant' %}{{ message.content }}{% else %}"
    "{{ message.content.split('</think>')[-1].lstrip('\n') }}{% endif %}",
)


def talk(
    tiny: Tiny, template: str, answers: Sequence[str], monkeypatch: pytest.MonkeyPatch, stack: ExitStack
) -> Session:
    """A session of two agents whose answers are given."""
    session = make_session(tiny.path, [base_agent(), Agent(name="other")], stack, speculate=False, template=template)
    end = session.conversation.end_of_turn
    script(monkeypatch, [[*session._tokenizer.encode(answer), end] for answer in answers])
    return session


def asked(session: Session, text: str, *names: str) -> list[AnswerDone]:
    answers = done(session.ask(text, names))
    cells = session.engine.cells
    assert (
        cells.n_used
        == cells.length(session.sequence)
        == answers[-1].reused + answers[-1].encoded + sum(answer.generated for answer in answers[-1:])
    )
    return answers


@pytest.mark.parametrize(
    ("template", "dropped", "opened"),
    [(CHATML, False, False), (QWEN3.source, True, False), (DROPS, True, False), (opening(DROPS), True, True)],
    ids=["keeps", "qwen3", "drops", "opens"],
)
def test_the_next_turn_counts_what_is_encoded_again(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch, template: str, dropped: bool, opened: bool
) -> None:
    thought, rest = "hm\n</think>\n\n" if opened else "<think>\nhm\n</think>\n\n", "yes"
    with ExitStack() as stack:
        session = talk(tiny, template, [thought + rest, "no"], monkeypatch, stack)
        encode, controls = session._tokenizer.encode, session._tokenizer.controls
        start, end = [controls["<|im_start|>"]], [controls["<|im_end|>"], *encode("\n")]
        opened_with = encode("<think>\n") if opened else []
        question = [*end, *start, *encode("user\nagain"), *end, *start, *encode("assistant\n"), *opened_with]
        n_rest = len(encode(rest))
        (first,) = asked(session, "hello", "base")
        assert (first.thought, first.text, first.finish_reason) == ("hm", "yes", "stop")
        assert first.generated == len(encode(thought)) + n_rest
        assert session.conversation.turns[-1].thought == len(encode(thought))
        if template is not QWEN3.source and not opened:
            # Qwen 3's writes an empty thought before the last answer, where nobody has asked again.
            agree(session)
        (second,) = asked(session, "again", "base")
    if dropped:
        assert second.reused == first.reused + first.encoded - len(opened_with)
        assert second.encoded == n_rest + len(question)
    else:
        assert second.reused == first.reused + first.encoded + first.generated
        assert second.encoded == len(question)
    assert (second.thought, second.text) == (("no", "") if opened else ("", "no"))


def test_the_next_agent_reads_no_thought_and_reuses_what_was_before_it(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ExitStack() as stack:
        session = talk(tiny, QWEN3.source, ["<think>hm</think>yes", "<think>so</think>no", "aha"], monkeypatch, stack)
        encode = session._tokenizer.encode
        first, second = asked(session, "hello")
        assert second.reused == first.reused + first.encoded
        (third,) = asked(session, "again", "base")
        # Up to the second thought: what the first said was encoded for the second agent already.
        assert third.reused == second.reused + second.encoded
        held = session.engine.cells.tokens(session.sequence).tolist()
        assert session._tokenizer.decode(held).count("hm") == 0
        assert "yes" in session._tokenizer.decode(held)
        assert [turn.thought for turn in session.conversation.turns if turn.role == "assistant"] == [
            *(len(encode(f"<think>{text}</think>")) for text in ("hm", "so")),
            0,
        ]


@pytest.mark.parametrize("join", ["base", "other", None])
def test_answers_at_once_join_with_their_thoughts_dropped(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch, join: str | None
) -> None:
    with ExitStack() as stack:
        session = talk(tiny, QWEN3.source, ["<think>hm</think>yes", "<think>so</think>no", "aha"], monkeypatch, stack)
        answers = {answer.agent: answer for answer in done(session.ask("hello", at_once=True))}
        assert {name: (a.thought, a.text) for name, a in answers.items()} == {
            "base": ("hm", "yes"),
            "other": ("so", "no"),
        }
        if join:
            list(session.run(Join(join)))
        (after,) = asked(session, "again", "base")
        assert after.reused == answers["base"].reused + answers["base"].encoded
        text = session._tokenizer.decode(session.engine.cells.tokens(session.sequence).tolist())
        assert "think" not in text
        assert [said in text for said in ("yes", "no")] == [join in (name, None) for name in ("base", "other")]
