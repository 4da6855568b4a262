"""The seam below every screen and server: requests go in, events come out, wherever the engine runs."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Protocol

from icarus_local.chat.events import (
    AgentsChanged,
    AgentState,
    CacheUsed,
    ConversationBegun,
    ConversationResumed,
    Event,
    Said,
)
from icarus_local.chat.requests import Request

_POLL_S = 0.2  # a wait without a limit cannot be interrupted on Windows

Outcome = Event | BaseException | None
"""An event, the error that ended a request, or None at its end (after an error too)."""


@dataclass(frozen=True, slots=True)
class Opened:
    """A conversation that is ready.

    Attributes:
        roster: who takes part, in the order in which they speak. n_ctx: tokens that the cache holds.
        before: what was said where it goes on. notices: what the person should be told.
        conversation: its id, "" where it is not saved. cache: what it takes. engine: how many engines died before
            this one.
    """

    roster: tuple[AgentState, ...]
    n_ctx: int
    before: tuple[Said, ...] = ()
    notices: tuple[str, ...] = ()
    conversation: str = ""
    cache: CacheUsed = field(default_factory=CacheUsed)
    engine: int = 0

    @property
    def agents(self) -> tuple[str, ...]:
        """Their names."""
        return tuple(agent.name for agent in self.roster)

    def after(self, outcome: Outcome) -> Opened:
        """As it is once that has come: who takes part and which conversation is open may be others then."""
        match outcome:
            case AgentsChanged():
                return replace(self, roster=outcome.agents)
            case ConversationBegun() | ConversationResumed():
                return replace(self, conversation=outcome.conversation)
        return self


class Reply:
    """What comes of a request: iterate over it for its events; an error is raised there."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self.cancelled = False
        self._stop: Callable[[], None] | None = None
        self._finished = threading.Event()
        self._outcomes: queue.SimpleQueue[Outcome] = queue.SimpleQueue()

    def stops_by(self, stop: Callable[[], None]) -> None:
        """Says how it is stopped, once that is known."""
        self._stop = stop

    def cancel(self) -> None:
        """Stops the answer in progress, in the middle of a prompt too; the agents after it do not speak."""
        self.cancelled = True
        if self._stop is not None:
            self._stop()

    def put(self, outcome: Outcome) -> None:
        """Takes what has come."""
        self._outcomes.put(outcome)
        if outcome is None:
            self._finished.set()

    def __iter__(self) -> Iterator[Event]:
        while True:
            try:
                outcome = self._outcomes.get(timeout=_POLL_S)
            except queue.Empty:
                # The end may have been taken out by a reader that was interrupted just then.
                if self._finished.is_set() and self._outcomes.empty():
                    return
                continue
            if outcome is None:
                return
            if isinstance(outcome, BaseException):
                raise outcome
            yield outcome


class Chat(Protocol):
    """Who serves requests, one after another."""

    @property
    def opened(self) -> Opened:
        """The conversation, as it was when it was opened; `roster` is as of the last `AgentsChanged`."""

    def submit(self, request: Request) -> Reply:
        """Queues a request.

        Raises:
            RequestError: it cannot be served here, whatever is said before.
        """

    def close(self) -> None:
        """Cancels what is under way and queued, and returns when all is saved; may be called twice.

        Raises:
            IcarusError: something could not be saved.
        """
