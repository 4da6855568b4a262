"""The conversation: entries in which a person finds text, and walks from target to target."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from textual import events
from textual.binding import Binding, BindingType
from textual.content import Span
from textual.message import Message

from icarus_local.chat.code import CodeBlock
from icarus_tui.answer import Thought
from icarus_tui.block import Cell, Kind, Node
from icarus_tui.browse import Place, column_of
from icarus_tui.columns import Columns
from icarus_tui.exchange import Entry, Exchange, Past
from icarus_tui.find import Finder, row_of
from icarus_tui.paint import MARGIN
from icarus_tui.view import EntriesView

_ACTIONS = ("copy", "save", "edit", "regenerate", "keep", "remove")
_OFFERED: list[tuple[str, tuple[object, ...]]] = [
    ("fold", ()),
    ("go_aside", (1,)),
    *(("ask", (name,)) for name in _ACTIONS),
]


@dataclass(frozen=True, slots=True)
class Target:
    """What the person stands on.

    Attributes:
        kind: what it is. entry: what it is in. text: its source. agent: whose it is, "" where it is the person's.
        code: the block where it is one.
    """

    kind: Kind
    entry: Entry
    text: str
    agent: str = ""
    code: CodeBlock | None = None


class Transcript(EntriesView, can_focus=True):
    """All entries. It stays at its end until it is scrolled back. Where it has the keys, a person walks about in it."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "move(-1)", "Before", show=False, id="target_before"),
        Binding("down", "move(1)", "Next", show=False, id="target_next"),
        Binding("pageup", "page(-1)", "A page back", show=False, id="page_back"),
        Binding("pagedown", "page(1)", "A page on", show=False, id="page_on"),
        Binding("home", "go_to_end(-1)", "First", show=False, id="target_first"),
        Binding("end", "go_to_end(1)", "Last", show=False, id="target_last"),
        Binding("left", "go_aside(-1)", "Left", id="left"),
        Binding("right", "go_aside(1)", "Right", id="right"),
        Binding("enter,space", "fold", "Fold, unfold", id="fold"),
        Binding("c", "ask('copy')", "Copy", id="copy"),
        Binding("s", "ask('save')", "Save", id="save"),
        Binding("e", "ask('edit')", "Edit", id="edit"),
        Binding("r", "ask('regenerate')", "Ask again", id="regenerate"),
        Binding("k", "ask('keep')", "Keep this one", id="keep"),
        Binding("d", "ask('remove')", "Remove", id="remove"),
        Binding("escape,tab,shift+tab", "go_back", "Back to the input", id="go_back"),
    ]

    @dataclass
    class Asked(Message):
        """A person wants something done with a target: copy, save, edit, regenerate, keep or remove."""

        action: str
        target: Target

    class Left(Message):
        """The keys are to go elsewhere."""

    @dataclass
    class Typed(Message):
        """A character was typed that means nothing here."""

        character: str

    def __init__(self, thoughts_shown: bool = False) -> None:
        """`thoughts_shown`: whether thoughts are unfolded."""
        super().__init__()
        self._place = Place(self._entries)
        self._finder = Finder()
        self._thoughts_shown = thoughts_shown
        self._offered: list[bool | None] = []

    # -- entries -------------------------------------------------------------------------------------------------------

    def add(self, entry: Entry) -> None:
        """Adds at the end and goes there."""
        self._fold(entry)
        super().add(entry)

    def discard(self, entry: Entry) -> None:
        """Takes an entry out."""
        self._finder.forget(entry)
        super().discard(entry)

    def clear(self) -> None:
        """Takes all out."""
        for entry in self.entries:
            self._finder.forget(entry)
        super().clear()

    def toggle_thoughts(self) -> None:
        """Folds all thoughts, or unfolds them."""
        self._thoughts_shown = not self._thoughts_shown
        for entry in self.entries:
            self._fold(entry)
        self.update()

    def entries_changed(self, changed: list[Node]) -> None:
        """Looks again in them for what is looked for, and whether the person stands on something that is there."""
        self._finder.update(changed)
        self._place.check()
        if self.has_focus:
            if self._place.spot is None:
                self._place.go_near(self.scroll_offset.y + self.size.height - 1)
            self._show_offers()

    def is_current(self, cell: Cell) -> bool:
        """Whether the person stands on a cell's line, and has the keys here."""
        return self.has_focus and self._place.holds(cell.block, cell.line)

    def marked(self, cell: Cell) -> list[Span]:
        """What is found in a cell's line."""
        return [
            Span(match.start, match.end, "bold reverse" if match == self._finder.current else "bold underline")
            for match in self._finder.on_line(cell.block, cell.line)
        ]

    def _fold(self, entry: Entry) -> None:
        entry.thoughts_shown = self._thoughts_shown
        for thought in entry.thoughts():
            thought.fold(self._thoughts_shown)

    # -- finding -------------------------------------------------------------------------------------------------------

    def find(self, text: str) -> int:
        """Marks `text` wherever it is shown, whatever its case, and says how often; "" takes the marks away."""
        self.lay_out()
        self.refresh()
        return self._finder.find(text, self.entries)

    def find_next(self, step: int) -> int:
        """Goes to the next match, or with -1 to the one before, and gives its index; -1 where there is none. At first
        that is the nearest one from the top of the view on, or up to its end.
        """
        self.lay_out()
        top = self.scroll_offset.y
        index = self._finder.step(step, top if step > 0 else top + self.size.height - 1)
        if self._finder.current is not None:
            row = row_of(self._finder.current)
            self._show_rows(row, row + 1)
        self.refresh()
        return index

    # -- walking about -------------------------------------------------------------------------------------------------

    @property
    def target(self) -> Target | None:
        """What the person stands on."""
        spot, entry = self._place.spot, self._place.entry
        if spot is None or entry is None:
            return None
        mark = spot.mark
        return Target(mark.kind, entry, mark.text(), mark.agent, None if mark.code is None else mark.code())

    def on_focus(self) -> None:
        """Stands on what is in view."""
        top, height = self.scroll_offset.y, self.size.height
        rows = None if self._place.spot is None else self._place.spot.rows
        if rows is None or rows[1] <= top or rows[0] >= top + height:
            self._place.go_near(top + height - 1)
        self._went()

    def on_click(self, event: events.Click) -> None:
        """Stands on what was clicked, goes to a tab, folds a thought."""
        self.lay_out()
        row = self.scroll_offset.y + event.y
        if self.text_selection or not 0 <= row < self._entries.height:
            return
        cells = [cell for cell in self._entries.cells(row) if cell.x <= event.x and cell.number >= 0]
        cell = cells[-1] if cells else None
        if cell is None or cell.part < 0:
            return
        self._click(cell, event.x)
        self._went(scroll=False)

    def _click(self, cell: Cell, x: int) -> None:
        columns = cell.block.parent if isinstance(cell.block.parent, Columns) else None
        if columns is not None:
            tab = columns.tab_at(cell.block.part(cell.line, cell.part)[0] + x - MARGIN - cell.x)
            if tab is not None:
                self._place.show_column(columns, tab)
                self.update()
            return
        beside = column_of(cell.block)
        if beside is not None:
            beside[0].show(beside[1])
        if self._place.go_to(cell.block, cell.line) and isinstance(cell.block, Thought):
            self.action_fold()
        elif beside is not None:
            self.update()

    def on_key(self, event: events.Key) -> None:
        """Passes on what is typed and means nothing here."""
        if event.is_printable and event.character and not self._is_bound(event.key):
            event.stop()
            event.prevent_default()
            self.post_message(self.Typed(event.character))

    def _is_bound(self, key: str) -> bool:
        own = {bound for bound, _ in self._bindings}
        return key in own or key in self.screen.active_bindings

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """The footer offers only what would do something."""
        kind = None if self._place.spot is None else self._place.spot.mark.kind
        if action == "ask":
            return kind is not None and self._offers(str(parameters[0]), kind)
        if action == "go_aside":
            return self._place.columns is not None
        return kind == "thought" if action == "fold" else True

    def _offers(self, action: str, kind: Kind) -> bool:
        entry = self._place.entry
        exchange = entry if isinstance(entry, Exchange) else None
        match action:
            case "save":
                return kind == "code"
            case "edit":
                return kind == "question"
            case "regenerate":
                return kind in ("question", "answer") and self._is_newest(entry)
            case "keep":
                asked = [other for other in self.entries if isinstance(other, Exchange) and other.question is not None]
                return kind == "answer" and exchange is not None and exchange.undecided and asked[-1] is exchange
            case "remove":
                return kind == "question" and exchange is not None and exchange.queued
        return True

    def _is_newest(self, entry: Entry | None) -> bool:
        """Whether an entry asks or answers the newest question, and that is answered."""
        for other in reversed(self.entries):
            match other:
                case Exchange(question=asked, queued=False, taken_back=False) if asked is not None:
                    return entry is other and not other.open
                case Past(said=said) if not (said.answer or said.file):
                    return entry is not None and entry.place >= other.place
        return False

    def action_move(self, step: int) -> None:
        """Goes to the next target, or to the one before."""
        self._place.move(step)
        self._went()

    def action_page(self, step: int) -> None:
        """Goes to a target about a page away."""
        row = self.scroll_offset.y + (self.size.height - 1 if step > 0 else 0)
        if self._place.spot is not None:
            row = self._place.spot.rows[0]
        self._place.go_near(row + step * max(1, self.size.height - 1))
        self._went()

    def action_go_to_end(self, step: int) -> None:
        """Goes to the last target, or to the first."""
        self._place.go_near(self._entries.height if step > 0 else 0)
        self._went()

    def action_go_aside(self, step: int) -> None:
        """Goes to the next column or tab."""
        self._place.go_aside(step)
        self.update()
        self._went()

    def action_fold(self) -> None:
        """Folds a thought, or unfolds it."""
        block = None if self._place.spot is None else self._place.spot.block
        if isinstance(block, Thought):
            block.fold(not block.shown)
            # Not to the end of what is unfolded: its first line stays where it is.
            self._following = False
            self.update()
            self._following = self.scroll_offset.y >= self.max_scroll_y

    def action_ask(self, action: str) -> None:
        """Has something done with the target."""
        if (target := self.target) is not None:
            self.post_message(self.Asked(action, target))

    def action_go_back(self) -> None:
        """Leaves the keys to the input."""
        self.post_message(self.Left())

    def _went(self, scroll: bool = True) -> None:
        """The person stands elsewhere."""
        if scroll and self._place.spot is not None:
            self._show_rows(*self._place.spot.rows)
        self.refresh()
        self._show_offers()

    def _show_offers(self) -> None:
        """Has the footer made anew where other keys do something; it takes its time."""
        offers = [self.check_action(*action) for action in _OFFERED]
        if offers != self._offered:
            self._offered = offers
            self.refresh_bindings()

    def _show_rows(self, first: int, end: int) -> None:
        """Scrolls as little as shows these rows, the first of them in any case."""
        top, height = self.scroll_offset.y, self.size.height
        if end > top + height:
            top = end - height
        self.scroll_to(y=min(top, first), animate=False, force=True)
