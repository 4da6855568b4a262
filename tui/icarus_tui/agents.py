"""Who takes part and who could: agents are added, removed and read again while the conversation goes on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Footer, Input, OptionList
from textual.widgets.option_list import Option

from icarus_local.chat.events import AgentState
from icarus_local.chat.figures import mib
from icarus_local.chat.requests import AddAgent, ReloadAgent, RemoveAgent
from icarus_tui.dialogs import Picks, Title
from icarus_tui.looks import literal

_HERE, _KNOWN = "here:", "known:"


class AgentsScreen(ModalScreen[AddAgent | RemoveAgent | ReloadAgent | None]):
    """Shows the agents and gives what is to be done about one."""

    DEFAULT_CSS = """
    AgentsScreen { background: $background; layout: vertical; }
    AgentsScreen > Input { height: 1; margin: 0 1; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("a", "add", "Add", id="agents-add"),
        Binding("x,delete", "remove", "Remove", id="agents-remove"),
        Binding("r", "reload", "Read again", id="agents-reload"),
        Binding("escape", "leave", "Back", id="agents-back"),
    ]

    def __init__(self, roster: Sequence[AgentState], known: Sequence[tuple[str, str]]) -> None:
        """Lists agents.

        Args:
            roster: those who take part. known: names of all that could, and where each comes from.
        """
        super().__init__()
        here = {agent.name for agent in roster}
        self._roster = roster
        self._known = [(name, source) for name, source in known if name not in here]
        self._list = Picks()
        self._line = Input(placeholder="another one: NAME=FILE.gguf", compact=True)

    def compose(self) -> ComposeResult:
        """Lays the screen out."""
        yield Title(f"Agents: {len(self._roster)} take part, {len(self._known)} more are known")
        yield self._list
        yield self._line
        yield Footer(show_command_palette=False)

    def on_mount(self) -> None:
        """Fills the list and takes the keys."""
        self._list.add_options(
            [Option(_state(agent), f"{_HERE}{agent.name}") for agent in self._roster]
            + [Option(_source(name, source), f"{_KNOWN}{name}") for name, source in self._known]
        )
        self._list.focus()
        self._list.highlighted = 0

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """The footer offers only what would do something."""
        if action in ("remove", "reload"):
            return self._chosen(_HERE) is not None
        return self._chosen(_KNOWN) is not None if action == "add" else True

    def _chosen(self, of: str) -> str | None:
        chosen = self._list.chosen or ""
        return chosen.removeprefix(of) if chosen.startswith(of) else None

    def on_option_list_option_highlighted(self) -> None:
        """Other keys do something now."""
        self.refresh_bindings()

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """Adds one who could take part."""
        if self._chosen(_KNOWN) is not None:
            self.action_add()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Adds the one that was typed."""
        if event.value.strip():
            self.dismiss(AddAgent(event.value.strip()))

    def action_add(self) -> None:
        """Adds the highlighted one."""
        if (name := self._chosen(_KNOWN)) is not None:
            self.dismiss(AddAgent(name))

    def action_remove(self) -> None:
        """Removes the highlighted one."""
        if (name := self._chosen(_HERE)) is not None:
            self.dismiss(RemoveAgent(name))

    def action_reload(self) -> None:
        """Reads the highlighted one's files again."""
        if (name := self._chosen(_HERE)) is not None:
            self.dismiss(ReloadAgent(name))

    def action_leave(self) -> None:
        """Goes back; nothing is done."""
        self.dismiss(None)


def _state(agent: AgentState) -> Content:
    if not agent.adapter:
        where = "speaks as the base"
    else:
        where = f"{mib(agent.n_bytes)}{', in memory' if agent.resident else ' when it is in memory'}"
    return _entry("● ", agent.name, f"{where}, answers of at most {agent.max_tokens} tokens")


def _source(name: str, source: str) -> Content:
    return _entry("  ", name, source)


def _entry(mark: str, name: str, more: str) -> Content:
    return literal(mark) + literal(name, "bold") + literal(f"  {more}".replace("\n", " "))
