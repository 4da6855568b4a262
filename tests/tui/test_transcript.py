"""The conversation as it is seen: following, scrolling, resizing, selecting, and what it holds in memory."""

from __future__ import annotations

import asyncio
import time

from textual.theme import BUILTIN_THEMES

from icarus_local.chat.events import Said, TextDelta
from icarus_tui.exchange import Exchange, Notice, Past
from icarus_tui.looks import agent_variables, colour
from icarus_tui.view import EntriesView
from tests.tui.screen import on_screen
from tests.tui.view import AGENTS, Shown, done, view

CODE = "Here:\n\n```python\ndef f(x):\n    return x + 1\n```\n\nand **that** is it.\n"


def at_end(s: Shown) -> bool:
    return s.transcript.scroll_offset.y == s.transcript.max_scroll_y


def stream(exchange: Exchange, text: str, agent: str = "coder") -> None:
    exchange.append(TextDelta(agent, text))


@on_screen
async def test_an_exchange_stands_under_the_names_of_who_speaks() -> None:
    async with view() as s:
        exchange = s.exchange("What?", "coder")
        exchange.show_state("queued")
        s.transcript.update()
        assert exchange.queued
        assert s.text == "\nyou @coder (queued)\nWhat?"
        exchange.show_state("")
        exchange.begin_answer("coder", 0)
        exchange.append(TextDelta("coder", "a thought\nof two lines", thought=True))
        s.transcript.update()
        assert (exchange.speaking, exchange.n_begun, exchange.doing) == (("coder",), 1, "coder is thinking")
        assert s.text.endswith("\n\ncoder\n▸ thinking …")
        stream(exchange, "*so*")
        exchange.end_answer(done("coder", finish="cancelled"))
        exchange.tell("told")
        exchange.ask("sure?")
        s.transcript.update()
        assert "coder stopped\n▸ thought, 5 words\nso\n[coder: 100 tokens" in s.text
        assert s.text.endswith("told\nsure?")
        exchange.ask("")
        exchange.fail(ValueError("x [bold]"))
        s.transcript.update()
        assert s.text.endswith("told\n\nValueError: x [bold]")


@on_screen
async def test_what_was_said_before_is_shown_as_what_is_said() -> None:
    async with view() as s:
        for said in (
            Said("you", "Why?\n[x]", answer=False, in_context=False),
            Said("notes.txt", "notes.txt", answer=False, file=True),
            Said("coder", "**so**", answer=True, thought="hm hm"),
            Said("coder", "*out*", answer=True, in_context=False),
        ):
            s.transcript.add(Past(said, 0))
        assert s.text.split("\n\n") == [
            "\nyou (no longer in the context)\nWhy?\n[x]",
            "notes.txt was added",
            "coder\n▸ thought, 2 words\nso",
            "coder (no longer in the context)\nout",
        ]


@on_screen
async def test_it_follows_until_it_is_scrolled_back() -> None:
    async with view() as s:
        exchange = s.exchange("x")
        exchange.begin_answer("coder", 0)
        stream(exchange, "line\n\n" * 100)
        s.transcript.update()
        await s.pilot.pause()
        assert at_end(s)
        s.transcript.scroll_to(y=30, animate=False)
        stream(exchange, "line\n\n" * 100)
        s.transcript.update()
        await s.pilot.pause()
        assert s.transcript.scroll_offset.y == 30
        s.transcript.add(Notice("new"))
        await s.pilot.pause()
        assert at_end(s)
        assert s.rows()[-1] == " new"


@on_screen
async def test_a_change_above_the_view_leaves_the_view_where_it_is() -> None:
    async with view() as s:
        first = s.answered("a", "text", thought="word\n" * 30)
        for n in range(40):
            s.answered(f"question {n}", "answer")
        s.transcript.scroll_to(y=100, animate=False)
        await s.pilot.pause()
        rows = s.rows()
        for thought in first.thoughts():
            thought.fold(True)
        s.transcript.update()
        await s.pilot.pause()
        assert s.rows() == rows
        assert s.transcript.scroll_offset.y == 131
        s.transcript.discard(first)
        await s.pilot.pause()
        assert s.rows() == rows


