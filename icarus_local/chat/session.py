"""One conversation among several agents over one KV cache: the loop from a request to its events."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import closing

from icarus_local.chat.branches import Branches, shared_length, tokens_together
from icarus_local.chat.cached import Cached
from icarus_local.chat.conversation import DEFAULT_SYSTEM, FILE, Conversation
from icarus_local.chat.events import (
    AgentsChanged,
    AnswerDone,
    AnswersJoined,
    AnswerStarted,
    CacheUsed,
    ConversationBegun,
    ConversationResumed,
    Event,
    FileAdded,
    FileWeighed,
    QuestionTakenBack,
    RoundsEnded,
    Said,
    Transcribed,
)
from icarus_local.chat.files import TextFile
from icarus_local.chat.generation import Generation
from icarus_local.chat.observer import Observer
from icarus_local.chat.reply import Opened
from icarus_local.chat.requests import (
    AddAgent,
    AddFile,
    Ask,
    BeginAnew,
    Join,
    ReloadAgent,
    RemoveAgent,
    Request,
    Resume,
    TakeBack,
    Transcribe,
    Weigh,
)
from icarus_local.chat.room import make_room
from icarus_local.chat.roster import ReadyAgent, Roster
from icarus_local.chat.speculation import NextLogits
from icarus_local.chat.transcripts import Form, saved_turn, transcript
from icarus_local.engine.engine import Engine
from icarus_local.errors import CancelledError, ContextFullError, IcarusError, RequestError
from icarus_local.text.template import ChatTemplate
from icarus_local.text.tokenizer import Tokenizer


class Session:
    """A conversation, its agents and its sequence in the cache. To be used from the engine's thread.

    Attributes:
        observer: told of every change, or None. roster: who takes part.
    """

    def __init__(
        self,
        engine: Engine,
        tokenizer: Tokenizer,
        template: ChatTemplate,
        roster: Roster,
        system: str = DEFAULT_SYSTEM,
        *,
        speculate: bool | None = None,
    ) -> None:
        """Begins an empty conversation; `speculate` None drafts where that changes no bit of any answer."""
        self.observer: Observer | None = None
        self.engine, self.roster = engine, roster
        self._tokenizer, self._speculate = tokenizer, speculate
        self.conversation = Conversation(template, system)
        self.cached = Cached(engine, self.conversation)
        self._branches: Branches | None = None
        self._told_agents, self._told_cache = roster.states, self._used()

    @property
    def names(self) -> tuple[str, ...]:
        """The agents' names, in the order in which they speak."""
        return self.roster.names

    @property
    def sequence(self) -> int:
        """The conversation's in the cache; answers given at once replace it."""
        return self.cached.sequence

    def opened(self, before: Sequence[Said] = (), notices: Sequence[str] = (), conversation: str = "") -> Opened:
        """The record of this conversation, which is about to be held; see `Opened`."""
        self._told_agents, self._told_cache = agents, cache = self.roster.states, self._used()
        return Opened(agents, self.engine.n_ctx, tuple(before), tuple(notices), conversation, cache)

    def run(self, request: Request) -> Iterator[Event]:
        """Serves a request. What the conversation takes of the cache, and whose adapters are in memory, is told behind
        each answer and at the end, where it is no longer what was told last.

        Raises:
            IcarusError: it cannot be served; conversation and cache are as they were, or hold what was answered.
        """
        # Those that leave the answers given at once open to choose among.
        if not isinstance(request, Join | Transcribe):
            self._settle()
        try:
            with closing(self._serve(request)) as events:
                for event in events:
                    yield event
                    if isinstance(event, AgentsChanged):
                        self._told_agents = event.agents
                    if isinstance(event, AnswerDone):
                        yield from self._news()
        except IcarusError:
            yield from self._news()
            raise
        yield from self._news()

    def _serve(self, request: Request) -> Generator[Event]:
        match request:
            case Ask():
                yield from self._ask(request)
            case Weigh():
                yield self._weigh(request.file)
            case AddFile():
                yield self._add_file(request.file)
            case Join():
                yield self._join(request.agent)
            case BeginAnew():
                yield self._begin_anew()
            case TakeBack():
                yield self._take_back()
            case Resume():
                yield self._resume(request.conversation)
            case AddAgent() | RemoveAgent() | ReloadAgent():
                changed = self.roster.change(request)
                self._changed()
                yield changed
            case Transcribe():
                yield self._transcribe(request.form)

    def _news(self) -> Iterator[Event]:
        agents, cache = self.roster.states, self._used()
        if agents != self._told_agents:
            self._told_agents = agents
            yield AgentsChanged(agents)
        if cache != self._told_cache:
            self._told_cache = cache
            yield cache

    def _used(self) -> CacheUsed:
        if self._branches is not None and self._answered(self._branches):
            return self._branches.used()
        return self.cached.used(len(self.roster.agents))

    def ask(self, text: str, names: Sequence[str] = (), rounds: int = 1, *, at_once: bool = False) -> Iterator[Event]:
        """`run` of a question."""
        return self.run(Ask(text, tuple(names), rounds, at_once))

    # -- questions -----------------------------------------------------------------------------------------------------

    def _ask(self, request: Ask) -> Iterator[Event]:
        """When nobody said anything (cancelled before, or only an end of turn came) the question is taken back; else
        what was answered stays. The cache and the history agree afterwards.
        """
        request.check(self.names)
        ready = {ready.name: ready for ready in self.roster.agents}
        speakers, before = [ready[name] for name in request.names or self.names], self.conversation.turns
        self.conversation.ask(request.text)
        self._changed()
        try:
            # Where the caller stops listening, what was answered is kept before it is asked whether there was any.
            answers = self._at_once(speakers, request) if request.at_once else self._in_turn(speakers, request)
            with closing(answers):
                yield from answers
        finally:
            # Also where a fault ends the turn.
            if not any(turn.role == "assistant" for turn in self.conversation.turns[len(before) :]):
                self.conversation.turns = before
                self.cached.shorten()
                self._changed()

    def _in_turn(self, speakers: Sequence[ReadyAgent], request: Ask) -> Generator[Event]:
        for number in range(1, request.rounds + 1):
            for speaker in speakers:
                for event in self._answer(speaker, request.attempt):
                    yield event
                    if not isinstance(event, AnswerDone):
                        continue
                    if event.finish_reason == "cancelled":
                        return
                    if request.rounds > 1 and event.finish_reason == "stop" and speaker.agent.ends_rounds(event.text):
                        yield RoundsEnded(speaker.name, number, request.rounds)
                        return

    def _answer(self, speaker: ReadyAgent, attempt: int) -> Iterator[Event]:
        before = self.conversation.turns
        self.conversation.hand_over(speaker.agent)
        generation: Generation | None = None
        try:
            cut = self.cached.make_room([speaker.agent.max_tokens], lambda: len(self.conversation.prompt()))
            prompt = self.conversation.prompt()
            if cut:
                yield cut
            generation = self._generation(speaker, prompt, self.cached.reuse(prompt), attempt)
            yield AnswerStarted(speaker.name)
            source = NextLogits(self.engine, self.sequence, speaker.adapter_id, prompt, self._speculate)
            yield from self._generate(generation, source)
        finally:
            if generation is not None and generation.tokens:
                self.conversation.answer(speaker.name, generation.tokens, generation.thought)
            else:
                self.conversation.turns = before
                self.cached.shorten()
            self._changed()
        used = self._used()
        yield generation.done(used.n_bytes, used.n_bytes_separate, source.drafted, source.accepted)

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

    def _generation(self, speaker: ReadyAgent, prompt: list[int], reused: int, attempt: int) -> Generation:
        return Generation(
            speaker,
            self._tokenizer,
            prompt,
            reused,
            n_vocab=self.engine.base.hp.n_vocab,
            thinking=self.conversation.template.opens_thought,
            attempt=attempt,
        )

    # -- answers at once -----------------------------------------------------------------------------------------------

    def _at_once(self, speakers: Sequence[ReadyAgent], request: Ask) -> Generator[Event]:
        """All answer in one batch, then all join the history; `Join` afterwards leaves only one of them there."""
        limits = [speaker.agent.max_tokens for speaker in speakers]
        if cut := self.cached.make_room(limits, lambda: tokens_together(self._prompts(speakers))):
            yield cut
        prompts = self._prompts(speakers)
        shared = shared_length(prompts)
        reused = [self.cached.reuse(prompts[0][:shared]), *[shared] * (len(speakers) - 1)]
        generations = [self._generation(*of, request.attempt) for of in zip(speakers, prompts, reused, strict=True)]
        self._branches = branches = Branches(self.engine, self.sequence, generations, shared, self.conversation.turns)
        for speaker in speakers:
            yield AnswerStarted(speaker.name)
        try:
            for event in branches.run():
                if not isinstance(event, Generation):
                    yield event
                    continue
                self._join_all(branches)
                used = branches.used()
                yield event.done(used.n_bytes, used.n_bytes_separate)
        finally:
            for generation in generations:
                generation.close()
            self._join_all(branches)
            answered = self._answered(branches)
            if answered:
                self.engine.cells.drop(self.sequence)
                self.cached.sequence = answered[0][1]

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

    def _join(self, name: str) -> Event:
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
            self.cached.sequence, before = chosen[1], self.sequence
            branches.sequences.remove(before)
            self.engine.cells.drop(before)
        self._settle()
        self._changed()
        return AnswersJoined((name,))

    def _settle(self) -> None:
        """Lets go of the branches that were not chosen."""
        if self._branches is not None:
            self._branches.close(keep=self.sequence)
            self._branches = None

    # -- files -------------------------------------------------------------------------------------------------------

    def _weigh(self, file: TextFile) -> Event:
        n_free = max(self.engine.n_ctx - len(self.conversation.next_prompt()), 0)
        return FileWeighed(file.name, file.n_bytes, len(self._tokenizer.encode(file.message)), n_free)

    def _add_file(self, file: TextFile) -> Event:
        before = self.conversation.turns
        if any(turn.speaker == FILE and turn.content == file.message and turn.in_context for turn in before):
            return FileAdded(file.name, already=True)
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
        return FileAdded(file.name)

    # -- the conversation as a whole -----------------------------------------------------------------------------------

    def _begin_anew(self) -> Event:
        notice = self.observer.left() if self.observer is not None else ""
        self.conversation.begin_anew()
        # What the new conversation begins with stays in the cache.
        self.cached.shorten()
        self._changed()
        return ConversationBegun("" if self.observer is None else self.observer.id, notice)

    def _take_back(self) -> Event:
        text, answers = self.conversation.take_back()
        self.cached.shorten()
        self._changed()
        return QuestionTakenBack(text, answers)

    def _resume(self, conversation: str) -> Event:
        if self.observer is None:
            raise RequestError(
                "this chat saves nothing, so that there is no way back to this conversation", "Chat without --no-save"
            )
        said, notices = self.observer.resume(conversation)
        return ConversationResumed(self.observer.id, said, notices)

    def _transcribe(self, form: Form) -> Event:
        turns = [saved_turn(turn, self._tokenizer) for turn in self.conversation.turns]
        id_, title = ("", "") if self.observer is None else (self.observer.id, self.observer.title())
        base = self.engine.base.path
        return Transcribed(transcript(form, turns, id_=id_, title=title, agents=self.names, base=base))

    def _changed(self) -> None:
        if self.observer is not None:
            self.observer.changed()
