"""What goes when the context fills: whole oldest exchanges, many at once, because all behind a cut is encoded again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from icarus_local.chat.conversation import FILE, Conversation, Turn
from icarus_local.chat.files import FILE_MESSAGE
from icarus_local.errors import ContextFullError

_ANSWER_SHARE = 4  # an answer must have room for its most tokens, or for one in so many of the context
_KEPT_SHARE = 2  # a cut goes on until the prompt takes at most one in so many


@dataclass(frozen=True, slots=True)
class Removed:
    """What was left out: `turns` contributions that took `tokens`, and the names of the files among them."""

    turns: int
    tokens: int
    files: tuple[str, ...]


def room_for(max_tokens: int, n_ctx: int) -> int:
    """Tokens that must be free before answers of `max_tokens` begin."""
    return min(max_tokens, n_ctx // _ANSWER_SHARE)


def make_room(conversation: Conversation, measure: Callable[[], int], n_ctx: int, room: int) -> Removed | None:
    """Leaves turns out until what `measure` counts of the conversation, and `room` more tokens, fit the context.

    Whole oldest exchanges go first, until half of the context is free; where all of them do not suffice, the oldest
    answers to the newest question go, as few as possible. System prompt, files and question of the newest stay.

    Args:
        conversation: changed only where it fits afterwards.
        measure: counts the tokens of its prompt as it stands.
        n_ctx, room: tokens of the context, and of the answer: at least one.

    Returns:
        What was left out, or None.

    Raises:
        ContextFullError: not even the question alone fits, with the number of tokens that it is too long.
    """
    before, length = conversation.turns, measure()
    if length + room <= n_ctx:
        return None
    try:
        kept, least = _largest(conversation, measure, n_ctx, room)
    finally:
        conversation.turns = before
    if least >= n_ctx:
        too_many = least + 1 - n_ctx
        raise ContextFullError(
            f"the question is {too_many} token{'s' if too_many > 1 else ''} too long: with system prompt and hand-over "
            f"it takes {least}, and the context holds {n_ctx}, one of them for an answer",
            "Shorten it, begin a new conversation with fewer files, or give a larger --n-ctx",
        )
    out = [old for old, new in zip(before, kept, strict=True) if old != new]
    if not out:
        return None
    conversation.turns = kept
    files = (FILE_MESSAGE.match(str(turn.content)) for turn in out if turn.speaker == FILE)
    return Removed(len(out), length - least, tuple(file[1] for file in files if file))


def _largest(
    conversation: Conversation, measure: Callable[[], int], n_ctx: int, room: int
) -> tuple[tuple[Turn, ...], int]:
    """The turns that stay, and the tokens that they take; at least those without which there is no question."""
    exchanges = conversation.whole_exchanges()
    kept, length = _fewest(conversation, measure, exchanges, min(n_ctx // _KEPT_SHARE, n_ctx - room))
    if length + room <= n_ctx:
        return kept, length
    conversation.turns = kept
    return _fewest(conversation, measure, conversation.answers_of_the_newest(), n_ctx - room)


def _fewest(
    conversation: Conversation, measure: Callable[[], int], groups: Sequence[Sequence[int]], limit: int
) -> tuple[tuple[Turn, ...], int]:
    """The turns with as few of the first `groups` left out as makes them take at most `limit` tokens, or with all."""
    turns = conversation.turns

    def without(n: int) -> int:
        conversation.turns = turns
        conversation.leave_out(i for group in groups[:n] for i in group)
        return measure()

    low, high = 0, len(groups)
    while low < high:
        middle = (low + high) // 2
        if without(middle) <= limit:
            high = middle
        else:
            low = middle + 1
    length = without(low)
    return conversation.turns, length