@on_screen
async def test_resizing_keeps_the_place() -> None:
    async with view((100, 30)) as s:
        for n in range(30):
            s.answered(f"question {n}", "a long line of prose that wraps where the terminal is narrow " * 3)
        for _ in range(20):
            await s.press("up")
        s.transcript.scroll_to(y=s.transcript._place.spot.rows[0], animate=False)  # type: ignore[union-attr]
        await s.pilot.pause()
        first = s.rows()[:2]
        assert "question" in first[1]
        await s.pilot.resize_terminal(50, 30)
        await until(lambda: s.transcript.virtual_size.width < 60)
        await s.pilot.pause()
        assert s.rows()[:2] == first
        s.transcript.scroll_end(animate=False)
        await s.pilot.resize_terminal(90, 20)
        await until(lambda: s.transcript.virtual_size.width > 80)
        await s.pilot.pause()
        assert at_end(s)


async def until(condition: object) -> None:
    for _ in range(400):
        if condition():  # type: ignore[operator]
            return
        await asyncio.sleep(0.01)
    raise AssertionError("waited in vain")


# -- selecting ---------------------------------------------------------------------------------------------------------


async def select(s: Shown, start: tuple[int, int], end: tuple[int, int]) -> str | None:
    await s.pilot.mouse_down(offset=start)
    await s.pilot.hover(offset=end)
    await s.pilot.mouse_up(offset=end)
    await s.pilot.pause()
    return s.app.screen.get_selected_text()


@on_screen
async def test_selected_code_is_what_the_agent_wrote() -> None:
    code = 'if x:\n\tprint("' + "long " * 20 + '")'
    async with view((60, 30)) as s:
        s.answered("show", f"```python\n{code}\n```\nend")
        await s.pilot.pause()
        rows = s.rows()
        first = next(n for n, row in enumerate(rows) if "if x" in row)
        last = next(n for n, row in enumerate(rows) if row == " ▎ )")
        assert last > first + 1
        assert await select(s, (0, first), (58, last)) == code
        assert await select(s, (1, first), (58, last)) == code
        # The first tab stop is one character, wherever in it the mouse was.
        assert await select(s, (5, first + 1), (7, first + 1)) == "\tp"


@on_screen
async def test_a_selection_begins_and_ends_beside_text_too() -> None:
    async with view((40, 20)) as s:
        s.answered("q", "one two three four five six seven eight nine ten\n\nnext")
        await s.pilot.pause()
        row = next(n for n, each in enumerate(s.rows()) if "one two" in each)
        text = await select(s, (38, row), (3, row + 1))
        assert text is not None
        assert text.strip() == s.rows()[row + 1][1:3]
        assert await select(s, (0, row), (38, row + 3)) == "one two three four five six seven eight nine ten\n\nnext"


# -- many turns --------------------------------------------------------------------------------------------------------


@on_screen
async def test_2000_exchanges_slow_nothing_and_little_of_them_is_kept_in_memory() -> None:
    async with view((80, 40)) as s:
        transcript = s.transcript
        times = []
        for n in range(2_000):
            begin = time.process_time()
            s.answered(f"question {n}", CODE)
            times.append(time.process_time() - begin)
        assert sum(times[-200:]) < 3 * sum(times[200:400])
        exchange = s.exchange("go")
        exchange.begin_answer("coder", 0)
        await s.pilot.pause()
        laid_out = []
        begin = time.process_time()
        for _ in range(100):
            stream(exchange, "word ")
            laid_out.append(len(transcript.entries) - transcript._entries._settled)
            transcript.update()
        assert time.process_time() - begin < 1
        assert set(laid_out) == {1}
        for y in range(0, transcript.max_scroll_y, 97):
            transcript.scroll_to(y=y, animate=False)
            transcript.render_lines(transcript.region.reset_offset)
        transcript.scroll_to(y=0, animate=False)
        await s.pilot.pause()
        assert s.rows()[1:3] == ["▌you", "▌question 0"]
        assert " ▎     return x + 1" in s.rows()
        coloured = sum(any(line.spans for line in block.lines) for block in transcript._entries.blocks())
        assert len(transcript._painter._strips) <= 600
        assert coloured < 200 + 2 * 2_000 + 50  # names have their styles, Markdown does not keep them
        transcript.scroll_end(animate=False)
        await s.pilot.pause()
        assert s.rows()[-2].startswith(" word word")


