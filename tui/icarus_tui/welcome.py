"""The first start: there is no base yet, so one is found on this machine, fetched, or named."""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.screen import Screen
from textual.widgets import Footer, Input, OptionList, Static
from textual.widgets.option_list import Option

from icarus_local.base_choices import BaseChoice, Places, Pulling
from icarus_local.errors import CancelledError, IcarusError
from icarus_local.hub_place import size_text
from icarus_tui.dialogs import Picks, Title
from icarus_tui.loading import bar
from icarus_tui.looks import literal

_POLL_S = 0.1
_PROGRESS_S = 0.25
_HERE, _OFFERED = "here:", "offered:"


class WelcomeScreen(Screen[str | None]):
    """Lets the person choose a base and gives what `--base` takes for it; None to quit."""

    DEFAULT_CSS = """
    WelcomeScreen { background: $background; layout: vertical; }
    WelcomeScreen > Input, WelcomeScreen > Static { height: 1; margin: 0 1; text-wrap: nowrap; }
    WelcomeScreen > Title { margin: 0; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "stop", "Stop", id="welcome-stop", priority=True),
        Binding("ctrl+c", "stop", "Stop", id="welcome-stop", priority=True, show=False),
        Binding("escape", "leave", "Quit", id="welcome-quit", priority=True),
        Binding("ctrl+c", "leave", "Quit", id="welcome-quit", priority=True, show=False),
        Binding("ctrl+r", "remember", "Remember", id="welcome-remember"),
    ]

    def __init__(self, places: Places) -> None:
        super().__init__()
        self._places = places
        self._here: list[BaseChoice] = []
        self._offered: dict[str, tuple[BaseChoice, str]] = {}  # with what keeps its size from being known
        self._first: str | None = None  # that can be chosen
        self._searching, self._changed = True, True
        self._remembers, self._left = True, False
        self._pull: Pulling | None = None
        self._come: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._title, self._list, self._box = Title("Looking for models …"), Picks(), Static(markup=False)
        self._line = Input(placeholder="or the path of a .gguf file, or OWNER/NAME/FILE.gguf on the Hub", compact=True)

    def compose(self) -> ComposeResult:
        """Lays the screen out."""
        yield self._title
        yield self._list
        yield self._line
        yield self._box
        yield Footer(show_command_palette=False)

    def on_mount(self) -> None:
        """Begins to look, and shows what is found as it comes."""
        self._show_box()
        self._list.focus()
        self._in_thread(self._look)
        self._in_thread(self._look_at_offers)
        self.set_interval(_POLL_S, self._drain)

    def on_unmount(self) -> None:
        """Ends what is under way."""
        self._left = True
        if self._pull is not None:
            self._pull.stop()

    # -- threads -------------------------------------------------------------------------------------------------------

    def _in_thread(self, work: Callable[[], None]) -> None:
        def run() -> None:
            try:
                work()
            except Exception as error:  # the screen says it, whatever it is
                self._come.put(partial(self._title.show, f"{type(error).__name__}: {error}", error=True))

        threading.Thread(target=run, name="icarus-welcome", daemon=True).start()

    def _look(self) -> None:
        for choice in self._embedded_and_found():
            if self._left:
                return
            self._come.put(partial(self._found, choice))
        self._come.put(self._searched)

    def _embedded_and_found(self) -> Iterator[BaseChoice]:
        yield from self._places.embedded()
        yield from self._places.find()

    def _look_at_offers(self) -> None:
        for offer in self._places.offers():
            self._come.put(partial(self._offer, offer, ""))
            self._in_thread(partial(self._ask_size, offer))

    def _ask_size(self, offer: BaseChoice) -> None:
        try:
            known = replace(offer, n_bytes=self._places.size(offer))
        except IcarusError as error:
            # The name stands there already.
            self._come.put(partial(self._offer, offer, error.what.partition("from the Hub: ")[2] or error.what))
        else:
            self._come.put(partial(self._offer, known, ""))

    def _follow(self, pull: Pulling, name: str, over: threading.Event) -> None:
        while not over.wait(_PROGRESS_S):
            n_here, n_bytes = pull.progress()
            self._come.put(partial(self._progress, name, n_here, n_bytes))

    def _wait(self, pull: Pulling, over: threading.Event) -> None:
        try:
            base = pull.wait()
        except IcarusError as error:
            self._come.put(partial(self._not_pulled, error))
        else:
            self._come.put(partial(self._pulled, base))
        finally:
            over.set()

    # -- what came of them ---------------------------------------------------------------------------------------------

    def _drain(self) -> None:
        for _ in range(self._come.qsize()):
            self._come.get_nowait()()
        if self._changed:
            self._changed = False
            self._fill()

    def _found(self, choice: BaseChoice) -> None:
        if not any(choice.usable and choice.base == known.base for known in self._here):
            self._here.append(choice)
            self._changed = True

    def _searched(self) -> None:
        self._searching, self._changed = False, True
        if self._pull is None:
            n_usable = sum(choice.usable for choice in self._here)
            found = f"{n_usable} base{' is' if n_usable == 1 else 's are'} here" if n_usable else "No base is here yet"
            self._title.show(f"{found}: choose one, or fetch one")

    def _offer(self, offer: BaseChoice, reason: str) -> None:
        self._offered[offer.base] = offer, reason
        self._changed = True

    def _progress(self, name: str, n_here: int, n_bytes: int | None) -> None:
        if self._pull is None:
            return
        if n_bytes:
            cells = max(min(self.size.width - 60, 40), 4)
            how = f"{bar(n_here / n_bytes, cells)}  {size_text(n_here)} of {size_text(n_bytes)}"
        else:
            how = size_text(n_here)
        self._title.show(f"{how}  {name}")

    def _pulled(self, base: str) -> None:
        self._end_pull()
        self._choose(base)

    def _not_pulled(self, error: IcarusError) -> None:
        self._end_pull()
        self._title.show(str(error), error=not isinstance(error, CancelledError))

    def _end_pull(self) -> None:
        self._pull = None
        self.refresh_bindings()

    # -- what is shown -------------------------------------------------------------------------------------------------

    def _fill(self) -> None:
        chosen, first = self._list.chosen, self._first
        self._list.clear_options()
        self._list.add_options(self._options())
        self._first = next((option.id for option in self._list.options if not option.disabled), None)
        # Who has not moved yet stands on the first one, whatever comes before it.
        here = {option.id for option in self._list.options}
        stays = chosen if chosen != first and chosen in here else self._first
        if stays is not None:
            self._list.highlighted = self._list.get_option_index(stays)

    def _options(self) -> Iterator[Option]:
        yield _heading(f"On this machine{', still looking …' if self._searching else ''}")
        for choice in sorted(self._here, key=lambda choice: not choice.usable):
            yield Option(_row(choice), f"{_HERE}{choice.base}" if choice.usable else None, disabled=not choice.usable)
        here = {choice.name for choice in self._here}
        offered = [(offer, reason) for offer, reason in self._offered.values() if offer.base not in here]
        # What keeps all sizes from being known is said once.
        reasons = {reason for _, reason in offered}
        shared = next(iter(reasons)) if len(reasons) == 1 else ""
        if offered:
            yield _heading(
                f"To be fetched from the Hugging Face Hub{f' (sizes are not known: {shared})' if shared else ''}"
            )
        for offer, reason in offered:
            unknown = "" if shared else reason or "size …"
            yield Option(_row(offer, unknown), f"{_OFFERED}{offer.base}")

    def _show_box(self) -> None:
        self._box.update(literal(f"[{'x' if self._remembers else ' '}] use it in every chat from now on"))

    # -- what the person does ------------------------------------------------------------------------------------------

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """Takes a base that is here, or fetches one."""
        chosen = event.option_id or ""
        if chosen.startswith(_HERE):
            self._choose(chosen.removeprefix(_HERE))
        elif chosen.startswith(_OFFERED):
            self._fetch(self._offered[chosen.removeprefix(_OFFERED)][0])

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Takes the file that was named, or fetches it."""
        named = event.value.strip()
        path = os.path.abspath(os.path.expanduser(named))
        if not named:
            return
        if os.path.isfile(path):
            self._choose(path)
        elif named.count("/") >= 2 and named.endswith(".gguf") and not named.startswith(("/", "~", ".")):
            self._fetch(BaseChoice(named, named, None, ""))
        else:
            self._title.show(f"there is no file {named}", error=True)

    def _fetch(self, offer: BaseChoice) -> None:
        if self._pull is not None:
            self._title.show("Something is being fetched; Esc stops it", error=True)
            return
        try:
            self._pull = pull = self._places.pull(offer)
        except (IcarusError, OSError) as error:
            self._title.show(str(error), error=True)
            return
        over = threading.Event()
        self._title.show(f"Fetching {offer.name}")
        self._in_thread(partial(self._wait, pull, over))
        self._in_thread(partial(self._follow, pull, offer.name, over))
        self.refresh_bindings()

    def _choose(self, base: str) -> None:
        if self._remembers:
            try:
                self._places.remember(base)
            except IcarusError as error:
                self._remembers = False
                self._show_box()
                self._title.show(f"{error}. Choose again to go on without", error=True)
                return
        self.dismiss(base)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """The footer offers only what would do something."""
        if action in ("stop", "leave"):
            return (self._pull is not None) == (action == "stop")
        return True

    def action_stop(self) -> None:
        """Stops fetching; what has arrived is kept."""
        if self._pull is not None:
            self._pull.stop()

    def action_leave(self) -> None:
        """Quits."""
        self.dismiss(None)

    def action_remember(self) -> None:
        """Remembers the choice, or does not."""
        self._remembers = not self._remembers
        self._show_box()


def _heading(text: str) -> Option:
    return Option(literal(text, "bold"), disabled=True)


def _row(choice: BaseChoice, unknown: str = "") -> Content:
    size = unknown if choice.n_bytes is None else size_text(choice.n_bytes)
    facts = "  ".join(part for part in (size, choice.detail) if part)
    return literal(choice.name.replace("\n", " "), "bold" if choice.usable else "") + literal(
        f"  {facts}".replace("\n", " ")
    )
