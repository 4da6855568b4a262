"""The saved conversations: all that was said is searched, and one is gone on with, renamed, deleted or exported."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import ClassVar

from textual import work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Footer, Input, Static
from textual.widgets.option_list import Option

from icarus_local.chat.code import save_text
from icarus_local.chat.figures import counted
from icarus_local.chat.store import FAILURES, Found, SavedSession, SavedTurn, Store
from icarus_local.chat.transcripts import exported, form_of
from icarus_tui.dialogs import AskLine, Confirm, Picks, Title
from icarus_tui.looks import literal

_TYPING_S = 0.15
_WIDE = 100  # columns from which there is a preview
_PLACES = 3  # of each conversation
_PREVIEW = 20_000  # characters


class SessionsScreen(ModalScreen[str | None]):
    """Lists the conversations and gives the id of the one to go on with."""

    DEFAULT_CSS = """
    SessionsScreen { background: $background; layout: vertical; }
    SessionsScreen > Input { height: 1; margin: 0 1; }
    SessionsScreen Horizontal { height: 1fr; }
    SessionsScreen Picks { width: 1fr; }
    SessionsScreen VerticalScroll { width: 1fr; padding: 0 1; border-left: solid $primary; display: none; }
    SessionsScreen.-wide VerticalScroll { display: block; }
    SessionsScreen VerticalScroll > Static { height: auto; }
    """
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (_WIDE, "-wide")]  # noqa: RUF012 -- Textual annotates it as it does
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "resume", "Go on", id="sessions-resume", priority=True),
        Binding("f2,r", "rename", "Rename", id="sessions-rename"),
        Binding("delete", "delete", "Delete", id="sessions-delete"),
        Binding("e", "export", "Export", id="sessions-export"),
        Binding("slash", "search", "Search", id="sessions-search"),
        Binding("down", "move(1)", "Down", show=False, id="sessions-down"),
        Binding("up", "move(-1)", "Up", show=False, id="sessions-up"),
        Binding("escape", "leave", "Back", id="sessions-back"),
    ]

    def __init__(self, store: Store, current: str, query: str = "") -> None:
        """Lists the conversations of a store.

        Args:
            current: the id of the one that is open here, "" where it is not saved. query: what is looked for at first.
        """
        super().__init__()
        self._store, self._current = store, current
        self._shown: dict[str, SavedSession] = {}
        self._turns: dict[str, int] = {}  # the first place found, by conversation
        self._title, self._list, self._preview = Title("Conversations"), Picks(), Static(markup=False)
        self._query, self._search = query, Input(placeholder="search in all that was said", compact=True)

    def compose(self) -> ComposeResult:
        """Lays the screen out."""
        yield self._title
        yield self._search
        with Horizontal():
            yield self._list
            yield VerticalScroll(self._preview)
        yield Footer(show_command_palette=False)

    def on_mount(self) -> None:
        """Lists them and takes the keys."""
        self._search.value = literal(self._query).plain
        (self._search if self._query else self._list).focus()
        self._look()

    # -- what is shown -------------------------------------------------------------------------------------------------

    @work(exclusive=True, group="look")
    async def _look(self, told: str = "") -> None:
        text = self._search.value.strip()
        try:
            if text:
                await asyncio.sleep(_TYPING_S)
                self._fill(_by_conversation(await asyncio.to_thread(self._store.search, text)))
                self._title.show(told or f"{counted(len(self._shown), 'conversation')} with “{text}”")
            else:
                self._fill([(saved, []) for saved in await asyncio.to_thread(self._store.sessions)])
                self._title.show(told or counted(len(self._shown), "conversation"))
        except FAILURES as error:
            self._title.show(str(error), error=True)

    def _fill(self, rows: Sequence[tuple[SavedSession, Sequence[Found]]]) -> None:
        before = self._list.chosen
        self._shown = {saved.id: saved for saved, _ in rows}
        self._turns = {saved.id: max(places[0].turn, 0) for saved, places in rows if places}
        self._list.clear_options()
        self._list.add_options(
            Option(_row(saved, places, here=saved.id == self._current), saved.id) for saved, places in rows
        )
        if rows:
            self._list.highlighted = self._list.get_option_index(before) if before in self._shown else 0
        self._show_preview()
        self.refresh_bindings()

    @work(exclusive=True, group="preview")
    async def _show_preview(self) -> None:
        if (saved := self._chosen) is None or self.size.width < _WIDE:
            self._preview.update("")
            return
        try:
            turns = await asyncio.to_thread(self._store.turns, saved.id)
        except FAILURES as error:
            self._title.show(str(error), error=True)
            return
        self._preview.update(_begins(turns[self._turns.get(saved.id, 0) :]))
        self.query_one(VerticalScroll).scroll_home(animate=False)

    @property
    def _chosen(self) -> SavedSession | None:
        chosen = self._list.chosen
        return None if chosen is None else self._shown.get(chosen)

    def on_input_changed(self) -> None:
        """Looks for what is typed."""
        self._look()

    def on_option_list_option_highlighted(self) -> None:
        """Shows another conversation beside the list."""
        self._show_preview()

    def on_option_list_option_selected(self) -> None:
        """Goes on with the one that was clicked."""
        self.action_resume()

    def on_resize(self) -> None:
        """There may be room for a preview now."""
        self._show_preview()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """The footer offers only what would do something."""
        if action == "search":
            return not self._search.has_focus
        return self._chosen is not None if action in ("resume", "rename", "delete", "export") else True

    # -- what keys do --------------------------------------------------------------------------------------------------

    def action_search(self) -> None:
        """Goes to the line that says what is looked for."""
        self._search.focus()

    def action_move(self, rows: int) -> None:
        """Goes through the list while something is typed."""
        if rows > 0:
            self._list.action_cursor_down()
        else:
            self._list.action_cursor_up()

    def action_leave(self) -> None:
        """Goes back to the conversation that is open."""
        self.dismiss(None)

    def action_resume(self) -> None:
        """Goes on with a conversation."""
        if (saved := self._chosen) is None:
            return
        if saved.id == self._current:
            self._title.show("This conversation is open already")
        else:
            self.dismiss(saved.id)

    @work(exclusive=True, group="ask")
    async def action_rename(self) -> None:
        """Gives a conversation another title."""
        if (saved := self._chosen) is None:
            return
        question = "Its title; an empty one is the beginning of its first question"
        if (title := await self.app.push_screen_wait(AskLine(question, saved.title))) is not None:
            await self._does(lambda: self._store.rename(saved.id, title))

    @work(exclusive=True, group="ask")
    async def action_delete(self) -> None:
        """Removes a conversation for good, after asking."""
        if (saved := self._chosen) is None:
            return
        if saved.id == self._current:
            self._title.show("This conversation is open here, so it cannot be deleted", error=True)
        elif await self.app.push_screen_wait(
            Confirm(f"Delete “{saved.title}” for good, {counted(saved.n_turns, 'turn')}?")
        ):
            await self._does(lambda: self._store.delete(saved.id))

    @work(exclusive=True, group="ask")
    async def action_export(self) -> None:
        """Writes a conversation to a file."""
        if (saved := self._chosen) is None:
            return
        question = "The file to write; .md is Markdown, .jsonl a line for each turn"
        name = await self.app.push_screen_wait(AskLine(question, f"conversation-{saved.id}.md"))
        if not name:
            return
        # Not those of Path, which raise where there is no such user, or the name is too long.
        path = Path(os.path.expanduser(name))
        replaces = os.path.exists(path)
        if replaces and not await self.app.push_screen_wait(Confirm(f"Replace {path}?")):
            return
        await self._does(lambda: _export(self._store, saved, path, overwrite=replaces), told=f"{path} is written")

    async def _does(self, act: Callable[[], None], told: str = "") -> None:
        """Does something in a thread and lists what there is then."""
        try:
            await asyncio.to_thread(act)
        except FAILURES as error:
            self._title.show(str(error), error=True)
        else:
            self._look(told)


def _export(store: Store, saved: SavedSession, path: Path, overwrite: bool) -> None:
    save_text(exported(form_of(path), saved, store.turns(saved.id)), path, overwrite)


def _by_conversation(found: Sequence[Found]) -> list[tuple[SavedSession, list[Found]]]:
    places: dict[str, tuple[SavedSession, list[Found]]] = {}
    for each in found:
        places.setdefault(each.session.id, (each.session, []))[1].append(each)
    return list(places.values())


def _row(saved: SavedSession, places: Sequence[Found], here: bool) -> Content:
    when = time.strftime("%Y-%m-%d %H:%M", time.localtime(saved.updated))
    facts = f"{when}  {', '.join(saved.agents)}  {counted(saved.n_turns, 'turn')}{'  open here' if here else ''}"
    lines = [literal(saved.title, "bold"), literal(facts, "dim")]
    # The title shows itself.
    said = [place for place in places if place.turn >= 0]
    lines += [literal(f"  {place.speaker}: {place.excerpt}") for place in said[:_PLACES]]
    if len(said) > _PLACES:
        lines.append(literal(f"  and {len(said) - _PLACES} places more"))
    return Content("\n").join(lines)


def _begins(turns: Sequence[SavedTurn]) -> Content:
    """How these turns begin, as far as a preview goes."""
    parts: list[Content] = []
    room = _PREVIEW
    for turn in turns:
        if room > 0 and (said := turn.said) is not None:
            parts.append(literal(said.who, "bold") + literal(f"\n{said.text[:room].rstrip()}\n"))
            room -= len(said.text)
    return Content("\n").join(parts)
