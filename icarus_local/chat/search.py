"""Where a text holds another, upper and lower case being the same in any script, and what to show of the place."""

from __future__ import annotations

import itertools

from icarus_local.chat.files import one_line

_BEFORE, _AFTER = 30, 60  # characters of an excerpt around what was looked for


def find_folded(text: str, what: str) -> tuple[int, int] | None:
    """Beginning and end of the first place of `text` that case-folds to `what`, which is folded, or None."""
    folded = text.casefold()
    start = folded.find(what)
    if start < 0 or not what:
        return None
    end = start + len(what)
    if len(folded) == len(text):
        return start, end
    # Some characters fold to several, as ß to ss: whole ones are given.
    ends = list(itertools.accumulate(len(character.casefold()) for character in text))
    first = next(i for i, n in enumerate(ends) if n > start)
    return first, next(i for i, n in enumerate(ends) if n >= end) + 1


def excerpt(text: str, start: int, end: int) -> str:
    """The place in a line of its own, with some of what stands around it."""
    first, last = max(start - _BEFORE, 0), end + _AFTER
    line = one_line(" ".join(text[first:last].split()))
    return f"{'…' if first else ''}{line}{'…' if last < len(text) else ''}"
