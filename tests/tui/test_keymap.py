"""Keys of a person's own: checked against what is there, and bound in a running app."""

from __future__ import annotations

from typing import ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st
from textual.app import App
from textual.binding import Binding, BindingType
from textual.screen import Screen

from icarus_local.errors import RequestError
from icarus_tui.agents import AgentsScreen
from icarus_tui.dialogs import AskLine, Confirm
from icarus_tui.keymap import Bound, bound, keymap
from icarus_tui.loading import LoadingScreen
from icarus_tui.logs import LogsScreen
from icarus_tui.sessions import SessionsScreen
from icarus_tui.welcome import WelcomeScreen
from tests.tui.alone import driven

SCREENS = (AgentsScreen, AskLine, Confirm, LoadingScreen, LogsScreen, SessionsScreen, WelcomeScreen)


class Place(Screen[None]):
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "do('stop')", "Stop", id="stop"),
        Binding("escape,q", "do('leave')", "Leave", id="leave"),
        Binding("c", "do('copy')", "Copy", id="copy"),
        Binding("f1", "do('help')", "Help"),
    ]

    def action_do(self, what: str) -> None:
        self.app.done.append(what)  # type: ignore[attr-defined]

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        return parameters != ("leave",) or self.app.leaving  # type: ignore[attr-defined]


class Program(App[None]):
    BINDINGS: ClassVar[list[BindingType]] = [Binding("ctrl+q", "quit", "Quit", id="quit")]

    def __init__(self) -> None:
        super().__init__()
        self.done: list[str] = []
        self.leaving = False


KNOWN = bound({"screen": Place, "app": Program})


def test_what_is_bound_is_known_by_its_id() -> None:
    assert set(KNOWN) == {
        Bound("screen", "stop", ("escape",)),
        Bound("screen", "leave", ("escape", "q")),
        Bound("screen", "copy", ("c",)),
        Bound("app", "quit", ("ctrl+q",)),
    }


def test_every_key_of_the_screens_has_an_id_that_a_toml_file_can_hold() -> None:
    for screen in SCREENS:
        for binding in screen.BINDINGS:
            assert isinstance(binding, Binding)
            assert binding.id
            assert binding.id.replace("-", "").isalnum()
    known = bound({screen.__name__: screen for screen in SCREENS})
    assert len({each.id for each in known}) == len(known)


@pytest.mark.parametrize(
    ("chosen", "result"),
    [
        ({"copy": "y"}, {"copy": "y"}),
        ({"copy": "?, / ,Y"}, {"copy": "question_mark,slash,Y"}),
        ({"copy": "Shift+Ctrl+F12"}, {"copy": "ctrl+shift+f12"}),
        ({"copy": "ctrl+X,alt+up"}, {"copy": "ctrl+x,alt+up"}),
        ({"copy": "ctrl+slash"}, {"copy": "ctrl+slash"}),
        ({"copy": "ctrl+q"}, {"copy": "ctrl+q"}),  # another place's
        ({"copy": "escape", "stop": "s", "leave": "l"}, {"copy": "escape", "stop": "s", "leave": "l"}),
        ({"stop": "f5"}, {"stop": "f5", "leave": "escape,q"}),
        ({"stop": "escape,f5"}, {"stop": "escape,f5", "leave": "escape,q"}),
        ({}, {}),
    ],
)
def test_keys_are_taken_by_the_names_that_they_come_with(chosen: dict[str, str], result: dict[str, str]) -> None:
    assert keymap(chosen, KNOWN) == result


@pytest.mark.parametrize(
    ("chosen", "said"),
    [
        (
            {"cpoy": "y"},
            r"settings\.toml: keys\.cpoy: there is nothing of that name\. There are copy, leave,",
        ),
        ({"copy": "escpae"}, r"keys\.copy: 'escpae' is no key\. Keys are single characters, f1 to f24, backspace, "),
        ({"copy": "strg+x"}, r"'strg\+x' is no key\. Before the \+ may stand alt, ctrl"),
        ({"copy": "shift+a"}, r"'shift\+a' never comes from a terminal\. Write A"),
        ({"copy": ""}, "'' is no key"),
        ({"copy": "a,,b"}, "'' is no key"),
        ({"copy": "\x1b"}, "is no key"),
        ({"copy": "q"}, r"keys\.copy: q is leave's already\. Give leave another key too"),
        ({"copy": "q", "stop": "q"}, "q is"),
        ({"copy": "x", "leave": "x"}, "x is"),
    ],
)
def test_what_is_impossible_is_refused(chosen: dict[str, str], said: str) -> None:
    with pytest.raises(RequestError, match=said):
        keymap(chosen, KNOWN)


@given(st.dictionaries(st.sampled_from(["copy", "stop", "leave", "quit"]), st.text(max_size=8)))
def test_whatever_is_written_is_taken_or_refused(chosen: dict[str, str]) -> None:
    try:
        result = keymap(chosen, KNOWN)
    except RequestError:
        return
    assert set(chosen) <= set(result)


@driven
async def test_a_key_that_two_share_stays_the_others() -> None:
    app = Program()
    app.set_keymap(keymap({"stop": "f5", "copy": "?"}, KNOWN))
    async with app.run_test() as pilot:
        await app.push_screen(Place())
        await pilot.press("escape", "c")
        assert app.done == []
        app.leaving = True
        await pilot.press("escape", "f5", "question_mark", "f1", "q")
        assert app.done == ["leave", "stop", "copy", "help", "leave"]
