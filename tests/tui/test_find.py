"""Finding text in the conversation."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from icarus_local.chat.events import TextDelta
from icarus_tui.find import spans
from tests.tui.screen import on_screen
from tests.tui.view import Shown, view


def marked(s: Shown) -> tuple[list[str], list[str]]:
    """What is marked on the screen as found, and as the one found now."""
    found, current = [], []
    for strip in s.app.screen._compositor.render_strips()[: s.transcript.size.height]:
        for segment in strip:
            if segment.style is not None and segment.style.reverse and segment.text.isalnum():
                current.append(segment.text)
            elif segment.style is not None and segment.style.underline and segment.style.bold:
                found.append(segment.text)
    return found, current


@on_screen
async def test_all_that_is_shown_is_found_whatever_its_case() -> None:
    async with view((60, 30)) as s:
        s.answered("a Fox?", "The **fox**, the `FOX`.\n\n- foxes", thought="a fox too")
        assert s.transcript.find("fOx") == 4
        assert [s.transcript.find_next(1) for _ in range(5)] == [0, 1, 2, 3, 0]
        assert [s.transcript.find_next(-1) for _ in range(2)] == [3, 2]
        await s.pilot.pause()
        assert marked(s) == (["Fox", "fox", "fox"], ["FOX"])
        s.transcript.toggle_thoughts()
        assert s.transcript.find("fox") == 5
        assert s.transcript.find("no such text") == 0
        assert s.transcript.find_next(1) == -1
        s.transcript.find("fox")
        assert s.transcript.find("") == 0
        await s.pilot.pause()
        assert marked(s) == ([], [])


@on_screen
async def test_the_match_is_scrolled_into_view_from_where_the_view_is() -> None:
    async with view((60, 12)) as s:
        for n in range(40):
            s.answered(f"question {n}", "some needle here" if n % 10 == 5 else "text")
        assert s.transcript.find("needle") == 4
        assert s.transcript.find_next(-1) == 3
        await s.pilot.pause()
        assert marked(s)[1] == ["needle"]
        s.transcript.scroll_to(y=0, animate=False)
        s.transcript.find("needle")
        assert s.transcript.find_next(1) == 0
        await s.pilot.pause()
        assert marked(s)[1] == ["needle"]
        assert s.transcript.find_next(1) == 1


@on_screen
async def test_what_is_found_stays_right_while_text_streams_and_entries_go() -> None:
    async with view((60, 30)) as s:
        first = s.answered("x needle", "text")
        exchange = s.exchange("go")
        exchange.begin_answer("coder", 0)
        exchange.append(TextDelta("coder", "a nee"))
        s.transcript.update()
        assert s.transcript.find("needle") == 1
        assert s.transcript.find_next(1) == 0
        for text in ("dle\n\n", "**nee", "dle**\n\nneedle", "s\n"):
            exchange.append(TextDelta("coder", text))
            s.transcript.update()
        await s.pilot.pause()
        assert marked(s) == (["needle"] * 3, ["needle"])
        # Drawn before it is told of.
        exchange.append(TextDelta("coder", "\n\nneedle"))
        s.transcript.refresh()
        await s.pilot.pause()
        s.transcript.update()
        assert s.transcript._finder.count == 5
        assert [s.transcript.find_next(1) for _ in range(5)] == [1, 2, 3, 4, 0]
        assert s.transcript.find_next(-1) == 4
        s.transcript.discard(first)
        assert s.transcript.find_next(1) == 0
        assert s.transcript._finder.count == 4
        s.transcript.clear()
        assert s.transcript._finder.count == 0
        assert s.transcript.find_next(1) == -1


@on_screen
async def test_of_tabs_only_what_is_shown_is_found() -> None:
    async with view((60, 30)) as s:
        exchange = s.exchange("x", at_once=True)
        for index, agent in enumerate(("coder", "reviewer")):
            exchange.begin_answer(agent, index)
            exchange.append(TextDelta(agent, f"needle of {agent}"))
        s.transcript.update()
        assert s.transcript.find("needle") == 1
        await s.pilot.resize_terminal(120, 30)
        s.transcript._wrap_anew()
        assert s.transcript._finder.count == 2


@given(
    st.text(st.sampled_from("aAßsSİiı日e\u0301 "), max_size=30),
    st.text(st.sampled_from("aSßsi̇日"), min_size=1, max_size=3),
)
def test_what_is_found_is_there_and_does_not_overlap(line: str, text: str) -> None:
    found = list(spans(line, text.casefold()))
    assert all(text.casefold() in line[start:end].casefold() for start, end in found)
    assert found == sorted(found)
    assert len(found) == line.casefold().count(text.casefold())
