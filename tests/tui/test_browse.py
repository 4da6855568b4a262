"""Walking from target to target, and what is offered there."""

from __future__ import annotations

import pytest

from icarus_local.chat.code import CodeBlock
from icarus_local.chat.events import Said, TextDelta
from icarus_local.errors import RequestError
from icarus_tui.exchange import Exchange, Past
from tests.tui.screen import on_screen
from tests.tui.view import Shown, done, view

TEXT = "Say *this*:\n\n```python\nx = 1\n```\n\nor\n\n- this:\n  ```\n  y\n  ```\n"


def here(s: Shown) -> tuple[str, str]:
    target = s.transcript.target
    assert target is not None
    return target.kind, target.text


def barred(s: Shown) -> list[str]:
    return [row[1:].strip() for row in s.rows() if row.startswith("▌")]


@on_screen
async def test_up_and_down_go_from_target_to_target() -> None:
    async with view((60, 30)) as s:
        s.answered("q *1*\nmore", TEXT, thought="hm\nhm")
        s.answered("q 2", "last")
        targets = [
            ("question", "q *1*\nmore"),
            ("answer", TEXT),
            ("thought", "hm\nhm"),
            ("code", "x = 1\n"),
            ("code", "y\n"),
            ("question", "q 2"),
            ("answer", "last"),
        ]
        await s.press("end")
        walked = [here(s)]
        for _ in range(7):
            await s.press("up")
            walked.append(here(s))
        assert walked == [*reversed(targets), targets[0]]
        assert barred(s) == ["you", "q *1*", "more"]
        marks = []
        for _ in range(7):
            await s.press("down")
            marks.append(barred(s))
        assert marks[:5] == [["coder"], ["▸ thought, 2 words"], ["▎ python", "▎ x = 1"], ["▎ y"], ["you", "q 2"]]
        assert marks[-1] == ["coder"]
        await s.press("home")
        assert here(s) == targets[0]


@on_screen
async def test_the_target_is_scrolled_into_view() -> None:
    async with view((60, 12)) as s:
        for n in range(20):
            s.answered(f"question {n}", "a\n\nb\n\nc")
        for _ in range(12):
            await s.press("up")
            assert barred(s)
        await s.press("home")
        assert s.rows()[0] == "▌you"
        for _ in range(8):
            await s.press("pagedown")
            assert barred(s)
        below = s.transcript.scroll_offset.y
        assert below > 50
        await s.press("pageup")
        assert s.transcript.scroll_offset.y < below
        await s.press("end")
        assert s.transcript.scroll_offset.y >= s.transcript.max_scroll_y - 8


@on_screen
async def test_the_footer_offers_what_a_key_would_do() -> None:
    async with view((160, 40)) as s:
        back = {"Copy", "Back to the input"}
        old = s.answered("old", "text")
        new = s.answered("new", TEXT, thought="hm")
        queued = s.exchange("queued")
        queued.show_state("queued")
        s.transcript.update()
        offers = []
        await s.press("home")
        for _ in range(7):
            offers.append(s.footer)
            await s.press("down")
        offers.append(s.footer)
        assert offers == [
            back | {"Edit"},
            back,
            back | {"Edit", "Ask again"},
            back | {"Ask again"},
            back | {"Fold, unfold"},
            back | {"Save"},
            back | {"Save"},
            back | {"Edit", "Remove"},
        ]
        assert old.undecided is new.undecided is False


@on_screen
async def test_what_is_asked_names_what_it_is_asked_of() -> None:
    async with view((120, 40)) as s:
        exchange = s.answered("q", TEXT)
        await s.press("home", "c", "e", "r", "k", "d", "s", "down", "down", "s", "c")
        asked = [(action, target.kind, target.text, target.agent, target.code) for action, target in s.app.asked]
        assert asked == [
            ("copy", "question", "q", "", None),
            ("edit", "question", "q", "", None),
            ("regenerate", "question", "q", "", None),
            ("save", "code", "x = 1\n", "coder", CodeBlock("python", "x = 1\n")),
            ("copy", "code", "x = 1\n", "coder", CodeBlock("python", "x = 1\n")),
        ]
        assert all(target.entry is exchange for _, target in s.app.asked)
        queued = s.exchange("later")
        queued.show_state("queued")
        s.transcript.update()
        await s.press("end", "d")
        assert s.app.asked[-1][0] == "remove"


@on_screen
async def test_one_of_several_answers_can_be_kept_until_one_is() -> None:
    async with view((120, 40)) as s:
        exchange = s.exchange("q", at_once=True)
        for index, agent in enumerate(("coder", "reviewer")):
            exchange.begin_answer(agent, index)
            exchange.append(TextDelta(agent, f"{agent} says\n```\n{agent}\n```\n"))
        s.transcript.update()
        await s.press("home", "down")
        assert "Keep this one" not in s.footer
        for agent in ("coder", "reviewer"):
            exchange.end_answer(done(agent))
        s.transcript.update()
        await s.press("right")
        assert {"Keep this one", "Left", "Right"} <= s.footer
        await s.press("k", "down", "c", "left", "c", "up", "up", "up")
        assert [(action, target.agent) for action, target in s.app.asked] == [
            ("keep", "reviewer"),
            ("copy", "reviewer"),
            ("copy", "coder"),
        ]
        assert here(s)[0] == "question"
        exchange.keep("reviewer")
        s.transcript.update()
        await s.press("down")
        assert "Keep this one" not in s.footer


