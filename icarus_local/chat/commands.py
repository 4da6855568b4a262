"""What the commands of a chat do that is the same on every screen."""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from icarus_local.chat.code import CodeBlock, code_blocks
from icarus_local.chat.events import (
    AnswersJoined,
    ContextCut,
    ConversationBegun,
    Event,
    FileAdded,
    FileWeighed,
    RoundsEnded,
)
from icarus_local.chat.figures import mib
from icarus_local.chat.files import TextFile, expand, read_text_file, split_paths
from icarus_local.errors import RequestError

_SAVE = re.compile(r"((?P<n>\d{1,4})(\s+|$))?(?P<file>.*)", re.DOTALL)


def files_named(rest: str) -> list[TextFile]:
    """The files of an `/add` line.

    Raises:
        RequestError: none is named, or one cannot be read as text.
    """
    paths = expand(split_paths(rest))
    if not paths:
        raise RequestError("/add wants the path of a file", "For example: /add src/*.py")
    return [read_text_file(path) for path in paths]


def block_to_save(answers: Iterable[str], rest: str) -> tuple[CodeBlock, Path]:
    """The code block and the file that a `/save-code` line means.

    Args:
        answers: what was answered, oldest first; the latest that holds code counts.
        rest: `[N] [FILE]`; without N the only block, without FILE a name that fits the language.

    Raises:
        RequestError: there is no code, or no such block, with those that there are.
    """
    match = _SAVE.fullmatch(rest)
    assert match is not None
    blocks = next((found for answer in reversed(list(answers)) if (found := code_blocks(answer))), [])
    if not blocks:
        raise RequestError("no answer holds a code block")
    number = int(match["n"] or (1 if len(blocks) == 1 else 0))
    if not 1 <= number <= len(blocks):
        listed = "; ".join(f"{i}: {_described(block)}" for i, block in enumerate(blocks, 1))
        held = _counted(len(blocks), "code block")
        raise RequestError(f"the answer holds {held}: {listed}", "Say which: /save-code N FILE")
    block = blocks[number - 1]
    given = split_paths(match["file"])
    if len(given) > 1:
        raise RequestError("/save-code writes one file", "Put a name with spaces in quotes")
    path = Path(given[0] if given else block.suggested_name)
    # Nobody's home folder, or a user's name that no system takes: what is wrong with it is said when it is written.
    with suppress(RuntimeError, ValueError):
        path = path.expanduser()
    return block, path


def _described(block: CodeBlock) -> str:
    lines = _counted(block.text.removesuffix("\n").count("\n") + bool(block.text), "line")
    return f"{lines}{f' of {block.language}' if block.language else ''}"


def _counted(n: int, what: str) -> str:
    return f"{n} {what}{'' if n == 1 else 's'}"


def question_before_saving(block: CodeBlock, path: Path, replaces: bool) -> str:
    """What to ask before a block is written, and where a file is there already."""
    return f"Write {_described(block)} to {path}?{' It exists and would be replaced.' if replaces else ''}"


def told(event: Event) -> str:
    """What a person is told of an event that is not part of an answer; "" for those that are."""
    text = ""
    match event:
        case ContextCut():
            files = f", {', '.join(event.files)} among them" if event.files else ""
            text = (
                f"the context was full: the {event.turns} oldest contributions ({event.tokens} tokens{files}) left it; "
                f"they stay in the transcript. {event.encoded_again} tokens behind them are encoded again"
            )
        case RoundsEnded():
            text = f"{event.agent} accepts in round {event.round} of {event.rounds}"
        case FileWeighed():
            size = f"{event.n_bytes / 1024:.1f} KiB" if event.n_bytes < 1 << 20 else mib(event.n_bytes)
            text = f"{event.name}: {size}, {event.tokens} tokens; {event.n_free} are free"
        case FileAdded():
            text = f"{event.name} is part of the conversation"
        case AnswersJoined():
            text = f"the conversation goes on with the answer of {', '.join(event.agents)}"
        case ConversationBegun():
            text = f"a new conversation{f'. {event.notice}' if event.notice else ''}"
    return text
