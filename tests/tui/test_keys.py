"""Every key and command."""

from __future__ import annotations

import asyncio
import signal

import pytest
from textual import events

from icarus_local.chat.events import AnswerStarted, TextDelta
from icarus_local.chat.lines import COMMANDS
from tests.tui.fake import HOLD, FakeChat, done, flood
from tests.tui.screen import on_screen, screen


@on_screen
async def test_help_lists_every_command_and_key() -> None:
    async with screen(FakeChat()) as s:
        s.key(*"/help", "enter")
        await s.until(lambda: "/quit: end the chat" in s.text)
        assert s.prompt.text == ""
        for word in [
            *(f"/{name}" for name in COMMANDS),
            "⏎ send",
            "esc stop",
            "^c copy, quit",
            "^q quit",
            "pgup back",
            "c copy",
            "@name",
        ]:
            assert word in s.text


@on_screen
async def test_an_unknown_command_is_said_and_stays() -> None:
    async with screen(FakeChat()) as s:
        s.key(*"/hlep", "enter")
        await s.until(lambda: "there is no command /hlep. There are /add, /all" in s.text)
        assert s.prompt.text == "/hlep"


@pytest.mark.parametrize("keys", [["ctrl+q"], ["ctrl+c", "ctrl+c"], [*"/quit", "enter"]], ids=str)
@on_screen
async def test_ways_out(keys: list[str]) -> None:
    async with screen(FakeChat()) as s:
        s.key(*keys)
        await s.until(lambda: not s.app.is_running, within=2)


@on_screen
async def test_one_ctrl_c_only_says_what_a_second_would_do() -> None:
    async with screen(FakeChat(flood("coder", 1_000, 0.002))) as s:
        await s.send("go")
        s.key("ctrl+c")
        # The hint is not overwritten by the stream.
        await s.until(lambda: s.activity == "Ctrl-C again quits; Esc stops the answer")
        await asyncio.sleep(0.5)
        assert s.activity == "Ctrl-C again quits; Esc stops the answer"
        await s.until(lambda: s.activity == "coder is answering", within=4)
        s.key("ctrl+c")
        await asyncio.sleep(0.2)
        assert s.app.is_running
        s.key("escape")
        await s.idle()


@on_screen
async def test_up_and_down_recall_what_was_sent() -> None:
    async with screen(FakeChat()) as s:
        for line in ("first", "second", "second", "third"):
            await s.ask(line)
        s.type("draft")
        seen = []
        for key in ("up", "up", "up", "up", "down", "down", "down", "down"):
            s.key(key)
            await s.pilot.pause()
            seen.append(s.prompt.text)
        assert seen == ["third", "second", "first", "first", "second", "third", "draft", "draft"]


@on_screen
async def test_up_and_down_move_inside_a_question_of_several_lines() -> None:
    async with screen(FakeChat()) as s:
        await s.ask("before")
        s.key("a", "ctrl+j", "b", "ctrl+j", "c", "up", "up")
        await s.until(lambda: s.prompt.cursor_location == (0, 1))
        assert s.prompt.text == "a\nb\nc"
        s.key("up")
        await s.until(lambda: s.prompt.text == "before")
        s.key("down")
        await s.until(lambda: s.prompt.text == "a\nb\nc")
        await s.ask("")
        assert s.chat.asked[-1][0] == "a\nb\nc"


@on_screen
async def test_a_blank_line_is_not_sent() -> None:
    async with screen(FakeChat()) as s:
        s.key("enter", "space", "ctrl+j", "enter", "x")
        await s.until(lambda: s.prompt.text == " \nx")
        assert s.chat.asked == []


@on_screen
async def test_pasted_text_keeps_its_lines_and_loses_what_steers_a_terminal() -> None:
    async with screen(FakeChat()) as s:
        s.app.post_message(events.Paste("def f():\r\n\treturn '\x1b[31m'\rend"))
        await s.until(lambda: s.prompt.text == "def f():\n\treturn '�[31m'\nend")
        await s.until(lambda: s.prompt.size.height == 3)


@on_screen
async def test_what_is_typed_or_pasted_while_browsing_belongs_to_the_input() -> None:
    async with screen(FakeChat()) as s:
        await s.ask("before")
        s.key("shift+tab")
        await s.until(lambda: s.transcript.has_focus)
        s.app.post_message(events.Paste("a paste"))
        await s.until(lambda: s.prompt.text == "a paste" and s.prompt.has_focus)
        s.key("shift+tab")
        await s.until(lambda: s.transcript.has_focus)
        s.key("x", "y")
        await s.until(lambda: s.prompt.text == "a pastexy")


