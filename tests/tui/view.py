"""The transcript in an app of its own, driven without a terminal."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from textual.app import App, ComposeResult
from textual.pilot import Pilot
from textual.widgets import Footer
from textual.widgets._footer import FooterKey

from icarus_local.chat.events import AnswerDone, FinishReason, TextDelta
from icarus_local.chat.requests import Ask
from icarus_tui.exchange import Exchange
from icarus_tui.looks import agent_variables
from icarus_tui.transcript import Target, Transcript

AGENTS = ("coder", "reviewer", "math", "tools")


def done(agent: str, text: str = "", finish: FinishReason = "stop", generated: int = 3) -> AnswerDone:
    return AnswerDone(agent, text, finish, 100, 10, generated, 0.25, 12.5, 2 * 2**20, 4 * 2**20)


class ViewApp(App[None]):
    ENABLE_COMMAND_PALETTE = False

    def __init__(self) -> None:
        super().__init__()
        self.transcript = Transcript()
        self.asked: list[tuple[str, Target]] = []
        self.typed = ""
        self.left = 0

    def get_theme_variable_defaults(self) -> dict[str, str]:
        return agent_variables(self.current_theme)

    def compose(self) -> ComposeResult:
        yield self.transcript
        yield Footer(show_command_palette=False)

    def on_transcript_asked(self, event: Transcript.Asked) -> None:
        self.asked.append((event.action, event.target))

    def on_transcript_typed(self, event: Transcript.Typed) -> None:
        self.typed += event.character

    def on_transcript_left(self) -> None:
        self.left += 1


class Shown:
    """The app under test."""

    def __init__(self, app: ViewApp, pilot: Pilot[None]) -> None:
        self.app, self.pilot, self.transcript = app, pilot, app.transcript

    @property
    def footer(self) -> set[str]:
        return {key.description for key in self.app.query_one(Footer).query(FooterKey)}

    @property
    def text(self) -> str:
        return self.transcript.text

    def rows(self) -> list[str]:
        """The transcript's rows, without the scroll bar."""
        strips = self.app.screen._compositor.render_strips()[: self.transcript.size.height]
        width = self.transcript.scrollable_content_region.width
        return [strip.crop(0, width).text.rstrip() for strip in strips]

    def exchange(self, text: str, *agents: str, at_once: bool = False) -> Exchange:
        """A question to `agents` whose answers have not begun but stand in the transcript."""
        exchange = Exchange(text, Ask(text, agents, at_once=at_once))
        self.transcript.add(exchange)
        return exchange

    def answered(self, text: str, answer: str, agent: str = "coder", thought: str = "") -> Exchange:
        """A question with its answer."""
        exchange = self.exchange(text)
        exchange.begin_answer(agent, AGENTS.index(agent))
        if thought:
            exchange.append(TextDelta(agent, thought, thought=True))
        exchange.append(TextDelta(agent, answer))
        exchange.end_answer(done(agent, answer))
        self.transcript.update()
        return exchange

    async def press(self, *keys: str) -> None:
        await self.pilot.press(*keys)
        await self.pilot.pause()


@asynccontextmanager
async def view(size: tuple[int, int] = (80, 24)) -> AsyncIterator[Shown]:
    app = ViewApp()
    async with app.run_test(size=size) as pilot:
        await pilot.pause()
        app.transcript.focus()
        await pilot.pause()
        yield Shown(app, pilot)
