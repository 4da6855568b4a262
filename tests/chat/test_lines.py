"""What a sent line means."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icarus_local.chat.lines import COMMANDS, Command, help_lines, parse, question
from icarus_local.chat.requests import Ask
from icarus_local.errors import RequestError


@pytest.mark.parametrize(
    ("line", "parsed"),
    [
        ("/help", Command("help")),
        ("/quit ", Command("quit")),
        ("/add  a.py 'b c.py' ", Command("add", "a.py 'b c.py'")),
        ("/save-code 2 x.py", Command("save-code", "2 x.py")),
        (" /help", Ask(" /help")),
        ("/etc/passwd, what is it?", Ask("/etc/passwd, what is it?")),
        ("//", Ask("//")),
        ("@coder do it", Ask("do it", ("coder",))),
        ("  @coder: do\nit", Ask("do\nit", ("coder",))),
        ("@coder, @reviewer do it", Ask("do it", ("coder", "reviewer"))),
        ("@coder@reviewer do it", Ask("@coder@reviewer do it")),
        ("@coder", Ask("", ("coder",))),
        ("@ coder", Ask("@ coder")),
        ("me@home is it", Ask("me@home is it")),
        ("plain", Ask("plain")),
        ("/all @a @b what?", Ask("what?", ("a", "b"), at_once=True)),
        ("/rounds 3 @a write\nit", Ask("write\nit", ("a",), 3)),
    ],
)
def test_lines_mean_one_thing(line: str, parsed: Command | Ask) -> None:
    assert parse(line) == parsed


def test_what_a_question_means_that_says_nothing_else() -> None:
    assert parse("hi", rounds=2) == Ask("hi", (), 2)
    assert parse("hi", at_once=True) == Ask("hi", at_once=True)
    assert parse("/all hi", rounds=2) == Ask("hi", (), 1, at_once=True)
    assert parse("/rounds 2 hi", at_once=True) == Ask("hi", (), 2)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("/nothing", "there is no command /nothing. There are /add"),
        ("/rounds hi", "/rounds wants"),
        ("/new What is it?", "/new stands alone. Send 'What is it\\?' as a line"),
    ],
)
def test_what_is_no_command_is_said(line: str, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        parse(line)


@given(line=st.text())
def test_any_line_is_a_question_a_command_or_refused(line: str) -> None:
    try:
        parsed = parse(line)
    except RequestError:
        assert line.startswith("/")
        return
    # Nothing of a question is lost.
    assert not isinstance(parsed, Ask) or line.startswith("/") or line.endswith(parsed.text)


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (Ask(" \n"), "the question is empty"),
        (Ask("hi", ("c",)), "there is no agent @c here. Here are @a, @b"),
        (Ask("hi", (), 0), "0 rounds; 1 to 100"),
        (Ask("hi", (), 101), "101 rounds"),
        (Ask("hi", (), 2, at_once=True), "have no rounds"),
        (Ask("hi", ("a", "b", "a"), at_once=True), "Name each agent once"),
    ],
)
def test_questions_that_cannot_be_asked(ask: Ask, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        ask.check(("a", "b"))


def test_help_names_every_command() -> None:
    assert [line.split()[0].rstrip(":") for line in help_lines(on_screen=True)] == [f"/{name}" for name in COMMANDS]


def test_help_without_a_screen_leaves_out_what_needs_one() -> None:
    shown = " ".join(help_lines(on_screen=False))
    assert {name for name in COMMANDS if f"/{name}" not in shown} == {"copy", "sessions", "theme", "logs"}


@pytest.mark.parametrize("rounds", [1, 2])
def test_a_line_that_names_nobody_asks_those_who_were_chosen(rounds: int) -> None:
    assert parse("hi", rounds, names=("a", "b")) == Ask("hi", ("a", "b"), rounds)
    assert parse("@c hi", rounds, names=("a",)) == Ask("hi", ("c",), rounds)
    assert parse("/rounds 3 hi", rounds, names=("a",)) == Ask("hi", ("a",), 3)
    # All are all.
    assert parse("/all hi", rounds, names=("a",)) == Ask("hi", (), 1, at_once=True)


def test_a_question_may_begin_as_a_command() -> None:
    assert question("/new @a", names=("b",)) == Ask("/new @a", ("b",))
    assert question("@a: /new") == Ask("/new", ("a",))
