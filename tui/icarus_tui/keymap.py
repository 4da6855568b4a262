"""Key bindings of a person's own: what the settings say of keys, checked against what the screens bind."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from textual.binding import BindingsMap, Keymap
from textual.dom import DOMNode
from textual.keys import KEY_NAME_REPLACEMENTS, Keys

from icarus_local.errors import RequestError
from icarus_local.settings import settings_file

# In the order in which Textual names them.
_MODIFIERS = ("alt", "ctrl", "hyper", "meta", "shift", "super")
_NAMED = {key.value for key in Keys if "+" not in key.value and "<" not in key.value} - {"return", "ctrl-at"}


@dataclass(frozen=True, slots=True)
class Bound:
    """What keys do something somewhere.

    Attributes:
        place: where; actions of one place share its keys. id: as the settings name it. keys: that it has by itself.
    """

    place: str
    id: str
    keys: tuple[str, ...]


def bound(places: Mapping[str, type[DOMNode]]) -> list[Bound]:
    """All that is bound in these places and has an id; bindings of one id are one."""
    result = []
    for place, kind in places.items():
        keys: dict[str, list[str]] = {}
        for key, binding in BindingsMap(kind.BINDINGS):
            if binding.id:
                keys.setdefault(binding.id, []).append(key)
        result += [Bound(place, id_, tuple(dict.fromkeys(of_id))) for id_, of_id in keys.items()]
    return result


def keymap(chosen: Mapping[str, str], known: Iterable[Bound]) -> Keymap:
    """What `App.set_keymap` takes for the settings' keys.

    Args:
        chosen: by id, keys separated by commas.
        known: what there is.

    Raises:
        RequestError: an id or a key that does not exist, with those that do; one key for two actions of a place.
    """
    by_id: dict[str, list[Bound]] = {}
    for each in known:
        by_id.setdefault(each.id, []).append(each)
    result: dict[str, str] = {}
    for id_, keys in chosen.items():
        if id_ not in by_id:
            raise _error(id_, "there is nothing of that name", f"There are {', '.join(sorted(by_id))}")
        result[id_] = ",".join(_key(id_, key.strip()) for key in keys.split(","))
    _refuse_shared(result, by_id)
    return {**_kept(result, by_id), **result}


def _refuse_shared(chosen: Keymap, by_id: Mapping[str, list[Bound]]) -> None:
    """Where two actions have a key by themselves, only one of them can be done at a time: that stays possible."""
    everything = [each for of_id in by_id.values() for each in of_id]
    for id_, keys in chosen.items():
        for key in keys.split(","):
            for mine in by_id[id_]:
                for other in everything:
                    theirs = chosen[other.id].split(",") if other.id in chosen else other.keys
                    by_default = key in mine.keys and key in other.keys
                    if other.place == mine.place and other.id != id_ and key in theirs and not by_default:
                        raise _error(id_, f"{key} is {other.id}'s already", f"Give {other.id} another key too")


def _kept(chosen: Keymap, by_id: Mapping[str, list[Bound]]) -> Keymap:
    """The keys of what shares one with an action that gets others: Textual takes a key from all that have it."""
    kept: dict[str, str] = {}
    for id_ in chosen:
        for mine in by_id[id_]:
            for other in (each for of_id in by_id.values() for each in of_id):
                if other.place == mine.place and other.id not in chosen and set(other.keys) & set(mine.keys):
                    kept[other.id] = ",".join(other.keys)
    return kept


def _key(id_: str, name: str) -> str:
    """A key by the name that Textual gives it."""
    *modifiers, key = name.split("+") if len(name) > 1 else [name]
    modifiers = sorted(modifier.lower() for modifier in modifiers)
    if not set(modifiers) <= set(_MODIFIERS):
        raise _error(id_, f"{name!r} is no key", f"Before the + may stand {', '.join(_MODIFIERS)}")
    if len(key) == 1 and key.isprintable() and key != " ":
        if modifiers == ["shift"] and key.isalpha():
            raise _error(id_, f"{name!r} never comes from a terminal", f"Write {key.upper()}")
        named = key.lower() if "ctrl" in modifiers else key
        return "+".join([*modifiers, _punctuation().get(named, named)])
    if key.lower() not in _NAMED and key not in _punctuation().values():
        others = ", ".join(sorted(each for each in _NAMED if not each[1:].isdigit()))
        raise _error(id_, f"{name!r} is no key", f"Keys are single characters, f1 to f24, {others}")
    return "+".join([*modifiers, key.lower()])


def _punctuation() -> dict[str, str]:
    """Textual's names of ASCII's punctuation."""
    names = {chr(code): unicodedata.name(chr(code)) for code in range(0x21, 0x7F) if not chr(code).isalnum()}
    plain = {character: name.lower().replace("-", "_").replace(" ", "_") for character, name in names.items()}
    return {character: KEY_NAME_REPLACEMENTS.get(name, name) for character, name in plain.items()}


def _error(id_: str, what: str, hint: str) -> RequestError:
    return RequestError(f"{settings_file()}: keys.{id_}: {what}", hint)
