"""Puts a chat together: base, tokenizer, template, agents, and a saved conversation where one goes on."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from icarus_local.chat.agents import Agent
from icarus_local.chat.conversation import FILE, HAND_OVER, SYSTEM
from icarus_local.chat.keeper import Keeper
from icarus_local.chat.reply import Opened, Said
from icarus_local.chat.roster import ReadyAgent, make_ready
from icarus_local.chat.session import Session
from icarus_local.chat.store import SavedTurn, Store
from icarus_local.chat.wire import Restart
from icarus_local.cli.agents import choose_agents, locate_adapter
from icarus_local.cli.engine_options import EngineOptions
from icarus_local.engine.engine import Engine
from icarus_local.errors import IcarusError
from icarus_local.paths import state_dir
from icarus_local.text.sandbox import MAX_SIZE
from icarus_local.text.template import ChatTemplate, own_template
from icarus_local.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class SessionOptions:
    """What a conversation is opened with; it crosses to the engine's process."""

    engine: EngineOptions
    agents: str
    max_tokens: int | None = None
    chat_template: Path | None = None
    instruction_only: bool = False
    drafts: bool | None = None
    agents_file: Path | None = None
    resume: str | None = None
    save: bool = True
    state_kv_type: str | None = None


def load_template(file: Path | None, tokenizer: Tokenizer) -> tuple[ChatTemplate, str | None]:
    """The chat template to use, and a notice where neither the user nor the base gives one."""
    if file is not None:
        try:
            with file.open("rb") as handle:
                # No more than shows that it is too large: what is named may be a device.
                source = handle.read(4 * MAX_SIZE + 1).decode("utf-8")
            return ChatTemplate(source, tokenizer, str(file)), None
        except (OSError, UnicodeDecodeError) as error:
            raise IcarusError(f"the chat template {file} cannot be read: {error}") from error
    template = own_template(tokenizer.template_source, tokenizer)
    if tokenizer.template_source is not None:
        return template, None
    return template, f"this base has no chat template; {template.name} is used (give --chat-template FILE for another)"


@dataclass(frozen=True, slots=True)
class Loaded:
    """A base, what makes text of its ids, agents that are ready on it, and what the person should be told."""

    engine: Engine
    tokenizer: Tokenizer
    template: ChatTemplate
    agents: list[ReadyAgent]
    notices: list[str]


def load(
    options: EngineOptions,
    agents: Sequence[Agent],
    stack: ExitStack,
    chat_template: Path | None = None,
    instruction_only: bool = False,
) -> Loaded:
    """Loads base, template and agents; `stack` closes them."""
    engine = stack.enter_context(options.open())
    tokenizer = Tokenizer(engine.base.path)
    stack.callback(tokenizer.close)
    template, notice = load_template(chat_template, tokenizer)
    ready = make_ready(
        agents, engine, locate_adapter, tokenizer.sha256, template.sha256, instruction_only=instruction_only
    )
    notices = [*engine.notices, *([notice] if notice else [])]
    for agent in ready:
        notices += agent.notices
    return Loaded(engine, tokenizer, template, ready, notices)


def open_session(options: SessionOptions, stack: ExitStack, restart: Restart | None = None) -> tuple[Session, Opened]:
    """Opens a conversation, or the one that an engine died of; `stack` closes it."""
    agents = choose_agents(options.agents, options.max_tokens, options.agents_file)
    loaded = load(options.engine, agents, stack, options.chat_template, options.instruction_only)
    notices = loaded.notices
    if options.drafts and not loaded.engine.verifies_exactly:
        notices.append("with drafts, steps of several tokens round otherwise here: answers may differ by that")
    session = Session(loaded.engine, loaded.tokenizer, loaded.template, loaded.agents, speculate=options.drafts)
    before: list[Said] = []
    conversation = ""
    if options.save:
        resume = options.resume if restart is None else restart.conversation or None
        keeper = Keeper(
            Store(sessions_folder()),
            session,
            loaded.tokenizer,
            resume,
            state_kv_type=options.state_kv_type,
            take_back=restart is not None,
        )
        stack.enter_context(keeper)
        before, conversation = history(keeper.turns), keeper.id
        notices = [*notices, *keeper.notices]
    return session, Opened(session.names, loaded.engine.n_ctx, tuple(before), tuple(notices), conversation)


def sessions_folder() -> Path:
    """Where conversations are saved."""
    return state_dir() / "sessions"


def history(turns: Sequence[SavedTurn]) -> list[Said]:
    """What was said before, as it is shown when a conversation goes on: without what is particular to the program."""
    shown = []
    for turn in turns:
        text = turn.text
        if turn.tokens is None and turn.speaker in (SYSTEM, HAND_OVER):
            continue
        if turn.tokens is None and turn.speaker == FILE:
            text = text.partition("\n")[0]
        answer = turn.tokens is not None
        shown.append(Said(turn.speaker if answer else "you", text, answer, turn.in_context))
    return shown
