"""What commands mean, and what a person is told: the same on every screen."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from icarus_local.chat.code import CodeBlock, code_blocks, save_code
from icarus_local.chat.commands import (
    agents_named,
    block_to_save,
    file_to_export,
    files_named,
    question_before_saving,
    roster_lines,
    roster_request,
    told,
)
from icarus_local.chat.events import (
    AgentsChanged,
    AgentState,
    AnswerDone,
    AnswersJoined,
    AnswerStarted,
    CacheUsed,
    ContextCut,
    ConversationBegun,
    ConversationResumed,
    Event,
    FileAdded,
    FileWeighed,
    QuestionTakenBack,
    RoundsEnded,
    TextDelta,
    Transcribed,
)
from icarus_local.chat.files import TextFile
from icarus_local.chat.requests import AddAgent, ReloadAgent, RemoveAgent, Request
from icarus_local.errors import RequestError

ONE = "See:\n```py\nx = 1\ny = 2\n```\n"
TWO = "```\nplain\n```\nand\n```sh\nls\n```\nand that is all"
NONE = "no code, `x = 1`"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("USERPROFILE", str(tmp_path / "home"))
    return tmp_path


# -- /add --------------------------------------------------------------------------------------------------------------


def test_add_names_files_patterns_and_quoted_paths(folder: Path) -> None:
    for name in ("b.py", "a.py", "c d.txt", "e.txt"):
        (folder / name).write_text(f"{name}\n")
    assert files_named("e.txt  'c d.txt' *.py a.py") == [
        TextFile(name, f"{name}\n", len(name) + 1) for name in ("e.txt", "c d.txt", "a.py", "b.py")
    ]


@pytest.mark.parametrize(
    ("rest", "message"),
    [
        ("", r"/add wants the path of a file\. For example: /add"),
        ("  ", "/add wants the path"),
        ("none.py", "there is no file none.py"),
        ("*.rs", "matches no file"),
        ("'a.py", "a quote is not closed"),
        ("a.py .", "is a folder"),
    ],
)
def test_what_cannot_be_added_is_said(folder: Path, rest: str, message: str) -> None:
    (folder / "a.py").write_text("x")
    with pytest.raises(RequestError, match=message):
        files_named(rest)


# -- /save-code --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rest", "number", "path"),
    [
        ("1 x.txt", 1, "x.txt"),
        ("2 x.sh", 2, "x.sh"),
        ("2   'x y.sh'", 2, "x y.sh"),
        ("2 sub/x.sh", 2, "sub/x.sh"),
        ("1", 1, "code.txt"),
        ("2", 2, "code.sh"),
        ("2 1", 2, "1"),
        ("2 ''", 2, "."),
        ('2 "2"', 2, "2"),
    ],
)
def test_which_block_and_which_file(rest: str, number: int, path: str) -> None:
    assert block_to_save([TWO], rest) == (code_blocks(TWO)[number - 1], Path(path))


@pytest.mark.parametrize(
    ("rest", "path"),
    [
        ("", "code.py"),
        ("x.py", "x.py"),
        ("1", "code.py"),
        ("1 x.py", "x.py"),
        ("'1'", "1"),
        ("12345", "12345"),
        ("1st.py", "1st.py"),
        ("1.py", "1.py"),
        (r"a\ b.py", "a b.py"),
    ],
)
def test_the_only_block_needs_no_number(rest: str, path: str) -> None:
    assert block_to_save([ONE], rest) == (CodeBlock("py", "x = 1\ny = 2\n"), Path(path))


def test_the_latest_answer_that_holds_code_counts() -> None:
    assert block_to_save([TWO, ONE, NONE], "")[0].language == "py"
    assert block_to_save(iter([ONE, TWO, NONE, ""]), "2")[0].language == "sh"


def test_a_home_folder_is_expanded_and_nobodys_is_refused_when_it_is_written(folder: Path) -> None:
    assert block_to_save([ONE], "~/x.py")[1] == folder / "home" / "x.py"
    for rest in ("~nobody-of-that-name/x.py", "~\0/x.py"):
        block, path = block_to_save([ONE], rest)
        with pytest.raises(RequestError, match=r"there is no folder|cannot be written"):
            save_code(block, path)


@pytest.mark.parametrize(
    ("answers", "rest", "message"),
    [
        ([], "", "no answer holds a code block"),
        ([NONE], "1 x.py", "no answer holds a code block"),
        ([TWO], "", r"the answer holds 2 code blocks: 1: 1 line; 2: 1 line of sh\. Say which: /save-code N FILE"),
        ([TWO], "x.sh", "the answer holds 2 code blocks"),
        ([TWO], "0 x.sh", "the answer holds 2 code blocks"),
        ([TWO], "3", "the answer holds 2 code blocks"),
        ([ONE], "2", "the answer holds 1 code block: 1: 2 lines of py"),
        ([TWO], "1 a b", r"writes one file\. Put a name with spaces in quotes"),
        ([TWO], "1 'a", "a quote is not closed"),
    ],
)
def test_what_cannot_be_saved_is_said(answers: list[str], rest: str, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        block_to_save(answers, rest)


@given(st.text(st.sampled_from("~/012 '\"\\\n\tab.\0é")), st.sampled_from([[ONE], [TWO], [NONE, ONE]]))
@example("٣ x", [TWO])
@example("9999 ", [ONE])
def test_any_line_saves_a_block_or_is_refused(rest: str, answers: list[str]) -> None:
    try:
        block, path = block_to_save(answers, rest.strip())
    except RequestError:
        return
    assert block in code_blocks(answers[-1])
    assert isinstance(path, Path)


@pytest.mark.parametrize(
    ("block", "question"),
    [
        (CodeBlock("py", "x\ny\n"), "Write 2 lines of py to d/x?"),
        (CodeBlock("", "x\n"), "Write 1 line to d/x?"),
        # Not closed, so its last line has no end.
        (CodeBlock("py", "x\ny"), "Write 2 lines of py to d/x?"),
        (CodeBlock("", "x"), "Write 1 line to d/x?"),
        (CodeBlock("", "\n\n"), "Write 2 lines to d/x?"),
        (CodeBlock("sh", ""), "Write 0 lines of sh to d/x?"),
    ],
)
def test_the_question_before_saving(block: CodeBlock, question: str) -> None:
    path = Path("d") / "x"
    question = question.replace("d/x", str(path))
    assert question_before_saving(block, path, replaces=False) == question
    assert question_before_saving(block, path, replaces=True) == f"{question} It exists and would be replaced."


# -- /export, /agent, /agents ------------------------------------------------------------------------------------------


def test_an_export_goes_where_the_line_says(folder: Path) -> None:
    assert file_to_export("", "0123abcd") == (Path("conversation-0123abcd.md"), "md")
    assert file_to_export("", "") == (Path("conversation-unsaved.md"), "md")
    assert file_to_export("'a b.jsonl'", "id") == (Path("a b.jsonl"), "jsonl")
    assert file_to_export("~/a.md", "id") == (folder / "home" / "a.md", "md")


@pytest.mark.parametrize(
    ("rest", "message"),
    [
        ("a.txt", r"a.txt names no form of a transcript\. Give a name that ends in \.md or \.jsonl"),
        ("a.md b.md", "/export writes one file"),
        ("'a.md", "a quote is not closed"),
    ],
)
def test_what_is_no_export_is_said(rest: str, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        file_to_export(rest, "id")


@pytest.mark.parametrize(
    ("rest", "names"),
    [("a", ("a",)), ("@b, @a", ("b", "a")), ("a a", ("a",)), ("a,b", ("a", "b")), ("all", ()), ("@all", ())],
)
def test_whom_lines_ask(rest: str, names: tuple[str, ...]) -> None:
    assert agents_named(rest, ("a", "b")) == names


@pytest.mark.parametrize(
    ("rest", "message"),
    [
        ("", "/agent wants the names of agents, or all. For example: /agent a"),
        ("c", "no agent @c here"),
        ("a all", "@all"),
    ],
)
def test_whom_lines_cannot_ask(rest: str, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        agents_named(rest, ("a", "b"))


@pytest.mark.parametrize(
    ("rest", "request_"),
    [
        ("add c", AddAgent("c")),
        ("add  mine=a b.gguf ", AddAgent("mine=a b.gguf")),
        ("remove @c", RemoveAgent("c")),
        ("reload c", ReloadAgent("c")),
    ],
)
def test_what_an_agents_line_asks_for(rest: str, request_: Request) -> None:
    assert roster_request(rest) == request_


@pytest.mark.parametrize("rest", ["add", "remove ", "c", "adds c", " "])
def test_what_is_no_agents_line_is_said(rest: str) -> None:
    with pytest.raises(RequestError, match="/agents wants add, remove or reload, and an agent"):
        roster_request(rest)


def test_who_takes_part_is_listed() -> None:
    states = [STATE, replace(STATE, name="b", resident=False), AgentState("base", "base", "", 0, True, 512)]
    assert roster_lines(states) == [
        "@a: 3.0 MiB, in memory",
        "@b: 3.0 MiB, read when it is asked",
        "@base: no adapter",
    ]


# -- what is told ------------------------------------------------------------------------------------------------------

STATE = AgentState("a", "a=x.gguf", "/x.gguf", 3 << 20, True, 512)
TOLD: list[tuple[Event, str]] = [
    (AnswerStarted("a"), ""),
    (TextDelta("a", "text"), ""),
    (TextDelta("a", "hm", thought=True), ""),
    (AnswerDone("a", "text", "stop", 1, 2, 3, 0.1, 5.0, 6, 7, notice="changed on disk"), ""),
    (
        ContextCut(7, 138, (), 38),
        "the context was full: the 7 oldest contributions (138 tokens) left it; they stay in the transcript. "
        "38 tokens behind them are encoded again",
    ),
    (
        ContextCut(7, 138, ("a.py", "b c.txt"), 0),
        "the context was full: the 7 oldest contributions (138 tokens, a.py, b c.txt among them) left it; they stay in "
        "the transcript. 0 tokens behind them are encoded again",
    ),
    (RoundsEnded("reviewer", 2, 3), "reviewer accepts in round 2 of 3"),
    (FileWeighed("a.py", 1536, 400, 3000), "a.py: 1.5 KiB, 400 tokens; 3000 are free"),
    (FileWeighed("a.py", 1 << 20, 400, 3000), "a.py: 1.0 MiB, 400 tokens; 3000 are free"),
    (FileWeighed("a.py", 12, 4, 3000), "a.py: 0.0 KiB, 4 tokens; 3000 are free"),
    (FileAdded("a.py"), "a.py is part of the conversation"),
    (FileAdded("a.py", already=True), "a.py is part of the conversation already"),
    (AnswersJoined(("a",)), "the conversation goes on with the answer of a"),
    (ConversationBegun("id"), "a new conversation"),
    (ConversationBegun("", "The old one is not saved."), "a new conversation. The old one is not saved."),
    (ConversationResumed("id", (), ("12 tokens restored", "another goes")), "12 tokens restored; another goes"),
    (ConversationResumed("id", (), ()), "conversation id goes on"),
    (QuestionTakenBack("what?", 0), "the newest question left the conversation"),
    (QuestionTakenBack("what?", 2), "the newest question and 2 answers to it left the conversation"),
    (AgentsChanged((STATE,)), ""),
    (AgentsChanged((STATE,), "a takes part", ("a was trained otherwise",)), "a takes part; a was trained otherwise"),
    (CacheUsed(1, 2, 3, 4), ""),
    (Transcribed("# text"), ""),
]


@pytest.mark.parametrize(("event", "text"), TOLD)
def test_what_a_person_is_told(event: Event, text: str) -> None:
    assert told(event) == text


def test_every_event_but_those_of_an_answer_is_told() -> None:
    assert {type(event) for event, _ in TOLD} == set(get_args(Event))
    told_nobody = {type(event) for event, text in TOLD if not text}
    assert told_nobody == {AnswerStarted, TextDelta, AnswerDone, AgentsChanged, CacheUsed, Transcribed}
