"""Puts a chat together: base, tokenizer, template, agents, and a saved conversation where one goes on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from icarus_local.chat.agents import BASE_NAME, Agent
from icarus_local.chat.events import Said
from icarus_local.chat.keeper import Keeper
from icarus_local.chat.reply import Opened
from icarus_local.chat.roster import Roster
from icarus_local.chat.session import Session
from icarus_local.chat.store import Store
from icarus_local.chat.transcripts import history
from icarus_local.chat.wire import Restart
from icarus_local.cli.agents import choose_agent, locate_adapter
from icarus_local.cli.engine_options import EngineOptions
from icarus_local.engine.base import Report
from icarus_local.engine.content import content_id
from icarus_local.engine.engine import Engine
from icarus_local.errors import AdapterError, IcarusError
from icarus_local.paths import state_dir
from icarus_local.text.sandbox import MAX_SIZE
from icarus_local.text.template import ChatTemplate, own_template
from icarus_local.text.tokenizer import Tokenizer

DEFAULT_AGENTS = "coder,reviewer"


@dataclass(frozen=True, slots=True)
class SessionOptions:
    """What a conversation is opened with; it crosses to the engine's process.

    Attributes:
        agents: as `--agents` takes them. None is `DEFAULT_AGENTS`, as far as they fit the base, else the base itself.
    """

    engine: EngineOptions
    agents: str | None
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
    roster: Roster
    notices: list[str]


def load(
    options: EngineOptions,
    agents: Sequence[str],
    stack: ExitStack,
    choose: Callable[[str], Agent] = choose_agent,
    *,
    chat_template: Path | None = None,
    instruction_only: bool = False,
    as_far_as_they_fit: bool = False,
    report: Report | None = None,
) -> Loaded:
    """Loads base, template and agents, as they are given and `choose` finds them; `stack` closes them.

    With `as_far_as_they_fit` an agent without an adapter for the base is left out and told of; where all are, the base
    speaks.
    """
    for given in agents:
        # A base takes seconds to load, a wrong name none to see.
        choose(given)
    engine = stack.enter_context(options.open(report))
    tokenizer = Tokenizer(engine.base.path)
    stack.callback(tokenizer.close)
    template, notice = load_template(chat_template, tokenizer)
    roster = Roster(
        engine, choose, locate_adapter, tokenizer.sha256, template.sha256, instruction_only=instruction_only
    )
    notices = [*engine.notices, *([notice] if notice else [])]
    roster.reserve(agents)
    for given in agents:
        if report is not None:
            report(f"agent {given.partition('=')[0]}", None)
        try:
            notices += roster.add(given).notices
        except AdapterError as error:
            if not as_far_as_they_fit:
                raise
            notices.append(f"{given} takes no part: {error.what.removeprefix(f'agent {given}: ')}")
    if not roster.agents:
        roster.add(BASE_NAME)
        notices.append("the base itself answers; --agents, or /agents add, names others that fit it")
    return Loaded(engine, tokenizer, template, roster, notices)


def open_session(
    options: SessionOptions, stack: ExitStack, restart: Restart | None, report: Report
) -> tuple[Session, Opened]:
    """Opens a conversation, or the one that an engine died of; `stack` closes it."""
    loaded = load(
        options.engine,
        _split(options.agents or DEFAULT_AGENTS) if restart is None else restart.agents,
        stack,
        partial(choose_agent, max_tokens=options.max_tokens, agents_file=options.agents_file),
        chat_template=options.chat_template,
        instruction_only=options.instruction_only,
        as_far_as_they_fit=options.agents is None,
        report=report,
    )
    notices = loaded.notices
    if options.drafts and not loaded.engine.verifies_exactly:
        notices.append("with drafts, steps of several tokens round otherwise here: answers may differ by that")
    session = Session(loaded.engine, loaded.tokenizer, loaded.template, loaded.roster, speculate=options.drafts)
    before: list[Said] = []
    conversation = ""
    if options.save:
        resume = options.resume if restart is None else restart.conversation or None
        if resume is not None:
            # What its state is compared with: a large file takes seconds to read, once.
            content_id(loaded.engine.base.path, report)
            report("restoring the conversation", None)
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
    return session, session.opened(before, notices, conversation)


def _split(agents: str) -> list[str]:
    return [given.strip() for given in agents.split(",")]


def sessions_folder() -> Path:
    """Where conversations are saved."""
    return state_dir() / "sessions"
