"""The agents who take part and those who could: what is shown of them, and what a key asks for."""

from __future__ import annotations

import pytest

from icarus_local.chat.events import AgentState
from icarus_local.chat.requests import AddAgent, ReloadAgent, RemoveAgent
from icarus_tui.agents import AgentsScreen
from tests.tui.alone import SIZES, alone, driven

ROSTER = (
    AgentState("coder", "coder", "/adapters/coder.gguf", 9 << 20, resident=True, max_tokens=400),
    AgentState("math", "math=m.gguf", "m.gguf", 5 << 20, resident=False, max_tokens=200),
    AgentState("base", "base", "", 0, resident=True, max_tokens=512),
)
KNOWN = [("base", "the base model"), ("coder", "catalog"), ("reviewer", "catalog"), ("poet", "agents.toml\x1b[2J [b]x")]


def screen() -> AgentsScreen:
    return AgentsScreen(ROSTER, KNOWN)


@pytest.mark.parametrize("size", SIZES)
@driven
async def test_all_are_shown_with_what_they_take(size: tuple[int, int]) -> None:
    async with alone(screen(), size) as s:
        await s.shows("3 take part, 2 more", "● coder", "9.0 MiB, in memory")
        await s.press("end")
        await s.shows("poet", "agents.toml�[2J [b]x")
        if size[0] > 40:
            await s.shows("5.0 MiB when it is in memory, answers of at most 200", "speaks as the base", "reviewer")
        await s.until(lambda: s.footer >= {"Add", "Back"} and "Remove" not in s.footer)
        await s.press("home")
        await s.until(lambda: s.footer >= {"Remove", "Read again", "Back"} and "Add" not in s.footer)
        await s.press("tab")
        await s.until(lambda: s.footer == {"Back"})


@pytest.mark.parametrize(
    ("keys", "result"),
    [
        (["x"], RemoveAgent("coder")),
        (["down", "delete"], RemoveAgent("math")),
        (["down", "r"], ReloadAgent("math")),
        (["end", "a"], AddAgent("poet")),
        (["end", "up", "enter"], AddAgent("reviewer")),
        (["tab", *"sql=f.gguf", "enter"], AddAgent("sql=f.gguf")),
        (["escape"], None),
        (["tab", "escape"], None),
    ],
)
@driven
async def test_a_key_asks_for_something(keys: list[str], result: object) -> None:
    async with alone(screen()) as s:
        await s.press(*keys)
        await s.until(lambda: s.results)
    assert s.results == [result]


@driven
async def test_what_is_not_possible_does_nothing() -> None:
    async with alone(screen()) as s:
        await s.press(
            "a", "enter", "end", "x", "delete", "r", "tab", "x", "r", "a", "backspace", "backspace", "backspace"
        )
        await s.press("enter")
        assert s.results == []
        assert s.app.screen is s.screen


@pytest.mark.parametrize("theme", ["textual-light", "terminal"])
@driven
async def test_the_choice_is_seen_without_colour(theme: str) -> None:
    async with alone(screen(), theme=theme, colour=False) as s:
        await s.press("down")
        await s.shows("▌ ● math", "  ● coder")
        await s.press("tab")
        await s.shows("│ ● math")
        colours = {segment.style.color for row in s.strips for segment in row if segment.style and segment.style.color}
        assert {colour.name for colour in colours} <= {"default"}
