"""Answers at once: side by side, as tabs, and one of them kept."""

from __future__ import annotations

from icarus_local.chat.events import TextDelta
from icarus_tui.exchange import Exchange
from tests.tui.screen import on_screen
from tests.tui.test_transcript import select, until
from tests.tui.view import AGENTS, Shown, done, view


def at_once(s: Shown, n: int = 2) -> Exchange:
    exchange = s.exchange("x", at_once=True)
    for index, agent in enumerate(AGENTS[:n]):
        exchange.begin_answer(agent, index)
    s.transcript.update()
    return exchange


def say(s: Shown, exchange: Exchange, *texts: str) -> None:
    for agent, text in zip(AGENTS, texts, strict=False):
        exchange.append(TextDelta(agent, text))
    s.transcript.update()


def columns(s: Shown) -> list[list[str]]:
    """The rows of each column."""
    rows = [row.split("│") for row in s.rows() if "│" in row]
    return [[row[n].strip() for row in rows] for n in range(len(rows[0]))]


@on_screen
async def test_columns_stream_beside_each_other() -> None:
    async with view((140, 40)) as s:
        exchange = at_once(s, 4)
        say(s, exchange, "# One\n", "- b\n", "```py\nx\n", "4")
        say(s, exchange, "more " * 20, "", "y\n")
        await s.pilot.pause()
        assert columns(s)[0][:3] == ["coder", "One", "more more more more more more"]
        assert columns(s)[1][:2] == ["reviewer", "• b"]
        assert columns(s)[2][:4] == ["math", "▎ py", "▎ x", "▎ y"]
        assert columns(s)[3][:2] == ["tools", "4"]
        for agent in AGENTS:
            exchange.end_answer(done(agent))
        s.transcript.update()
        await s.pilot.pause()
        assert all(any("tokens reused" in row.replace("\n", " ") for row in [" ".join(each)]) for each in columns(s))
        assert len({row.index("│") for row in s.rows() if "│" in row}) == 1
        # All of it is there as text, one after the other.
        assert s.text.index("One") < s.text.index("reviewer") < s.text.index("• b") < s.text.index("tools")


@on_screen
async def test_where_there_is_no_room_there_are_tabs() -> None:
    for width, n, tabbed in ((99, 2, True), (100, 2, False), (100, 3, False), (100, 4, True), (135, 4, False)):
        async with view((width, 40)) as s:
            say(s, at_once(s, n), "one", "two")
            await s.pilot.pause()
            assert any("[coder]" in row for row in s.rows()) == tabbed, (width, n)
    async with view((60, 20)) as s:
        at_once(s, 1)
        await s.pilot.pause()
        assert not any("[coder]" in row for row in s.rows())


@on_screen
async def test_left_right_and_a_click_go_from_tab_to_tab_while_all_stream_on() -> None:
    async with view((60, 30)) as s:
        exchange = at_once(s, 3)
        say(s, exchange, "one", "two", "three")
        assert s.text.endswith("[coder]  reviewer   math\ncoder\none")
        await s.press("right")
        assert s.text.endswith("coder  [reviewer]  math\nreviewer\ntwo")
        say(s, exchange, "!", "?", ".")
        assert s.text.endswith("reviewer\ntwo?")
        assert s.transcript.target is not None
        assert s.transcript.target.agent == "reviewer"
        await s.press("right", "right")
        assert s.text.endswith(" [math]\nmath\nthree.")
        row = next(n for n, each in enumerate(s.rows()) if "[math]" in each)
        await s.pilot.click(offset=(3, row))
        await s.pilot.pause()
        assert s.text.endswith("coder\none!")
        await s.press("left")
        assert s.text.endswith("coder\none!")


@on_screen
async def test_resizing_goes_from_columns_to_tabs_and_back() -> None:
    async with view((120, 30)) as s:
        exchange = at_once(s)
        say(s, exchange, "one", "two")
        await s.press("right")
        await s.pilot.resize_terminal(60, 30)
        await until(lambda: "[reviewer]" in s.text)
        say(s, exchange, "1", "2")
        assert s.text.endswith("[reviewer]\nreviewer\ntwo2")
        await s.pilot.resize_terminal(120, 30)
        await until(lambda: "[reviewer]" not in s.text)
        await s.pilot.pause()
        assert [column[:2] for column in columns(s)] == [["coder", "one1"], ["▌reviewer", "two2"]]


@on_screen
async def test_who_is_kept_stands_out_by_more_than_colour() -> None:
    async with view((120, 30)) as s:
        exchange = at_once(s, 3)
        say(s, exchange, "one", "two", "three")
        for agent in AGENTS[:3]:
            exchange.end_answer(done(agent, finish="cancelled" if agent == "math" else "stop"))
        assert exchange.undecided
        await s.pilot.pause()
        assert "three" in "".join(s.rows())
        exchange.keep("reviewer")
        s.transcript.update()
        await s.pilot.pause()
        assert not exchange.undecided
        assert [column[0] for column in columns(s)] == ["coder not kept", "reviewer", "math stopped not kept"]
        row = next(n for n, each in enumerate(s.rows()) if "one" in each)
        strip = s.app.screen._compositor.render_strips()[row]
        colours = {word: segment.style and segment.style.color for segment in strip for word in segment.text.split()}
        assert colours["one"] == colours["three"] != colours["two"]
        exchange.keep("coder")
        s.transcript.update()
        await s.pilot.pause()
        assert [column[0] for column in columns(s)] == ["coder", "reviewer", "math stopped not kept"]


@on_screen
async def test_what_is_selected_in_a_column_is_of_that_column() -> None:
    async with view((120, 30)) as s:
        say(s, at_once(s, 3), "one\n\nuno\n\n" + "long " * 20, "two\n\ndos\n\ndue\n\nzwei", "three")
        await s.pilot.pause()
        row = next(n for n, each in enumerate(s.rows()) if "one" in each)
        places = [n for n, character in enumerate(s.rows()[row]) if character == "│"]
        assert await select(s, (places[0] + 2, row), (places[1] - 2, row + 4)) == "two\n\ndos\n\ndue"
        assert await select(s, (0, row), (places[0] - 3, row + 2)) == "one\n\nuno"
        # Below the end of a shorter column it is still that column.
        assert await select(s, (places[1] + 2, row), (places[1] + 9, row + 4)) == "three"


@on_screen
async def test_another_column_that_grows_does_not_move_what_is_selected() -> None:
    async with view((120, 30)) as s:
        exchange = at_once(s)
        say(s, exchange, "one", "two\n\ndos")
        await s.pilot.pause()
        row = next(n for n, each in enumerate(s.rows()) if "one" in each)
        place = s.rows()[row].index("│")
        assert await select(s, (place + 2, row), (place + 20, row + 2)) == "two\n\ndos"
        say(s, exchange, "\n\nmore\n\nlines")
        await s.pilot.pause()
        assert s.app.screen.get_selected_text() == "two\n\ndos"