@on_screen
async def test_a_thought_unfolds_and_streams_and_folds() -> None:
    async with view((60, 30)) as s:
        exchange = s.exchange("q")
        exchange.begin_answer("coder", 0)
        exchange.append(TextDelta("coder", "one ", thought=True))
        s.transcript.update()
        await s.press("end", "enter")
        assert s.text.endswith("▾ thinking …\none ")
        exchange.append(TextDelta("coder", "two\nthree", thought=True))
        s.transcript.update()
        assert s.text.endswith("▾ thinking …\none two\nthree")
        exchange.append(TextDelta("coder", "so"))
        s.transcript.update()
        assert s.text.endswith("▾ thought, 3 words\none two\nthree\nso")
        assert barred(s) == ["▾ thought, 3 words"]
        await s.press("space")
        assert s.text.endswith("▸ thought, 3 words\nso")
        s.transcript.toggle_thoughts()
        assert "▾ thought, 3 words\none two" in s.text
        assert s.answered("q", "a", thought="at once")
        assert s.text.count("▾") == 2


@on_screen
async def test_a_click_goes_there_and_unfolds_a_thought() -> None:
    async with view((60, 30)) as s:
        s.answered("q", TEXT, thought="hm")
        rows = s.rows()
        await s.pilot.click(offset=(4, rows.index(" ▎ x = 1")))
        await s.pilot.pause()
        assert here(s) == ("code", "x = 1\n")
        await s.pilot.click(offset=(4, rows.index(" ▸ thought, 1 word")))
        await s.pilot.pause()
        assert "▾ thought, 1 word\nhm" in s.text
        await s.pilot.click(offset=(4, rows.index(" or") + 1))
        await s.pilot.pause()
        assert here(s)[0] == "thought"
        await s.pilot.click(offset=(50, 28))
        assert here(s)[0] == "thought"


@on_screen
async def test_other_keys_are_passed_on_and_three_lead_back() -> None:
    async with view() as s:
        s.answered("q", "a")
        await s.press("x", "é", "?", "s", "c", "ctrl+x")
        assert s.app.typed == "xé?"
        await s.press("escape", "tab", "shift+tab")
        assert s.app.left == 3


@on_screen
async def test_there_is_nothing_to_do_where_nothing_was_said() -> None:
    async with view() as s:
        assert s.transcript.target is None
        await s.press("up", "down", "left", "enter", "c", "home", "end", "pageup", "pagedown")
        s.transcript.add(Exchange("/help"))
        await s.press("up", "c")
        assert s.app.asked == []
        assert s.footer == {"Back to the input"}


@on_screen
async def test_a_target_that_goes_is_left_for_the_nearest() -> None:
    async with view() as s:
        s.answered("one", "a")
        gone = s.exchange("two")
        await s.press("end")
        assert here(s) == ("question", "two")
        s.transcript.discard(gone)
        assert here(s) == ("answer", "a")
        s.transcript.clear()
        assert s.transcript.target is None


@on_screen
async def test_what_was_said_before_can_be_copied_and_the_newest_asked_again() -> None:
    async with view((120, 30)) as s:
        for said in (
            Said("you", "a", False),
            Said("coder", "b", True),
            Said("you", "c", False),
            Said("coder", TEXT, True),
        ):
            s.transcript.add(Past(said, 0))
        await s.press("home")
        assert s.footer == {"Copy", "Edit", "Back to the input"}
        await s.press("down", "down")
        assert "Ask again" in s.footer
        await s.press("down")
        assert "Ask again" in s.footer
        await s.press("down", "s")
        assert s.app.asked[-1][1].code == CodeBlock("python", "x = 1\n")
        failed = s.exchange("d")
        failed.fail(RequestError("no"))
        s.transcript.update()


@pytest.mark.parametrize("size", [(1, 1), (3, 2), (12, 5), (40, 10), (300, 100)], ids=str)
@on_screen
async def test_terminals_of_every_size(size: tuple[int, int]) -> None:
    async with view(size) as s:
        s.answered("q", TEXT + "|a|b|\n|-|-|\n|日本|x|\n\n> > - deep\n", thought="hm")
        exchange = s.exchange("q", at_once=True)
        for index, agent in enumerate(("coder", "reviewer")):
            exchange.begin_answer(agent, index)
            exchange.append(TextDelta(agent, "日本 " * 20))
        s.transcript.update()
        await s.press("home", "down", "down", "enter", "end", "right", "up", "pageup")
        assert s.transcript.find("日") > 0
        s.transcript.find_next(-1)
        await s.pilot.pause()
