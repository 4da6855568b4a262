"""A conversation as text: what is shown where it goes on, and what an export holds."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from icarus_local.chat.conversation import HAND_OVER, USER, Turn
from icarus_local.chat.events import Said
from icarus_local.chat.files import one_line
from icarus_local.chat.store import SavedSession, SavedTurn, title_from
from icarus_local.errors import RequestError
from icarus_local.text.tokenizer import Tokenizer

Form = Literal["md", "jsonl"]
"""Of an export: Markdown, or a JSON object a line for each turn."""


def saved_turn(turn: Turn, tokenizer: Tokenizer) -> SavedTurn:
    """A contribution as it is saved."""
    if isinstance(turn.content, str):
        # As the tokenizer takes what is no text.
        text = turn.content.encode("utf-8", "replace").decode()
        return SavedTurn(turn.speaker, text, None, turn.in_context)
    text = tokenizer.decode(turn.content)
    return SavedTurn(turn.speaker, text, tuple(turn.content), turn.in_context, turn.thought)


def history(turns: Sequence[SavedTurn]) -> list[Said]:
    """What was said before, as it is shown when a conversation goes on: without what is particular to the program."""
    return [said for turn in turns if (said := turn.said) is not None]


def as_markdown(saved: SavedSession, turns: Sequence[SavedTurn]) -> str:
    """A conversation as Markdown, without the instructions that hand agents the word."""
    return _markdown(saved.title, f"Conversation {saved.id}", saved.agents, saved.base, turns)


def as_jsonl(turns: Sequence[SavedTurn]) -> str:
    """A JSON object a line for each turn, those of the program too."""
    return "\n".join(_json(turn) for turn in turns)


def exported(form: Form, saved: SavedSession, turns: Sequence[SavedTurn]) -> str:
    """A saved conversation in a form."""
    return as_markdown(saved, turns) if form == "md" else as_jsonl(turns)


def transcript(
    form: Form, turns: Sequence[SavedTurn], *, id_: str, title: str, agents: Sequence[str], base: Path
) -> str:
    """The text of a conversation that is being held; `id_` is "" where it is not saved, `title` where it has none."""
    if form == "jsonl":
        return as_jsonl(turns)
    question = next((turn.text for turn in turns if turn.speaker == USER and turn.tokens is None), None)
    name = f"Conversation {id_}" if id_ else "A conversation"
    return _markdown(title or title_from(question), name, agents, str(base.resolve()), turns)


def form_of(path: Path) -> Form:
    """The form that a file's name asks for; RequestError where it asks for neither."""
    match path.suffix.lower():
        case ".md":
            return "md"
        case ".jsonl":
            return "jsonl"
    raise RequestError(f"{one_line(str(path))} names no form of a transcript", "Give a name that ends in .md or .jsonl")


def _markdown(title: str, name: str, agents: Sequence[str], base: str, turns: Sequence[SavedTurn]) -> str:
    parts = [f"# {title}", f"{name} with {', '.join(agents)} on {base}."]
    for turn in turns:
        # An agent may have that name.
        if turn.speaker != HAND_OVER or turn.tokens is not None:
            parts += [f"## {turn.speaker}{'' if turn.in_context else ' (no longer in the context)'}", turn.text]
    return "\n\n".join(parts)


def _json(turn: SavedTurn) -> str:
    facts = {"speaker": turn.speaker, "content": turn.text, "in_context": turn.in_context}
    return json.dumps(facts, ensure_ascii=False)
