"""The quiet lines around the conversation: who takes part, what the one cache holds, what is going on."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from textual.content import Content
from textual.message import Message
from textual.widgets import Static

from icarus_local.chat.events import AgentState, AnswerDone, CacheUsed, ContextCut
from icarus_local.chat.figures import counted, mib
from icarus_local.chat.room import room_for
from icarus_tui.looks import colour, literal

_BAR_CELLS = 10
_NEARLY_FULL = 0.9
_FULL, _EMPTY = "█", "░"


class AgentBar(Static):
    """Who takes part: `▶` has the word, `›` is next, `○` has its adapter on disk only, brackets are not asked now."""

    DEFAULT_CSS = """
    AgentBar { height: 1; padding: 0 1; background: $panel; text-wrap: nowrap; text-overflow: ellipsis; }
    """

    class Clicked(Message):
        """Somebody wants to see who could take part."""

    def __init__(self, roster: Sequence[AgentState]) -> None:
        self._roster = tuple(roster)
        self._numbers: dict[str, int] = {}
        self._asked: tuple[str, ...] = ()
        self._speaking: tuple[str, ...] = ()
        self._next = ""
        super().__init__(self._content(), markup=False)

    def show(self, roster: Sequence[AgentState]) -> None:
        """Shows who takes part now."""
        self._roster = tuple(roster)
        self.update(self._content())

    def number(self, name: str) -> int:
        """Which colour an agent has; it keeps it when others come and go."""
        return self._numbers.setdefault(name, len(self._numbers))

    def show_asked(self, names: Sequence[str]) -> None:
        """Shows whom a line asks that names nobody; all where it is empty."""
        self._asked = tuple(names)
        self.update(self._content())

    def show_turn(self, speaking: Collection[str], following: str) -> None:
        """Shows who has the word, and who has it next ("" where nobody)."""
        if (tuple(speaking), following) != (self._speaking, self._next):
            self._speaking, self._next = tuple(speaking), following
            self.update(self._content())

    def on_click(self) -> None:
        """Asks for the list of agents."""
        self.post_message(self.Clicked())

    def _content(self) -> Content:
        return Content("  ").join(self._agent(agent) for agent in self._roster)

    def _agent(self, agent: AgentState) -> Content:
        name = agent.name
        mark = "▶ " if name in self._speaking else "› " if name == self._next else ""
        mark += "" if agent.resident or not agent.adapter else "○ "
        style = f"bold {colour(self.number(name))}{' reverse' if name in self._speaking else ''}"
        asked = {here.name for here in self._roster} & set(self._asked)
        shown = name if not asked or name in asked else f"({name})"
        size = literal(f" {mib(agent.n_bytes)}", "dim") if agent.adapter else Content("")
        return Content.assemble(literal(mark), literal(shown, style), size)


class Meter(Static):
    """How full the one cache is, what it spares, and what the last answer reused; warns before the context is cut."""

    DEFAULT_CSS = """
    Meter { height: 1; padding: 0 1; background: $panel; text-wrap: nowrap; text-overflow: ellipsis;
        &.-nearly-full { color: $text-warning; text-style: bold; }
    }
    """

    def __init__(self, n_ctx: int, used: CacheUsed, roster: Sequence[AgentState]) -> None:
        self._n_ctx, self._used = n_ctx, used
        self._room = 0
        self._reused = self._dropped = ""
        super().__init__("", markup=False)
        self.show_agents(roster)

    def show(self, used: CacheUsed) -> None:
        """Shows what the cache holds."""
        self._used = used
        self._show()

    def show_agents(self, roster: Sequence[AgentState]) -> None:
        """Takes in how long the answers may be."""
        self._room = room_for(max((agent.max_tokens for agent in roster), default=0), self._n_ctx)
        self._show()

    def show_answer(self, done: AnswerDone) -> None:
        """Shows what an answer reused."""
        self._reused = f"{done.agent} reused {done.reused} of {done.reused + done.encoded}"
        self._show()

    def show_cut(self, cut: ContextCut) -> None:
        """Shows what left the context."""
        self._dropped = f"{cut.turns} oldest left, {cut.tokens} tokens"
        self._show()

    def begin_anew(self) -> None:
        """Another conversation."""
        self._reused = self._dropped = ""
        self._show()

    @property
    def text(self) -> str:
        """What it says."""
        used, n_ctx = self._used, self._n_ctx
        tokens = min(used.tokens, n_ctx)
        filled = max(tokens * _BAR_CELLS // n_ctx, int(tokens > 0))  # full is full, and empty empty
        parts = [f"{_FULL * filled}{_EMPTY * (_BAR_CELLS - filled)} {tokens}/{n_ctx} tokens"]
        if self.nearly_full:
            parts.append("nearly full, the oldest leave next")
        if used.tokens:
            separate = f"{counted(used.caches, 'separate cache')}: {mib(used.n_bytes_separate)}"
            parts.append(f"{mib(used.n_bytes)}; {separate}")
        return " · ".join([*parts, *filter(None, [self._dropped, self._reused])])

    @property
    def nearly_full(self) -> bool:
        """Whether an answer may no longer have room."""
        used = self._used.tokens
        return used > 0 and (used + self._room > self._n_ctx or used >= _NEARLY_FULL * self._n_ctx)

    def _show(self) -> None:
        self.set_class(self.nearly_full, "-nearly-full")
        self.update(literal(self.text))


class Activity(Static):
    """What the program is doing, or what a key would do next."""

    DEFAULT_CSS = """
    Activity { height: 1; padding: 0 1; color: $text-muted; text-wrap: nowrap; text-overflow: ellipsis; }
    """

    def __init__(self) -> None:
        super().__init__("", markup=False)
        self._text = ""

    def show(self, text: str) -> None:
        """Says `text`, or nothing."""
        if text != self._text:
            self._text = text
            self.update(literal(text))
