"""What the commands of a chat do that is the same on every screen."""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from icarus_local.chat.code import CodeBlock, code_blocks
from icarus_local.chat.events import (
    AgentsChanged,
    AgentState,
    AnswersJoined,
    ContextCut,
    ConversationBegun,
    ConversationResumed,
    Event,
    FileAdded,
    FileWeighed,
    QuestionTakenBack,
    RoundsEnded,
)
from icarus_local.chat.figures import counted, mib
from icarus_local.chat.files import TextFile, expand, read_text_file, split_paths
from icarus_local.chat.requests import AddAgent, ReloadAgent, RemoveAgent, check_name
from icarus_local.chat.transcripts import Form, form_of
from icarus_local.errors import RequestError

_ROSTER: dict[str, type[AddAgent | RemoveAgent | ReloadAgent]] = {
    "add": AddAgent,
    "remove": RemoveAgent,
    "reload": ReloadAgent,
}
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
        held = counted(len(blocks), "code block")
        raise RequestError(f"the answer holds {held}: {listed}", "Say which: /save-code N FILE")
    block = blocks[number - 1]
    return block, _file_named("save-code", match["file"], block.suggested_name)


def file_to_export(rest: str, conversation: str) -> tuple[Path, Form]:
    """The file that an `/export` line means, without one a name of the conversation's, and the form that it asks for.

    Raises:
        RequestError: more than one file, or one whose name asks for no form.
    """
    path = _file_named("export", rest, f"conversation-{conversation or 'unsaved'}.md")
    return path, form_of(path)


def _file_named(command: str, rest: str, otherwise: str) -> Path:
    given = split_paths(rest)
    if len(given) > 1:
        raise RequestError(f"/{command} writes one file", "Put a name with spaces in quotes")
    path = Path(given[0] if given else otherwise)
    # Nobody's home folder, or a user's name that no system takes: what is wrong with it is said when it is written.
    with suppress(RuntimeError, ValueError):
        path = path.expanduser()
    return path


def agents_named(rest: str, agents: tuple[str, ...]) -> tuple[str, ...]:
    """Whom an `/agent` line means, () for all.

    Raises:
        RequestError: it names nobody, or somebody who is not there.
    """
    names = tuple(dict.fromkeys(name.removeprefix("@") for name in rest.replace(",", " ").split()))
    if not names:
        raise RequestError("/agent wants the names of agents, or all", f"For example: /agent {agents[0]}")
    if names == ("all",):
        return ()
    for name in names:
        check_name(name, agents)
    return names


def roster_request(rest: str) -> AddAgent | RemoveAgent | ReloadAgent:
    """What an `/agents` line asks for; RequestError where that is nothing."""
    verb, _, agent = (text.strip() for text in rest.partition(" "))
    if verb not in _ROSTER or not agent:
        raise RequestError("/agents wants add, remove or reload, and an agent", "For example: /agents add base")
    return _ROSTER[verb](agent if verb == "add" else agent.removeprefix("@"))


def roster_lines(agents: Iterable[AgentState]) -> list[str]:
    """A line for each agent who takes part."""
    lines = []
    for agent in agents:
        where = "in memory" if agent.resident else "read when it is asked"
        lines.append(f"@{agent.name}: {f'{mib(agent.n_bytes)}, {where}' if agent.adapter else 'no adapter'}")
    return lines


def _described(block: CodeBlock) -> str:
    lines = counted(block.text.removesuffix("\n").count("\n") + bool(block.text), "line")
    return f"{lines}{f' of {block.language}' if block.language else ''}"


def question_before_saving(block: CodeBlock, path: Path, replaces: bool) -> str:
    """What to ask before a block is written, and where a file is there already."""
    return f"Write {_described(block)} to {path}?{' It exists and would be replaced.' if replaces else ''}"


def told(event: Event) -> str:
    """What a person is told of an event; "" for those of an answer, and where nobody needs to be told."""
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
            text = f"{event.name} is part of the conversation{' already' if event.already else ''}"
        case AnswersJoined():
            text = f"the conversation goes on with the answer of {', '.join(event.agents)}"
        case ConversationBegun():
            text = f"a new conversation{f'. {event.notice}' if event.notice else ''}"
        case ConversationResumed():
            text = "; ".join(event.notices) or f"conversation {event.conversation} goes on"
        case QuestionTakenBack():
            answers = f" and {counted(event.answers, 'answer')} to it" if event.answers else ""
            text = f"the newest question{answers} left the conversation"
        case AgentsChanged():
            text = "; ".join(filter(None, (event.told, *event.notices)))
    return text
