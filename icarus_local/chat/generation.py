"""One answer as it is generated: its tokens, its text, what ends it and what it cost."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from icarus_local.chat.events import AnswerDone, FinishReason, TextDelta
from icarus_local.chat.requests import AGAIN_TEMPERATURE
from icarus_local.chat.roster import ReadyAgent
from icarus_local.chat.thoughts import Piece, ThoughtSplitter
from icarus_local.engine.engine import Logits
from icarus_local.text.detokenizer import Detokenizer
from icarus_local.text.sampler import Sampler, Sampling
from icarus_local.text.template import THINK, THOUGHT
from icarus_local.text.tokenizer import Tokenizer

_SEEDS = 2**32 - 1  # that `Sampling` takes


class Generation:
    """An agent's answer to a prompt.

    Attributes:
        speaker, prompt: who answers what. reused, encoded: tokens of the prompt, as the caller counts them.
        tokens: said so far, the end of turn not among them. thought: how many of them are the thought before the
        answer, 0 where none has ended. finish: why it ended, None while it goes on.
    """

    def __init__(
        self,
        speaker: ReadyAgent,
        tokenizer: Tokenizer,
        prompt: list[int],
        reused: int,
        *,
        n_vocab: int,
        thinking: bool,
        attempt: int = 0,
    ) -> None:
        """Begins; `n_vocab` is the logits' size, `thinking` whether the prompt ends within a thought. To be closed.

        `attempt` is that of the question (`Ask`).
        """
        self.speaker, self.prompt = speaker, prompt
        self.reused, self.encoded = reused, len(prompt) - reused
        self.tokens: list[int] = []
        self.thought = 0
        self.finish: FinishReason | None = None
        self._tokenizer = tokenizer
        piece = _piece_of(tokenizer)
        self._detokenizer = Detokenizer(piece, speaker.agent.stop)
        self._splitter = ThoughtSplitter(thinking)
        # Ids are counted by what they spell: a stop string holds back what is shown, or cuts it off.
        self._spelled, self._spelled_splitter = Detokenizer(piece), ThoughtSplitter(thinking)
        self._sampler = Sampler(_again(speaker.agent.sampling, attempt), n_vocab, prompt)
        self._said: list[Piece] = []
        self._start = self._first = self._end = time.perf_counter()

    @property
    def text(self) -> str:
        """The answer so far, without its thought."""
        return "".join(text for text, thought in self._said if not thought)

    def take(self, logits: Logits) -> list[TextDelta]:
        """Draws the next token from logits [n_vocab]; gives the text that has become certain."""
        token = self._sampler.sample(logits)
        self._end = time.perf_counter()
        if not self.tokens:
            self._first = self._end
        if self._tokenizer.is_end_of_generation(token):
            self.finish = "stop"
            return []
        self.tokens.append(token)
        self._count_thought(token)
        deltas = self._deltas(self._splitter.add(self._detokenizer.add(token)))
        if self._detokenizer.stopped is not None:
            self.finish = "stop"
        elif len(self.tokens) >= self.speaker.agent.max_tokens:
            self.finish = "length"
        return deltas

    def _count_thought(self, token: int) -> None:
        splitter = self._spelled_splitter
        if splitter.state == "saying":
            return
        splitter.add(self._spelled.add(token))
        # A token that spells the mark's end and more, or begins a character, is of the answer.
        if splitter.state == "closed" and not self._spelled.holds:
            self.thought = len(self.tokens)

    def end(self, finish: FinishReason) -> list[TextDelta]:
        """Ends it, for `finish` where nothing else has; gives the rest of the text."""
        self.finish = self.finish or finish
        if not self.tokens:
            self._first = self._end = time.perf_counter()
        return self._deltas([*self._splitter.add(self._detokenizer.finish()), *self._splitter.finish()])

    def _deltas(self, pieces: Sequence[Piece]) -> list[TextDelta]:
        self._said += pieces
        return [TextDelta(self.speaker.name, text, thought) for text, thought in pieces]

    def done(self, kv_bytes: int, kv_bytes_separate: int, drafted: int = 0, accepted: int = 0) -> AnswerDone:
        """The record of an answer that has ended."""
        assert self.finish is not None
        seconds, n = self._end - self._first, len(self.tokens)
        return AnswerDone(
            agent=self.speaker.name,
            text=self.text,
            finish_reason=self.finish,
            reused=self.reused,
            encoded=self.encoded,
            generated=n,
            ttft_s=self._first - self._start,
            tok_s=(n - 1) / seconds if n > 1 and seconds > 0 else 0.0,
            kv_bytes=kv_bytes,
            kv_bytes_separate=kv_bytes_separate,
            drafted=drafted,
            accepted=accepted,
            notice=self.speaker.change_on_disk(),
            thought="".join(text for text, thought in self._said if thought),
        )

    def close(self) -> None:
        """Frees the sampler; may be called twice."""
        self._sampler.close()


def _again(sampling: Sampling, attempt: int) -> Sampling:
    """How an answer is drawn where the same was asked before; what drew the same each time does so for each attempt."""
    if not attempt:
        return sampling
    if sampling.temperature == 0:
        return sampling.model_copy(update={"temperature": AGAIN_TEMPERATURE, "seed": attempt % _SEEDS})
    if sampling.seed is None:
        return sampling
    return sampling.model_copy(update={"seed": (sampling.seed + attempt) % _SEEDS})


def _piece_of(tokenizer: Tokenizer) -> Callable[[int], bytes]:
    """Token id -> bytes. Control tokens give none, but those around a thought must be seen."""
    marks = {tokenizer.controls[mark]: mark.encode() for mark in (THINK, THOUGHT) if mark in tokenizer.controls}
    return lambda token: marks.get(token) or tokenizer.piece(token)
