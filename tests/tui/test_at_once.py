"""Answers at once, thoughts, cuts of the context, and an engine that dies: what stands under which name afterwards."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest

from icarus_local.chat.events import AnswerDone, AnswerStarted, ContextCut, TextDelta
from icarus_local.chat.figures import cost
from icarus_local.chat.reply import Outcome
from icarus_local.chat.requests import Ask, Join, Request
from icarus_local.errors import EngineDiedError, RequestError
from icarus_tui.reader import _joined
from tests.tui.fake import HOLD, FakeChat, FakeReply, done, echo
from tests.tui.screen import on_screen, screen

MIB = 2**20
CUT = ContextCut(turns=4, tokens=900, files=("big.py",), encoded_again=300)


def ended(agent: str, text: str, encoded: int, generated: int, one: int, separate: int) -> AnswerDone:
    return AnswerDone(agent, text, "stop", 100, encoded, generated, 0.25, 12.5, one * MIB, separate * MIB)


CODER = ended("coder", "A\nB", 20, 30, 5, 6)
REVIEWER = ended("reviewer", "1\n2\n3", 40, 60, 8, 14)


def interleaved(text: str, names: Sequence[str]) -> Iterator[object]:
    """Both at once, reviewer a little longer; each has what it says, letter by letter."""
    yield from (AnswerStarted("coder"), AnswerStarted("reviewer"))
    for letter, digit in zip("A\nB", "1\n2", strict=True):
        yield from (TextDelta("coder", letter), TextDelta("reviewer", digit))
        if text == "slowly":
            yield 0.1
    yield CODER
    if text == "hold":
        yield HOLD
    yield from (TextDelta("reviewer", "\n3"), REVIEWER)


@pytest.mark.parametrize("text", ["fast", "slowly"])
@on_screen
async def test_interleaved_answers_stand_each_under_its_name_with_its_own_figures(text: str) -> None:
    async with screen(FakeChat(interleaved), size=(120, 30)) as s:
        await s.ask(f"/all {text}")
        assert s.chat.requests == [Ask(text, at_once=True)]
        assert s.text.split("\n") == [
            *("", "you /all", text),
            *("", "coder", "A", "B", cost(CODER)),
            *("reviewer", "1", "2", "3", cost(REVIEWER)),
            "/keep AGENT leaves only one of these answers in the conversation",
        ]


@on_screen
async def test_who_answers_is_said_and_stopping_stops_all_who_still_do() -> None:
    async with screen(FakeChat(interleaved), size=(120, 30)) as s:
        await s.send("/all hold")
        await s.until(lambda: cost(CODER) in s.text)
        assert s.activity == "reviewer is answering"
        assert "▶ reviewer" in s.agents
        assert "▶ coder" not in s.agents
        s.key("escape")
        await s.idle()
        assert "coder\nA\nB\n[coder: " in s.text
        assert "reviewer stopped\n1\n2\n[reviewer: " in s.text
        assert s.text.count(", stopped; ") == 1

    def both(text: str, names: Sequence[str]) -> Iterator[object]:
        yield from (AnswerStarted("coder"), AnswerStarted("reviewer"))
        yield from (TextDelta("coder", "A"), HOLD)

    async with screen(FakeChat(both), size=(120, 30)) as s:
        await s.send("/all x")
        await s.until(lambda: s.activity == "coder, reviewer are answering")
        s.key("escape")
        await s.idle()
        assert s.text.count(", stopped; ") == 2
        assert "coder stopped\nA\n[coder: " in s.text
        assert "reviewer stopped\n[reviewer: " in s.text
        # There is nothing to choose from.
        assert "/keep" not in s.text


@on_screen
async def test_stopped_before_anybody_said_anything_all_is_taken_back() -> None:
    script = [AnswerStarted("coder"), AnswerStarted("reviewer"), HOLD]
    async with screen(FakeChat(lambda text, names: script)) as s:
        await s.send("/all @coder @reviewer x")
        await s.until(lambda: s.activity == "coder, reviewer are reading")
        s.key("escape")
        await s.until(lambda: s.prompt.text == "/all @coder @reviewer x")
        await s.idle()
        assert "MiB" not in s.meter
        assert "/all" not in s.text


@on_screen
async def test_the_answer_that_is_kept_is_marked_and_the_latest() -> None:
    async with screen(FakeChat(interleaved), size=(120, 30)) as s:
        await s.ask("/all x")
        await s.ask("/keep coder")
        assert "reviewer not kept" in s.text
        assert "coder not kept" not in s.text
        assert s.view.presenter.answers == ["A\nB"]
        await s.ask("/regenerate")
        assert s.chat.requests[-1] == Ask("x", at_once=True, attempt=1)
        assert "not kept" not in s.text


@on_screen
async def test_only_an_answer_to_the_newest_question_can_be_kept() -> None:
    async with screen(FakeChat(interleaved), size=(140, 40)) as s:
        await s.ask("/all one")
        await s.ask("/all two")
        s.key("shift+tab")
        await s.until(lambda: s.transcript.has_focus)
        s.key("home", "down")
        await s.until(lambda: s.transcript.target is not None and s.transcript.target.agent == "coder")
        assert "Keep this one" not in s.footer
        s.key("end")
        await s.until(lambda: "Keep this one" in s.footer)
        s.key("k")
        await s.until(lambda: s.chat.requests[-1] == Join("coder"))
        await s.idle()


@on_screen
async def test_who_said_nothing_at_once_counts_for_nothing() -> None:
    def quiet(text: str, names: Sequence[str]) -> Iterator[object]:
        if text != "at once":
            yield from echo(text, ["coder"])
            return
        yield from (AnswerStarted("coder"), AnswerStarted("reviewer"), TextDelta("coder", "A"))
        yield from (done("coder", "A"), done("reviewer", "", generated=0))

    async with screen(FakeChat(quiet)) as s:
        await s.ask("before")
        await s.ask("/all at once")
        await s.ask("/keep coder")
        assert s.view.presenter.answers == ["coder heard: before", "A"]


@on_screen
async def test_nobody_is_asked_twice_at_once() -> None:
    async with screen(FakeChat(interleaved)) as s:
        await s.ask("/all @coder @reviewer @coder x")
        assert s.chat.asked == [("x", ("coder", "reviewer"))]


@on_screen
async def test_what_a_question_means_can_be_said_once() -> None:
    async with screen(FakeChat()) as s:
        s.host.at_once = True
        await s.ask("x")
        await s.ask("/rounds 2 y")
        s.host.at_once, s.host.rounds = False, 3
        await s.ask("z")
        assert s.chat.requests == [Ask("x", at_once=True), Ask("y", rounds=2), Ask("z", rounds=3)]


def test_text_of_agents_who_take_turns_is_joined_for_each() -> None:
    outcomes: list[Outcome] = [
        *(TextDelta("a", "hm", True), TextDelta("b", "1"), TextDelta("a", "1"), TextDelta("b", "2"), CODER),
        *(TextDelta("a", "2"), None, None),
    ]
    assert list(_joined(outcomes)) == [
        *(TextDelta("a", "hm", True), TextDelta("b", "12"), TextDelta("a", "1"), CODER, TextDelta("a", "2"), None, None)
    ]


# -- thoughts ----------------------------------------------------------------------------------------------------------


def thinking(text: str, names: Sequence[str]) -> Iterator[object]:
    yield AnswerStarted("coder")
    for word in ("Let ", "me ", "think"):
        yield TextDelta("coder", word, thought=True)
    if text == "hold":
        yield HOLD
    if text == "fail":
        yield RequestError("it failed")
    yield TextDelta("coder", "Done.")
    yield replace(done("coder", "Done."), thought="Let me think")


@on_screen
async def test_a_thought_is_one_line_that_is_folded_when_the_answer_is_whole() -> None:
    async with screen(FakeChat(thinking)) as s:
        await s.ask("x")
        assert s.text.endswith(f"coder\n▸ thought, 3 words\nDone.\n{cost(done('coder', ''))}")
        s.key("ctrl+t")
        await s.until(lambda: "coder\n▾ thought, 3 words\nLet me think\nDone.\n" in s.text)
        s.key("ctrl+t")
        await s.until(lambda: "Let me think" not in s.text)


@on_screen
async def test_stopped_while_it_thinks_a_thought_is_folded_too() -> None:
    async with screen(FakeChat(thinking)) as s:
        await s.send("hold")
        await s.until(lambda: s.activity == "coder is thinking")
        assert s.text.endswith("coder\n▸ thinking …")
        s.key("escape")
        await s.idle()
        assert "coder stopped\n▸ thought, 3 words\n" in s.text
        assert "thinking" not in s.text


@on_screen
async def test_a_thought_that_an_error_ends_is_folded_too() -> None:
    async with screen(FakeChat(thinking)) as s:
        await s.ask("fail")
        assert "coder stopped\n▸ thought, 3 words\n\nit failed" in s.text
        assert s.prompt.text == ""


# -- cuts and deaths ---------------------------------------------------------------------------------------------------


@on_screen
async def test_a_cut_of_the_context_is_told_before_the_answer() -> None:
    async with screen(FakeChat(lambda text, names: [CUT, *echo(text, ["coder"])])) as s:
        await s.ask("x")
        cut = "the context was full: the 4 oldest contributions (900 tokens, big.py among them) left it"
        assert f"you\nx\n{cut}" in s.text
        assert "300 tokens behind them are encoded again\n\ncoder\ncoder heard: x" in s.text


@on_screen
async def test_a_cut_does_not_keep_a_question_that_nobody_answered() -> None:
    async with screen(FakeChat(lambda text, names: [CUT, AnswerStarted("coder"), HOLD])) as s:
        await s.send("x")
        await s.until(lambda: "the context was full" in s.text)
        s.key("escape")
        await s.until(lambda: s.prompt.text == "x")
        assert "the context was full" not in s.text


DIED = EngineDiedError("the engine ended unexpectedly (SIGABRT)", "It was started again")


@on_screen
async def test_an_engine_that_dies_with_what_was_not_saved_leaves_nothing_to_ask_again() -> None:
    def dies(text: str, names: Sequence[str]) -> Iterator[object]:
        if text == "die":
            chat.opened = replace(chat.opened, engine=1)
            raise DIED
        yield from echo(text, names)

    chat = FakeChat(dies, conversation="")
    async with screen(chat) as s:
        await s.ask("before")
        await s.send("die")
        await s.until(lambda: s.prompt.text == "die")
        s.key("f7", "delete")
        await s.ask("after")
        assert s.view.presenter.newest == Ask("after")
        assert len(s.view.presenter._questions) == 1


@on_screen
async def test_what_an_engine_died_of_goes_back_into_the_input_whatever_was_said() -> None:
    def dies(text: str, names: Sequence[str]) -> Iterator[object]:
        if text == "next":
            chat.opened = replace(chat.opened, engine=1)
            yield from echo(text, names)
            return
        if text == "later":
            yield from echo(text, ["coder"])
        yield from (AnswerStarted("reviewer"), TextDelta("reviewer", "half an ans"), DIED)

    chat = FakeChat(dies)
    async with screen(chat) as s:
        await s.send("x")
        await s.send("next")
        await s.until(lambda: s.prompt.text == "x")
        await s.idle()
        died = "the engine ended unexpectedly (SIGABRT). It was started again"
        assert f"you (taken back)\nx\n\nreviewer stopped\nhalf an ans\n\n{died}" in s.text
        assert "coder heard: next" in s.text
        assert s.text.count("started again") == 1
        # Of a whole answer, its process has told: it stays with its question.
        s.key("f7", "delete")
        await s.until(lambda: not s.prompt.text)
        await s.ask("later")
        assert "you\nlater\n\ncoder\ncoder heard: later" in s.text
        assert s.prompt.text == ""


@pytest.mark.parametrize("conversation", ["c1", ""])
@on_screen
async def test_an_engine_that_died_while_nobody_asked_is_told_of_with_the_next_question(conversation: str) -> None:
    async with screen(FakeChat()) as s:
        await s.ask("before")
        s.chat.opened = replace(s.chat.opened, engine=1, conversation=conversation)
        await s.ask("after")
        kept = "goes on" if conversation else "was not saved and begins anew"
        told = f"the engine had ended unexpectedly and was started again; the conversation {kept}"
        assert f"you\nafter\n{told}\n\ncoder\ncoder heard: after" in s.text
        await s.ask("once more")
        assert s.text.count("started again") == 1


@on_screen
async def test_what_the_chat_does_not_take_is_said_and_comes_back() -> None:
    class Closed(FakeChat):
        def submit(self, request: Request) -> FakeReply:
            if request == Ask("x"):
                raise EngineDiedError("there is no engine any more")
            return super().submit(request)

    async with screen(Closed()) as s:
        await s.send("x")
        await s.until(lambda: s.prompt.text == "x")
        assert "you (taken back)\nx\n\nthere is no engine any more" in s.text
        assert not s.activity
        s.key("f7", "delete")
        await s.ask("y")
        await s.send("x")
        assert s.prompt.text == "x"
        assert "coder heard: y" in s.text
