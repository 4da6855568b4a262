"""Asking, reading, queueing, stopping: what a person does, over a chat that answers from a script."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from icarus_local.chat.events import AnswerStarted, TextDelta
from icarus_local.chat.figures import cost
from icarus_local.errors import ContextFullError
from icarus_tui.looks import agent_variables, colour
from tests.tui.fake import HOLD, FakeChat, done, echo
from tests.tui.screen import on_screen, screen

SECOND = 1.0  # what stopping may take


def hold(text: str, names: Sequence[str]) -> Iterator[object]:
    """The first agent says a little and then goes on until it is stopped; `no` stops before the first word."""
    if not text.startswith("hold"):
        yield from echo(text, names)
        return
    yield AnswerStarted(names[0])
    if "no" not in text:
        yield TextDelta(names[0], "a first part")
    yield HOLD


@on_screen
async def test_all_agents_answer_and_every_answer_has_its_figures() -> None:
    async with screen(FakeChat()) as s:
        await s.ask("What is 1+1?")
        assert s.chat.asked == [("What is 1+1?", ())]
        lines = s.text.split("\n")
        assert lines == [
            *("", "you", "What is 1+1?"),
            *("", "coder", "coder heard: What is 1+1?", cost(done("coder", ""))),
            *("", "reviewer", "reviewer heard: What is 1+1?", cost(done("reviewer", ""))),
        ]


@on_screen
async def test_names_are_in_the_agents_colours() -> None:
    async with screen(FakeChat(agents=("coder", "reviewer", "base"))) as s:
        await s.ask("@reviewer hello")
        (answer,) = s.transcript.entries[-1].answers()
        (name,) = [line for block in answer.blocks() for line in block.lines if line.text == "reviewer"]
        assert [span.style for span in name.spans or ()] == [f"bold {colour(1)}"]
        assert "coder 9.0 MiB  reviewer 9.0 MiB  base" in s.rows()[0]
        assert len(set(agent_variables(s.app.current_theme).values())) == 8


@on_screen
async def test_code_has_its_colours_when_its_block_has_come() -> None:
    code = "Here:\n\n```python\ndef f(x):\n    return 'a'\n```\n"

    def streaming(text: str, names: Sequence[str]) -> Iterator[object]:
        yield AnswerStarted("coder")
        for character in code:
            # Each is drawn as it comes, before the block is whole.
            yield from (TextDelta("coder", character), 0.02)
        yield done("coder", code)

    async with screen(FakeChat(streaming)) as s:
        await s.ask("x")
        (row,) = [strip for strip in s.app.screen._compositor.render_strips() if "return" in strip.text]
        styles = {segment.text: segment.style.color for segment in row if segment.style}
        assert styles["return"] != styles["a"]


@on_screen
async def test_the_status_line_shows_the_one_cache() -> None:
    async with screen(FakeChat()) as s:
        assert "0/4096 tokens" in s.meter
        await s.ask("hello")
        assert "113/4096 tokens · 2.0 MiB; 2 separate caches: 4.0 MiB" in s.meter


@on_screen
async def test_one_agent_is_addressed_by_name() -> None:
    async with screen(FakeChat()) as s:
        await s.ask("@reviewer, look at this")
        assert s.chat.asked == [("look at this", ("reviewer",))]
        assert "you @reviewer\nlook at this" in s.text
        assert "coder heard" not in s.text


@on_screen
async def test_an_unknown_name_is_said_and_the_line_stays_to_be_corrected() -> None:
    async with screen(FakeChat()) as s:
        s.key(*"@nobody hi", "enter")
        await s.until(lambda: "there is no agent @nobody here" in s.text)
        assert s.prompt.text == "@nobody hi"
        assert s.chat.asked == []
        s.key("home", *["delete"] * 8)
        await s.ask("")
        assert s.chat.asked == [("hi", ())]


@on_screen
async def test_an_address_without_a_question_is_refused() -> None:
    async with screen(FakeChat()) as s:
        s.key(*"@coder", "enter")
        await s.until(lambda: "the question is empty" in s.text)


@on_screen
async def test_notices_are_shown_at_the_start() -> None:
    async with screen(FakeChat(notices=["reviewer speaks [as the] base"])) as s:
        await s.until(lambda: any("reviewer speaks [as the] base" in row for row in s.rows()))


@on_screen
async def test_questions_typed_ahead_wait_in_order_and_are_shown_as_queued() -> None:
    async with screen(FakeChat(hold)) as s:
        await s.send("hold on")
        await s.until(lambda: "a first part" in s.text)
        await s.send("second")
        await s.send("@reviewer third")
        await s.until(lambda: "coder is answering, 2 queued" in s.activity)
        assert "you (queued)\nsecond" in s.text
        assert "you @reviewer (queued)\nthird" in s.text
        s.key("escape")
        await s.idle()
        assert "queued" not in s.text
        answers = [s.text.index(answer) for answer in ("a first part", "coder heard: second", "reviewer heard: third")]
        assert answers == sorted(answers)
        assert s.text.index("coder heard: second") < s.text.index("third")


@on_screen
async def test_lines_sent_in_one_burst_are_questions_of_their_own() -> None:
    async with screen(FakeChat()) as s:
        s.key(*"one", "enter", *"two", "enter", *"thref", "backspace", "e", "left", "left", "backspace", "enter")
        await s.until(lambda: len(s.chat.asked) == 3)
        assert [text for text, _ in s.chat.asked] == ["one", "two", "thee"]
        await s.idle()


@on_screen
async def test_escape_stops_within_a_second_and_keeps_what_was_said() -> None:
    async with screen(FakeChat(hold)) as s:
        await s.send("hold on")
        await s.until(lambda: "a first part" in s.text)
        s.key("escape")
        took = await s.until(lambda: "coder stopped\na first part" in s.text)
        assert took < SECOND
        assert ", stopped;" in s.text
        assert "reviewer" not in s.text
        await s.idle()
        assert s.prompt.text == ""
        await s.ask("go on")
        assert "coder heard: go on" in s.text


@on_screen
async def test_stopped_before_the_first_word_the_question_goes_back_into_the_input() -> None:
    async with screen(FakeChat(hold)) as s:
        await s.send("@coder hold no")
        await s.until(lambda: "coder is reading" in s.activity)
        s.key("escape")
        await s.until(lambda: s.prompt.text == "@coder hold no")
        assert s.prompt.cursor_location == (0, 14)
        await s.idle()
        assert "hold no" not in s.text
        assert "the question was taken back, it is in the input again" in s.text


@on_screen
async def test_a_question_taken_back_does_not_overwrite_what_is_being_typed() -> None:
    async with screen(FakeChat(hold)) as s:
        await s.send("hold no")
        await s.until(lambda: "coder is reading" in s.activity)
        s.key(*"next", "escape")
        await s.until(lambda: "taken back, Up brings it back" in s.text)
        assert s.prompt.text == "next"
        s.key("up")
        await s.until(lambda: s.prompt.text == "hold no")


@on_screen
async def test_escape_without_an_answer_does_nothing() -> None:
    async with screen(FakeChat()) as s:
        s.key(*"typed", "escape")
        await s.until(lambda: s.prompt.text == "typed")
        await s.ask("")
        assert s.chat.asked == [("typed", ())]


@on_screen
async def test_nothing_generated_without_a_stop_is_not_called_a_stop() -> None:
    def silent(text: str, names: Sequence[str]) -> Iterator[object]:
        yield AnswerStarted("coder")
        yield done("coder", "", generated=0)

    async with screen(FakeChat(silent)) as s:
        await s.send("anything")
        await s.until(lambda: "Nobody said anything" in s.text)
        assert s.prompt.text == "anything"


@on_screen
async def test_an_error_in_a_request_is_a_message_and_the_program_goes_on() -> None:
    def fails(text: str, names: Sequence[str]) -> Iterator[object]:
        if text == "full":
            raise ContextFullError("the conversation is longer than 4096 tokens", "Start a new one")
        if text == "bug":
            yield AnswerStarted("coder")
            yield TextDelta("coder", "half an ans")
            raise ZeroDivisionError("a [bold] bug")
        yield from echo(text, names)

    async with screen(FakeChat(fails)) as s:
        await s.send("full")
        await s.until(lambda: "the conversation is longer than 4096 tokens. Start a new one" in s.text)
        await s.until(lambda: s.prompt.text == "full")
        assert "you (taken back)\nfull" in s.text
        s.key("f7", "delete")
        await s.until(lambda: not s.prompt.text)
        await s.ask("bug")
        assert "coder stopped\nhalf an ans\n\nZeroDivisionError: a [bold] bug" in s.text
        assert s.prompt.text == ""
        await s.ask("still there?")
        assert "coder heard: still there?" in s.text


@on_screen
async def test_quitting_stops_what_is_under_way() -> None:
    chat = FakeChat(hold)
    async with screen(chat) as s:
        await s.send("hold on")
        await s.send("and this")
        await s.until(lambda: "a first part" in s.text)
        start = time.monotonic()
        s.key("ctrl+q")
        await s.until(lambda: not s.app.is_running)
    assert time.monotonic() - start < SECOND
    assert all(reply.cancelled for reply in chat.replies)
    assert s.app.return_code == 0
