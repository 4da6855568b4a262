"""Titles, and looking for a text in all conversations: any script, upper and lower case alike, from any thread."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from icarus_local.chat.search import excerpt, find_folded
from icarus_local.chat.store import Found, SavedTurn, Store
from icarus_local.errors import RequestError


def saved(store: Store, *turns: SavedTurn) -> str:
    id_ = store.create(Path("base.gguf"), "ab", ["coder"])
    store.save(id_, turns)
    return id_


def user(text: str) -> SavedTurn:
    return SavedTurn("user", text, None)


# -- titles ------------------------------------------------------------------------------------------------------------


def test_a_title_stands_in_the_place_of_the_first_question(store: Store) -> None:
    id_, other = saved(store, user("What is x?")), saved(store, user("And y?"))
    updated = store.find(id_).updated
    store.rename(id_, "  About\n\tx \x1b[2J ")
    assert store.find(id_).title == store.title(id_) == "About x \ufffd[2J"
    assert (store.find(other).title, store.title(other)) == ("And y?", "")
    assert store.find(id_).updated == updated, "a name is no use of it"
    # It outlives what is said next.
    store.save(id_, [user("Another question")])
    assert store.find(id_).title == "About x \ufffd[2J"
    store.rename(id_, " \n ")
    assert store.find(id_).title == "Another question"


def test_titles_that_are_refused_change_nothing(store: Store) -> None:
    id_ = saved(store, user("What is x?"))
    store.rename(id_, "é" * 120)
    with pytest.raises(RequestError, match="the title has 121 characters; 120 are possible"):
        store.rename(id_, "é" * 121)
    with pytest.raises(RequestError, match="there is no conversation nothing"):
        store.rename("nothing", "title")
    assert store.title(id_) == "é" * 120
    assert store.title("nothing") == ""


@given(title=st.text(max_size=200))
def test_any_title_is_a_line(title: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    store = Store(tmp_path_factory.mktemp("sessions"))
    id_ = saved(store, user("What is x?"))
    try:
        store.rename(id_, title)
    except RequestError:
        assert len(title) > 120
        return
    shown = store.find(id_).title
    assert shown == "What is x?" or (shown.isprintable() or "\n" not in shown)
    assert not any(ord(character) < 32 for character in shown)


# -- looking for a text ------------------------------------------------------------------------------------------------


def test_what_is_found_stands_in_the_latest_conversation_first(store: Store) -> None:
    old = saved(store, SavedTurn("system", "needle", None), user("a NEEDLE"), SavedTurn("a", "no", (1,)))
    new = saved(
        store,
        user("nothing"),
        SavedTurn("hand-over", "needle", None),
        SavedTurn("coder", "<think>the needle?</think>Found a Needle.", (1, 2, 3), False, 2),
        SavedTurn("coder", "<think>the needle?</think>Gone.", (1, 2, 3), True, 2),
        SavedTurn("file", "File needle.txt:\n\n```\nhay\n```", None),
        SavedTurn("file", "File b.txt:\n\n```\nneedle\n```", None),
        # An agent may have that name.
        SavedTurn("hand-over", "needle and thread", (4,)),
    )
    store.rename(new, "A needle in a haystack")
    sessions = {saved.id: saved for saved in store.sessions()}
    assert store.search(" needle ") == [
        Found(sessions[new], -1, "", "A needle in a haystack"),
        Found(sessions[new], 2, "coder", "Found a Needle."),
        Found(sessions[new], 3, "coder", "the needle?"),
        Found(sessions[new], 4, "you", "needle.txt"),
        Found(sessions[new], 6, "hand-over", "needle and thread"),
        Found(sessions[old], 1, "you", "a NEEDLE"),
    ]
    assert store.search("haystacks") == store.search("") == store.search(" \n") == []
    # What is written around a thought is not what was said.
    assert store.search("<think>") == []


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("Die große Straße", "GROSSE"),
        ("GROSSE", "große"),
        ("ΣΊΣΥΦΟΣ", "σίσυφος"),
        ("Привет, мир", "ПРИВЕТ"),
        ("İstanbul", "i̇stanbul"),
        ("数字の海", "の海"),
        ("100% _of_ it", "% _OF_"),
    ],
)
def test_upper_and_lower_case_are_the_same_in_any_script(store: Store, text: str, what: str) -> None:
    saved(store, user(text))
    (found,) = store.search(what)
    assert found.excerpt == text


def test_only_so_many_places_are_given(store: Store) -> None:
    for _ in range(3):
        saved(store, *[user(f"needle {i}") for i in range(90)])
    latest = store.sessions()[0].id
    found = store.search("needle")
    assert len(found) == 200
    assert {place.session.id for place in found[:90]} == {latest}


def test_another_thread_and_another_process_look_while_one_writes(store: Store) -> None:
    id_ = saved(store, user("needle"))
    results: list[list[Found]] = []
    threads = [threading.Thread(target=lambda: results.append(store.search("needle"))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for n in range(20):
        store.save(id_, [user("needle"), user(f"{n}")])
    for thread in threads:
        thread.join()
    assert [len(found) for found in results] == [1] * 4
    program = (
        "import sys; from pathlib import Path; from icarus_local.chat.store import Store;"
        "print(Store(Path(sys.argv[1])).search('NEEDLE')[0].session.id)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(store.folder)], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == id_


@given(before=st.text(), what=st.text(min_size=1), after=st.text())
@example("ß", "s", "")
@example("", "ﬃ", "x")
@example("İ", "x", "")
def test_what_stands_there_is_found(before: str, what: str, after: str) -> None:
    text, folded = before + what + after, what.casefold()
    place = find_folded(text, folded)
    assert place is not None
    start, end = place
    assert folded in text[start:end].casefold()
    assert start <= len(before)
    # No character more than there must be.
    assert folded not in text[start + 1 : end].casefold() or folded not in text[start : end - 1].casefold()
    line = excerpt(text, start, end)
    assert "\n" not in line
    assert not any(ord(character) < 32 for character in line)


@given(text=st.text(), what=st.text())
def test_what_is_found_is_there(text: str, what: str) -> None:
    place = find_folded(text, what.casefold())
    assert (place is not None) == (what != "" and what.casefold() in text.casefold())


def test_an_excerpt_shows_what_stands_around() -> None:
    text = "x" * 50 + " needle\nand " + "y" * 100
    start = text.index("needle")
    line = excerpt(text, start, start + 6)
    assert line.startswith("…xxx")
    assert "x needle and y" in line
    assert line.endswith("y…")
    assert len(line) < 105
    assert excerpt("a needle", 2, 8) == "a needle"