@on_screen
async def test_ctrl_c_twice_quits_with_something_selected_and_beside_the_conversation() -> None:
    async with screen(FakeChat()) as s:
        s.key(*"draft", "f7")
        await s.until(lambda: s.prompt.selected_text == "draft")
        s.key("ctrl+c")
        await s.until(lambda: s.app.clipboard == "draft")
        s.key("f4")
        await s.until(lambda: s.app.screen is not s.view)
        s.key("ctrl+c")
        await s.pilot.pause()
        assert s.app.is_running
        s.key("escape")
        await s.until(lambda: s.app.screen is s.view)
        s.key("ctrl+c", "ctrl+c")
        await s.until(lambda: not s.app.is_running, within=2)


@on_screen
async def test_a_long_paste_leaves_the_conversation_its_room() -> None:
    async with screen(FakeChat(), size=(40, 10)) as s:
        s.app.post_message(events.Paste("\n".join(f"line {n}" for n in range(3_000))))
        await s.until(lambda: s.prompt.text.endswith("2999"))
        await s.pilot.pause()
        assert s.prompt.size.height <= 3
        assert s.transcript.size.height >= 1
        s.key("enter")
        await s.until(lambda: s.chat.asked)
        await s.idle()
        assert s.chat.asked[0][0].count("\n") == 2_999


@on_screen
async def test_page_keys_scroll_back_and_the_stream_does_not_pull_forward() -> None:
    def script(text: str, names: object) -> object:
        yield AnswerStarted("coder")
        for n in range(100):
            yield TextDelta("coder", f"line {n}\n")
        if text == "more":
            yield HOLD
        yield done("coder", "")

    async with screen(FakeChat(script)) as s:  # type: ignore[arg-type]
        await s.ask("fill")
        end = s.transcript.scroll_offset.y
        assert end == s.transcript.max_scroll_y
        s.key("pageup")
        await s.until(lambda: s.transcript.scroll_offset.y < end)
        s.key("pagedown", "pagedown")
        await s.until(lambda: s.transcript.scroll_offset.y == end)
        # A question goes to the end; scrolled back while its answer streams, the view stays where it is.
        s.key("pageup")
        await s.send("more")
        await s.until(lambda: s.transcript.scroll_offset.y == s.transcript.max_scroll_y > end + 50)
        s.key("pageup", "pageup")
        await s.until(lambda: s.transcript.scroll_offset.y < s.transcript.max_scroll_y - 20)
        place = s.transcript.scroll_offset.y
        s.key("escape")
        await s.idle()
        assert s.transcript.scroll_offset.y == place


@on_screen
async def test_the_footer_offers_stop_only_while_it_would_stop_something() -> None:
    async with screen(FakeChat(lambda text, names: [AnswerStarted("coder"), HOLD])) as s:
        await s.until(lambda: s.footer == {"Send", "Browse", "Find", "Sessions", "Agents", "Quit", "palette"})
        await s.send("go")
        await s.until(lambda: s.footer == {"Send", "Browse", "Find", "Sessions", "Agents", "Quit", "palette", "Stop"})
        s.key("escape")
        await s.until(lambda: s.footer == {"Send", "Browse", "Find", "Sessions", "Agents", "Quit", "palette"})


@on_screen
async def test_a_selection_is_copied_as_it_was_written() -> None:
    code = "```python\nif x:\n    print('" + "long " * 30 + "')\n```"
    script = [AnswerStarted("coder"), TextDelta("coder", code), done("coder", code)]
    async with screen(FakeChat(lambda text, names: script), size=(60, 30)) as s:
        await s.ask("show")
        rows = s.rows()
        first = next(n for n, row in enumerate(rows) if "if x" in row)
        last = next(n for n, row in enumerate(rows) if "')" in row)
        assert last > first + 2
        await s.pilot.mouse_down(offset=(1, first))
        await s.pilot.hover(offset=(58, last))
        await s.pilot.mouse_up(offset=(58, last))
        await s.until(s.app.screen.get_selected_text)
        s.key("ctrl+c")
        await s.until(lambda: s.app.clipboard)
        assert s.app.clipboard == code.removeprefix("```python\n").removesuffix("\n```")
        assert s.app.is_running
        s.key("ctrl+c")
        await s.until(lambda: "again quits" in s.activity)


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP", "SIGINT"])
@on_screen
async def test_a_signal_to_end_leaves_in_order(name: str) -> None:
    if not hasattr(signal, name):
        pytest.skip(f"no {name} here")
    async with screen(FakeChat()) as s:
        signal.raise_signal(getattr(signal, name))
        await s.until(lambda: not s.app.is_running)
    assert s.app.return_code == 0
