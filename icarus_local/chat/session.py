"""One conversation among several agents over one KV cache: the loop from a request to its events."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from typing import Protocol

import numpy as np

from icarus_local.chat.branches import Branches, shared_length
from icarus_local.chat.conversation import DEFAULT_SYSTEM, Conversation
from icarus_local.chat.events import (
    AnswerDone,
    AnswersJoined,
    AnswerStarted,
    ContextCut,
    ConversationBegun,
    Event,
    FileAdded,
    FileWeighed,
    RoundsEnded,
)
from icarus_local.chat.files import TextFile
from icarus_local.chat.generation import Generation
from icarus_local.chat.requests import AddFile, Ask, BeginAnew, Join, Request, Weigh
from icarus_local.chat.room import make_room, room_for
from icarus_local.chat.roster import ReadyAgent
from icarus_local.chat.speculation import NextLogits
from icarus_local.engine.engine import Engine
from icarus_local.errors import CancelledError, ContextFullError, RequestError
from icarus_local.text.template import ChatTemplate
from icarus_local.text.tokenizer import Tokenizer


class Observer(Protocol):
    """Who follows a session, in the engine's thread; `id` is the conversation's."""

    id: str

    def changed(self) -> None:
        """The conversation has changed."""

    def idle(self) -> None:
        """Nothing was asked for some seconds."""

    def left(self) -> str:
        """The conversation is about to be left for a new one; gives what to tell the person, or ""."""


class Session:
    """A conversation, its agents and its sequence in the cache. To be used from the engine's thread.

    Attributes:
        observer: told of every change, or None. sequence: of the conversation; answers given at once replace it.
    """

    def __init__(
        self,
        engine: Engine,
        tokenizer: Tokenizer,
        template: ChatTemplate,
        agents: Sequence[ReadyAgent],
        system: str = DEFAULT_SYSTEM,
        *,
        speculate: bool | None = None,
    ) -> None:
        """Begins an empty conversation; `speculate` None drafts where that changes no bit of any answer."""
        self._speculate = speculate
        self.observer: Observer | None = None
        self.engine, self.agents = engine, tuple(agents)
        self._tokenizer = tokenizer
        self.conversation = Conversation(template, system)
        self.sequence = engine.cells.create()
        self._branches: Branches | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """The agents' names, in the order in which they speak."""
        return tuple(ready.name for ready in self.agents)

    def run(self, request: Request) -> Iterator[Event]:
        """Serves a request.

        Raises:
            IcarusError: it cannot be served; conversation and cache are as they were, or hold what was answered.
        """
        if not isinstance(request, Join):
            self._settle()
        match request:
            case Ask():
                return self._ask(request)
            case Weigh():
                return self._weigh(request.file)
            case AddFile():
                return self._add_file(request.file)
            case Join():
                return self._join(request.agent)
            case BeginAnew():
                return self._begin_anew()

    def ask(self, text: str, names: Sequence[str] = (), rounds: int = 1, *, at_once: bool = False) -> Iterator[Event]:
        """`run` of a question."""
        return self.run(Ask(text, tuple(names), rounds, at_once))

    # -- questions -----------------------------------------------------------------------------------------------------

    def _ask(self, request: Ask) -> Iterator[Event]:
        """When nobody said anything (cancelled before, or only an end of turn came) the question is taken back; else
        what was answered stays. The cache and the history agree afterwards.
        """
        request.check(self.names)
        speakers = [ready for name in request.names or self.names for ready in self.agents if ready.name == name]
        before = self.conversation.turns
        self.conversation.ask(request.text)
        self._changed()
        try:
            # Where the caller stops listening, what was answered is kept before it is asked whether there was any.
            answers = self._at_once(speakers) if request.at_once else self._in_turn(speakers, request.rounds)
            with closing(answers):
                yield from answers
        finally:
            # Also where a fault ends the turn.
            if not any(turn.role == "assistant" for turn in self.conversation.turns[len(before) :]):
                self.conversation.turns = before
                self._changed()

    def _in_turn(self, speakers: Sequence[ReadyAgent], rounds: int) -> Generator[Event]:
        for number in range(1, rounds + 1):
            for speaker in speakers:
                for event in self._answer(speaker):
                    yield event
                    if not isinstance(event, AnswerDone):
                        continue
                    if event.finish_reason == "cancelled":
                        return
                    if rounds > 1 and event.finish_reason == "stop" and speaker.agent.ends_rounds(event.text):
                        yield RoundsEnded(speaker.name, number, rounds)
                        return

    def _answer(self, speaker: ReadyAgent) -> Iterator[Event]:
        before = self.conversation.turns
        self.conversation.hand_over(speaker.agent)
        generation: Generation | None = None
        try:
            cut = self._make_room([speaker.agent.max_tokens], lambda: len(self.conversation.prompt()))
            prompt = self.conversation.prompt()
            if cut:
                yield cut
            generation = self._generation(speaker, prompt, self._reuse(prompt))
            yield AnswerStarted(speaker.name)
            source = NextLogits(self.engine, self.sequence, speaker.adapter_id, prompt, self._speculate)
            yield from self._generate(generation, source)
        finally:
            if generation is not None and generation.tokens:
                self.conversation.answer(speaker.name, generation.tokens, generation.thought)
            else:
                self.conversation.turns = before
            self._changed()
        kv_bytes = self.engine.cells.length(self.sequence) * self.engine.kv_bytes_per_token
        yield generation.done(kv_bytes, kv_bytes * len(self.agents), source.drafted, source.accepted)

    def _generate(self, generation: Generation, source: NextLogits) -> Iterator[Event]:
        step = [(self.sequence, generation.speaker.adapter_id)]
        try:
            self.engine.forward(encode=[(self.sequence, generation.prompt[generation.reused :])])
            # The first token comes from the agent's own row, whatever logits the last speaker left.
            logits = self.engine.forward(decode=step).decoder[0]
            while True:
                yield from generation.take(logits)
                if generation.finish or not source.n_free:
                    break
                logits = source.after(generation.tokens[-1])
        except CancelledError:
            generation.finish = "cancelled"
            if not generation.tokens:
                # Stopped in the prompt: only whole steps of it are in the cache.
                generation.encoded = self.engine.cells.length(self.sequence) - generation.reused
        finally:
            source.settle()
            generation.close()
        yield from generation.end("length")

    def _generation(self, speaker: ReadyAgent, prompt: list[int], reused: int) -> Generation:
        return Generation(
            speaker,
            self._tokenizer,
            prompt,
            reused,
            n_vocab=self.engine.base.hp.n_vocab,
            thinking=self.conversation.template.opens_thought,
        )

    def _make_room(self, max_tokens: Sequence[int], measure: Callable[[], int]) -> ContextCut | None:
        """Leaves old turns out where the context is full, and counts what that costs."""
        before = self.conversation.turns
        n_ctx = self.engine.n_ctx
        removed = make_room(self.conversation, measure, n_ctx, room_for(sum(max_tokens), n_ctx))
        if removed is None:
            return None
        after, self.conversation.turns = self.conversation.turns, before
        spared = self._common(self.conversation.prompt())
        self.conversation.turns = after
        # Of what was in the cache before, this much stands behind the cut and is still in the conversation.
        again = spared - self._common(self.conversation.prompt()) - removed.tokens
        return ContextCut(removed.turns, removed.tokens, removed.files, max(again, 0))

    # -- answers at once -----------------------------------------------------------------------------------------------

    def _at_once(self, speakers: Sequence[ReadyAgent]) -> Generator[Event]:
        """All answer in one batch, then all join the history; `Join` afterwards leaves only one of them there."""
        limits = [speaker.agent.max_tokens for speaker in speakers]
        if cut := self._make_room(limits, lambda: _tokens_together(self._prompts(speakers))):
            yield cut
        prompts = self._prompts(speakers)
        shared = shared_length(prompts)
        reused = [self._reuse(prompts[0][:shared]), *[shared] * (len(speakers) - 1)]
        generations = [self._generation(*of) for of in zip(speakers, prompts, reused, strict=True)]
        self._branches = branches = Branches(self.engine, self.sequence, generations, shared, self.conversation.turns)
        for speaker in speakers:
            yield AnswerStarted(speaker.name)
        try:
            for event in branches.run():
                if not isinstance(event, Generation):
                    yield event
                    continue
                self._join_all(branches)
                per_token = self.engine.kv_bytes_per_token
                one, separate = branches.kv_tokens()
                yield event.done(one * per_token, separate * per_token)
        finally:
            for generation in generations:
                generation.close()
            self._join_all(branches)
            answered = self._answered(branches)
            if answered:
                self.engine.cells.drop(self.sequence)
                self.sequence = answered[0][1]

    def _prompts(self, speakers: Sequence[ReadyAgent]) -> list[list[int]]:
        """What each agent would read if it alone were asked."""
        question, prompts = self.conversation.turns, []
        for speaker in speakers:
            self.conversation.hand_over(speaker.agent)
            prompts.append(self.conversation.prompt())
            self.conversation.turns = question
        return prompts

    @staticmethod
    def _answered(branches: Branches) -> list[tuple[Generation, int]]:
        # Before the fork there are no sequences, and no answers.
        pairs = zip(branches.generations, branches.sequences, strict=False)
        return [(generation, sequence) for generation, sequence in pairs if generation.tokens]

    def _join_all(self, branches: Branches) -> None:
        self.conversation.turns = branches.question
        for generation, _ in self._answered(branches):
            self.conversation.hand_over(generation.speaker.agent)
            self.conversation.answer(generation.speaker.name, generation.tokens, generation.thought)
        self._changed()

    def _join(self, name: str) -> Iterator[Event]:
        branches = self._branches
        answered = self._answered(branches) if branches else []
        chosen = next((pair for pair in answered if pair[0].speaker.name == name), None)
        if branches is None or chosen is None:
            names = ", ".join(generation.speaker.name for generation, _ in answered)
            raise RequestError(
                f"{name} has given no answer to choose",
                f"There are answers of {names}"
                if names
                else "Answers can be chosen right after they were given at once",
            )
        conversation = self.conversation
        conversation.turns = branches.question
        for pair in [*[pair for pair in answered if pair is not chosen], chosen]:
            start = len(conversation.turns)
            conversation.hand_over(pair[0].speaker.agent)
            conversation.answer(pair[0].speaker.name, pair[0].tokens, pair[0].thought)
            if pair is not chosen:
                conversation.leave_out(range(start, len(conversation.turns)))
        if self.sequence != chosen[1]:
            # Its own cells join with it: nothing of its answer is encoded again.
            self.sequence, before = chosen[1], self.sequence
            branches.sequences.remove(before)
            self.engine.cells.drop(before)
        self._settle()
        self._changed()
        yield AnswersJoined((name,))

    def _settle(self) -> None:
        """Lets go of the branches that were not chosen."""
        if self._branches is not None:
            self._branches.close(keep=self.sequence)
            self._branches = None

    # -- files, and a new conversation ---------------------------------------------------------------------------------

    def _weigh(self, file: TextFile) -> Iterator[Event]:
        tokens = len(self._tokenizer.encode(file.message))
        n_free = max(self.engine.n_ctx - len(self.conversation.prompt()), 0)
        yield FileWeighed(file.name, file.n_bytes, tokens, n_free)

    def _add_file(self, file: TextFile) -> Iterator[Event]:
        before = self.conversation.turns
        self.conversation.add_file(file.message)
        added = self.conversation.turns[-1]
        try:
            # Whether a question behind it would have room; nothing leaves the context before there is one.
            make_room(self.conversation, lambda: len(self.conversation.prompt()), self.engine.n_ctx, 1)
        except ContextFullError as error:
            raise ContextFullError(
                f"{file.name} is too large for the context of {self.engine.n_ctx} tokens, beside what no question can "
                "do without",
                "Add a part of it, begin a new conversation, or give a larger --n-ctx",
            ) from error
        finally:
            self.conversation.turns = before
        self.conversation.turns = (*before, added)
        self._changed()
        yield FileAdded(file.name)

    def _begin_anew(self) -> Iterator[Event]:
        notice = self.observer.left() if self.observer is not None else ""
        self.conversation.begin_anew()
        # What the new conversation begins with stays in the cache.
        self._changed()
        yield ConversationBegun("" if self.observer is None else self.observer.id, notice)

    # -- the cache -----------------------------------------------------------------------------------------------------

    def _changed(self) -> None:
        if self.observer is not None:
            self.observer.changed()

    def _common(self, prompt: Sequence[int]) -> int:
        """Tokens at the beginning of `prompt` that are in the cache."""
        cached = self.engine.cells.tokens(self.sequence)
        n = min(len(cached), len(prompt))
        differing = np.flatnonzero(cached[:n] != np.array(prompt[:n], np.int32))
        return int(differing[0]) if len(differing) else n

    def _reuse(self, prompt: Sequence[int]) -> int:
        """Cuts the cache to what it has in common with `prompt`, and gives that length."""
        common = self._common(prompt)
        self.engine.cells.truncate(self.sequence, common)
        return common


def _tokens_together(prompts: Sequence[Sequence[int]]) -> int:
    """Cells that all prompts take where they share their beginning."""
    shared = shared_length(prompts)
    return shared + sum(len(prompt) - shared for prompt in prompts)
