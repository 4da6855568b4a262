"""A conversation as text: what is shown where it goes on, and what an export holds, saved or not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icarus_local.chat.events import Said, Transcribed
from icarus_local.chat.files import TextFile
from icarus_local.chat.requests import AddFile, Join, TakeBack, Transcribe
from icarus_local.chat.session import Session
from icarus_local.chat.store import SavedTurn, Store
from icarus_local.chat.thoughts import ThoughtSplitter
from icarus_local.chat.transcripts import as_jsonl, as_markdown, form_of, history
from icarus_local.errors import RequestError
from tests.chat.chats import done
from tests.chat.keeping import World, ask


def text_of(session: Session, form: Literal["md", "jsonl"] = "md") -> str:
    event, *rest = session.run(Transcribe(form))
    assert isinstance(event, Transcribed)
    assert rest == []
    return event.text


def test_what_was_said_is_shown_without_what_is_the_programs() -> None:
    turns = [
        SavedTurn("system", "Be good.", None),
        SavedTurn("file", "File a b.py:\n\n```py\nx = 1\n```", None, False),
        SavedTurn("user", "File x:\n\nis no file", None, False),
        SavedTurn("hand-over", "Answer as a coder.", None),
        SavedTurn("coder", "<think>\n1?\n</think>\n\nIt is 1.", (5, 6, 7), thought=2),
        # The prompt had opened it; and one that was cut short.
        SavedTurn("coder", "1?\n</think>\nIt is 1.", (5, 6, 7), thought=2),
        SavedTurn("coder", "<think>Is it", (5,)),
        SavedTurn("file", "I am an agent", (5,)),
    ]
    assert history(turns) == [
        Said("you", "a b.py", False, in_context=False, file=True),
        Said("you", "File x:\n\nis no file", False, in_context=False),
        Said("coder", "It is 1.", True, thought="1?"),
        Said("coder", "It is 1.", True, thought="1?"),
        Said("coder", "", True, thought="Is it"),
        Said("file", "I am an agent", True),
    ]
    assert [said.shown for said in history(turns)[:3]] == [
        "you: File a b.py (no longer in the context)",
        "you: File x:\n\nis no file (no longer in the context)",
        "coder: (thinking …) It is 1.",
    ]


@given(text=st.text(st.sampled_from("<think>/ \nab"), max_size=60) | st.text(), opened=st.booleans())
def test_an_answer_is_shown_again_as_it_was_streamed(text: str, opened: bool) -> None:
    splitter = ThoughtSplitter(opened)
    pieces = [piece for character in text for piece in splitter.add(character)] + splitter.finish()
    thought, said = ("".join(piece for piece, of in pieces if of is which) for which in (True, False))
    # What a cut thought that the prompt had opened was cannot be seen in it, nor one whose mark was said again.
    if opened and (splitter.state == "thinking" or text.lstrip().startswith("<think>")):
        return
    turn = SavedTurn("a", text, (1, 2, 3), thought=2 if splitter.state in ("closed", "saying") and thought else 0)
    if opened and not turn.thought:
        return
    shown = turn.said
    assert shown is not None
    assert (shown.thought, shown.text) == (thought, said)


@pytest.mark.parametrize("at_once", [False, True])
def test_an_unsaved_conversation_is_exported_too(session: Session, at_once: bool) -> None:
    assert text_of(session).startswith("# \n\nA conversation with a, b, base on ")
    list(session.run(AddFile(TextFile("x.txt", "text\n", 5))))
    answers = done(session.ask("What is it?", at_once=at_once))
    text = text_of(session)
    assert text.startswith("# What is it?\n\nA conversation with a, b, base on ")
    assert "## file\n\nFile x.txt:" in text
    assert "hand-over" not in text
    lines = [json.loads(line) for line in text_of(session, "jsonl").splitlines()]
    said = {line["speaker"]: line["content"] for line in lines}
    assert set(said) == {"system", "file", "user", "hand-over", "a", "b", "base"}
    for answer in answers:
        assert said[answer.agent] == answer.text
        assert f"## {answer.agent}\n\n{answer.text}" in text
    if at_once:
        # They can still be chosen among, and what was not chosen is marked then.
        list(session.run(Join("b")))
        assert "## a (no longer in the context)" in text_of(session)


def test_a_saved_one_is_exported_as_from_the_store(world: World, store: Store) -> None:
    with world.opened() as (session, keeper):
        ask(session, "one")
        ask(session, "go on")
        assert text_of(session) == as_markdown(store.find(keeper.id), store.turns(keeper.id))
        assert text_of(session, "jsonl") == as_jsonl(store.turns(keeper.id))
        store.rename(keeper.id, "A title")
        assert text_of(session).startswith(f"# A title\n\nConversation {keeper.id} with a on ")
        list(session.run(TakeBack()))
        assert "go on" not in text_of(session)


def test_a_names_end_says_the_form() -> None:
    assert form_of(Path("a.md")) == form_of(Path("a.b.MD")) == "md"
    assert form_of(Path("x") / "a.jsonl") == "jsonl"
    for name in ("a", "a.txt", "md", ".md", "a.md\n"):
        with pytest.raises(RequestError, match=r"Give a name that ends in \.md or \.jsonl"):
            form_of(Path(name))