@on_screen
async def test_resizing_200_turns_does_not_hold_the_keys() -> None:
    async with view((120, 40)) as s:
        for n in range(200):
            s.answered(f"question {n}", CODE * 3 + "A long line of prose, as models write them. " * 20)
        best = 1.0
        for width in (100, 60, 90):
            await s.pilot.resize_terminal(width, 40)
            begin = time.process_time()
            s.transcript._wrap_anew()
            best = min(best, time.process_time() - begin)
        assert best < 0.3


@on_screen
async def test_what_was_changed_and_not_told_of_is_drawn_all_the_same() -> None:
    async with view() as s:
        exchange = s.answered("a", "b\n" * 30)
        await s.pilot.pause()
        exchange.remove(exchange.nodes[-1])
        exchange.tell("all that is left")
        s.transcript.scroll_to(y=0, animate=False)
        s.transcript.refresh()
        await s.pilot.pause()
        assert "b" not in s.text
        assert s.rows()[4] == " all that is left"
        s.transcript.clear()
        assert s.transcript.entries == []
        await s.pilot.pause()


# -- colours -----------------------------------------------------------------------------------------------------------


def test_agents_are_readable_and_told_apart_in_every_theme() -> None:
    from textual.color import Color

    for theme in BUILTIN_THEMES.values():
        colours = [agent_variables(theme)[colour(index).removeprefix("$")] for index in range(8)]
        assert len(set(colours)) >= 6
        assert colour(8) == colour(0)
        if theme.ansi:
            assert all(each.startswith("ansi_") for each in colours)
            continue
        variables = theme.to_color_system().generate()
        for ground in ("background", "surface"):
            for each in colours:
                assert Color.parse(variables[ground]).get_contrast_text is not None
                assert contrast(Color.parse(each), Color.parse(variables[ground])) > 4.5, (theme.name, ground, each)


def contrast(one: object, other: object) -> float:
    def luminance(colour: object) -> float:
        parts = [part / 255 for part in (colour.r, colour.g, colour.b)]  # type: ignore[attr-defined]
        linear = [part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


@on_screen
async def test_another_theme_recolours_what_stands_there() -> None:
    def name(s: Shown) -> object:
        row = next(n for n, each in enumerate(s.rows()) if each == " coder")
        strip = s.app.screen._compositor.render_strips()[row]
        return next(segment.style.color for segment in strip if "coder" in segment.text)  # type: ignore[union-attr]

    async with view() as s:
        s.answered("a", "b")
        await s.pilot.pause()
        seen = []
        for theme in ("textual-dark", "textual-light", "ansi-dark"):
            s.app.theme = theme
            await s.pilot.pause()
            await s.pilot.pause()
            seen.append(name(s))
        assert len(set(map(str, seen))) == 3


@on_screen
async def test_agents_have_names_whatever_the_app_knows_of_colours() -> None:
    async with view((80, 60)) as s:
        s.app.get_theme_variable_defaults = dict  # type: ignore[method-assign, assignment]
        s.app.refresh_css()
        for agent in AGENTS:
            s.answered("a", "b", agent)
        await s.pilot.pause()
        assert {" coder", " tools"} <= set(s.rows())
        assert isinstance(s.transcript, EntriesView)
