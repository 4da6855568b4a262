"""One conversation among several agents over one KV cache: the loop from question to answers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from icarus_local.chat.conversation import DEFAULT_SYSTEM, Conversation
from icarus_local.chat.events import AnswerDone, AnswerStarted, Event, FinishReason, TextDelta
from icarus_local.chat.roster import ReadyAgent
from icarus_local.chat.speculation import NextLogits
from icarus_local.engine.engine import Engine
from icarus_local.errors import CancelledError, RequestError
from icarus_local.text.detokenizer import Detokenizer
from icarus_local.text.sampler import Sampler
from icarus_local.text.template import ChatTemplate
from icarus_local.text.tokenizer import Tokenizer


class Session:
    """A conversation, its agents and its sequence in the cache. To be used from the engine's thread."""

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
        """Begins an empty conversation; `speculate` None drafts where that changes no bit of any answer.

        `on_change`, an attribute, is called after every change of the conversation.
        """
        self._speculate = speculate
        self.on_change: Callable[[], None] | None = None
        self.engine, self.agents = engine, tuple(agents)
        self._tokenizer = tokenizer
        self.conversation = Conversation(template, system)
        self.sequence = engine.cells.create()

    def agent(self, name: str) -> ReadyAgent:
        """An agent by name.

        Raises:
            RequestError: nobody here has that name.
        """
        for ready in self.agents:
            if ready.name == name:
                return ready
        names = ", ".join(f"@{ready.name}" for ready in self.agents)
        raise RequestError(f"there is no agent @{name} here", f"Here are {names}")

    def ask(self, text: str, names: Sequence[str] = ()) -> Iterator[Event]:
        """Asks agents in turn, each reading the answers before; all of them where no names are given.

        When nobody said anything (cancelled before, or only an end of turn came) the question is taken back; else what
        was answered stays. The cache and the history agree afterwards.

        Raises:
            RequestError: an unknown name. ContextFullError: the conversation does not fit; the question is taken back.
        """
        speakers = [self.agent(name) for name in names] or list(self.agents)
        before = self.conversation.turns
        self.conversation.ask(text)
        self._changed()
        answered = False
        try:
            for speaker in speakers:
                finish: FinishReason = "stop"
                for event in self._answer(speaker):
                    if isinstance(event, AnswerDone):
                        finish = event.finish_reason
                        answered = answered or event.generated > 0
                    yield event
                if finish == "cancelled":
                    break
        finally:
            # Also when the caller stops listening, or a fault ends the turn.
            if not answered:
                self.conversation.turns = before
                self._changed()

    def _changed(self) -> None:
        if self.on_change is not None:
            self.on_change()

    def _answer(self, speaker: ReadyAgent) -> Iterator[Event]:
        before = self.conversation.turns
        self.conversation.hand_over(speaker.agent)
        tokens: list[int] = []
        try:
            yield from self._generate(speaker, self.conversation.prompt(), tokens)
        finally:
            if tokens:
                self.conversation.answer(speaker.name, tokens)
            else:
                self.conversation.turns = before
            self._changed()

    def _generate(self, speaker: ReadyAgent, prompt: list[int], tokens: list[int]) -> Iterator[Event]:
        agent, start = speaker.agent, time.perf_counter()
        yield AnswerStarted(agent.name)
        reused = self._reuse(prompt)
        encoded = len(prompt) - reused
        detokenizer = Detokenizer(self._tokenizer.piece, agent.stop)
        sampler = Sampler(agent.sampling, self.engine.base.hp.n_vocab, prompt)
        source = NextLogits(self.engine, self.sequence, speaker.adapter_id, prompt, self._speculate)
        text: list[str] = []
        finish: FinishReason = "length"
        first = start
        try:
            self.engine.forward(encode=[(self.sequence, prompt[reused:])])
            # The first token comes from the agent's own row, whatever logits the last speaker left.
            logits = self.engine.forward(decode=[(self.sequence, speaker.adapter_id)]).decoder[0]
            while True:
                token = sampler.sample(logits)
                if not tokens:
                    first = time.perf_counter()
                if self._tokenizer.is_end_of_generation(token):
                    finish = "stop"
                    break
                tokens.append(token)
                if delta := detokenizer.add(token):
                    text.append(delta)
                    yield TextDelta(agent.name, delta)
                if detokenizer.stopped is not None:
                    finish = "stop"
                    break
                if len(tokens) >= agent.max_tokens or not source.n_free:
                    break
                logits = source.after(token)
        except CancelledError:
            finish = "cancelled"
            if not tokens:
                # Stopped in the prompt: only whole steps of it are in the cache.
                encoded, first = self.engine.cells.length(self.sequence) - reused, time.perf_counter()
        finally:
            source.settle()
            sampler.close()
        if delta := detokenizer.finish():
            text.append(delta)
            yield TextDelta(agent.name, delta)
        seconds = time.perf_counter() - first
        kv_bytes = self.engine.cells.length(self.sequence) * self.engine.kv_bytes_per_token
        yield AnswerDone(
            agent=agent.name,
            text="".join(text),
            finish_reason=finish,
            reused=reused,
            encoded=encoded,
            generated=len(tokens),
            ttft_s=first - start,
            tok_s=(len(tokens) - 1) / seconds if len(tokens) > 1 else 0.0,
            drafted=source.drafted,
            accepted=source.accepted,
            notice=speaker.change_on_disk(),
            kv_bytes=kv_bytes,
            kv_bytes_separate=kv_bytes * len(self.agents),
        )

    def _reuse(self, prompt: list[int]) -> int:
        """Cuts the cache to what it has in common with `prompt`, and gives that length."""
        cached = self.engine.cells.tokens(self.sequence)
        n = min(len(cached), len(prompt))
        differing = np.flatnonzero(cached[:n] != np.array(prompt[:n], np.int32))
        common = int(differing[0]) if len(differing) else n
        self.engine.cells.truncate(self.sequence, common)
        return common
