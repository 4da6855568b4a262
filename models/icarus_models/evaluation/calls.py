"""The task tools: the right call, name and arguments in any order, or a refusal where no function fits."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from icarus_models.data.calls import NO_CALL, Call, requests
from icarus_models.data.shape import user
from icarus_models.evaluation.items import Item, Scores, Task, with_score
from icarus_models.specialists import specialist

_MAX_CHARACTERS = 1200  # of a question with its functions; longer ones no specialist was trained for
_IGNORED = re.compile(r"[ ,./\-_*^]")  # as BFCL's own checker compares strings
_OPTIONAL = ""
_AROUND = " \n\"'`*"


def tools_task(n: int, seed: int, wheel: Path | None) -> Task:
    """Questions on functions that training has not seen: half of them have a right call, half are to be declined."""
    short = [one for one in requests(wheel, aside=True) if len(one.asked) <= _MAX_CHARACTERS]
    rng = random.Random(f"evaluation {seed}")
    chosen = []
    for decline, count in ((False, n - n // 2), (True, n // 2)):
        some = [one for one in short if (one.call is None) is decline]
        rng.shuffle(some)
        chosen += some[:count]
    items = tuple(Item(one.id, (user(one.asked),), one.call) for one in chosen)
    return Task("tools", specialist("tools"), items, _score)


def _score(item: Item, answer: str) -> Scores:
    call = first_call(answer)
    # The instruction has it in quotes.
    declined = answer.strip(_AROUND).casefold().startswith(NO_CALL.rstrip(".").casefold())
    if item.truth is None:
        right = declined and call is None
        return with_score(right, refusal=right)
    right = not declined and call is not None and is_right(call, item.truth)
    return with_score(right, call=right)


def first_call(text: str) -> Mapping[str, Any] | None:
    """The first JSON object in a text that has a name and arguments; None where there is none."""
    decoder = json.JSONDecoder()
    for start in (match.start() for match in re.finditer(r"\{", text)):
        try:
            found, _ = decoder.raw_decode(text, start)
        except (ValueError, RecursionError):
            continue
        if isinstance(found, dict) and isinstance(found.get("name"), str) and isinstance(found.get("arguments"), dict):
            return found
    return None


def is_right(call: Mapping[str, Any], truth: Call) -> bool:
    """Whether name and arguments are right: none that does not belong, and none missing but those that may."""
    return call["name"] == truth.name and _fits_object(call["arguments"], truth.arguments)


def _fits_object(given: Mapping[str, Any], truth: Mapping[str, Any]) -> bool:
    if set(given) - set(truth):
        return False
    for name, values in truth.items():
        accepted = values if isinstance(values, list) else [values]
        if name not in given:
            if _OPTIONAL not in accepted:
                return False
        elif not any(_fits(given[name], value) for value in accepted):
            return False
    return True


def _fits(given: Any, right: Any) -> bool:
    if isinstance(given, dict) and isinstance(right, dict):
        return _fits_object(given, right)
    if isinstance(given, list) and isinstance(right, list):
        return _fits_list(given, right)
    if isinstance(given, str) and isinstance(right, str):
        return _plain(given) == _plain(right)
    # In Python True is 1, in a call it is not.
    return isinstance(given, bool) is isinstance(right, bool) and bool(given == right)


def _fits_list(given: Sequence[Any], right: Sequence[Any]) -> bool:
    return len(given) == len(right) and all(map(_fits, given, right))


def _plain(text: str) -> str:
    return _IGNORED.sub("", text).lower().replace("'", '"')
