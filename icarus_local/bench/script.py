"""What is said in a measurement: the turns of a round, and the ids that every system is made to encode and say."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from icarus_local.bench.records import Case
from icarus_local.bench.workflow import Workflow
from icarus_local.errors import RequestError

_SEED = 20260301


@dataclass(frozen=True, slots=True)
class Request:
    """An answer that a system is asked for.

    Attributes:
        agent: who answers, from 0. prompt: the whole conversation that it answers to, as ids.
        answer: the ids that count as sampled, whatever the logits say.
    """

    agent: int
    prompt: list[int]
    answer: list[int]


@dataclass(frozen=True, slots=True)
class Share:
    """What one agent's turn adds to the conversation, in tokens."""

    agent: int
    n_prompt: int
    n_answer: int


class Script:
    """A workflow with its numbers filled in, and the conversation as far as it has gone.

    A lead round brings every agent in; then one more round is said again and again from the same place (`rewind`), with
    other ids, so that all warm turns see a context of about one length. The longest prompt and its answer are the
    case's context: what two rounds leave of it is the shared context, `n_shared` tokens before anybody has spoken.

    Attributes:
        steps: the turns of a round; those of one step are answered at once.
        n_warm_rounds: rounds to say after the lead.
        tokens: the conversation so far.
    """

    def __init__(self, workflow: Workflow, case: Case, n_vocab: int, seed: int = 0) -> None:
        """Lays it out.

        Raises:
            RequestError: the file says who speaks and there are others; the context does not hold two rounds.
        """
        if workflow.names_speakers and case.agents != workflow.agents:
            raise RequestError(f"{workflow.name} says who speaks: it has {workflow.agents} agents, not {case.agents}")
        self.workflow = workflow
        shares = _shares(workflow, case.agents, case.answer_tokens)
        self.steps = [shares] if workflow.at_once else [[share] for share in shares]
        self.n_round = workflow.question + sum(share.n_prompt + share.n_answer for share in shares)
        self.n_shared = case.context - 2 * self.n_round
        if self.n_shared < 1:
            raise RequestError(
                f"a context of {case.context} tokens does not hold two rounds of {workflow.name}, which have "
                f"{self.n_round} tokens each with {case.agents} agents",
                "Give a larger --context, fewer --agents or a smaller --answer-tokens",
            )
        self.n_warm_rounds = math.ceil(case.warm_turns / len(shares))
        self._n_vocab = n_vocab
        self._rng = np.random.default_rng([_SEED, seed])
        self.tokens = self._ids(self.n_shared)

    def _ids(self, n: int) -> list[int]:
        ids: list[int] = self._rng.integers(0, self._n_vocab, n).tolist()
        return ids

    def round(self) -> Iterator[list[Request]]:
        """Says a round: the requests of each step, which join the conversation when the next step is asked for."""
        self.tokens += self._ids(self.workflow.question)
        for step in self.steps:
            requests, said = [], []
            for share in step:
                prompt, answer = self._ids(share.n_prompt), self._ids(share.n_answer)
                requests.append(Request(share.agent, self.tokens + prompt, answer))
                said += prompt + answer
            yield requests
            self.tokens += said

    def rewind(self) -> None:
        """Goes back to where the lead round ended."""
        del self.tokens[self.n_shared + self.n_round :]


def _shares(workflow: Workflow, agents: int, answer_tokens: int | None) -> list[Share]:
    turns = workflow.turns
    if workflow.names_speakers:
        speakers = [turn.speaker or 0 for turn in turns]
    else:
        # Whole visits of all agents, and every turn at least once.
        n = agents if workflow.at_once else agents * math.ceil(len(turns) / agents)
        speakers = [i % agents for i in range(n)]
    shares = []
    for i, speaker in enumerate(speakers):
        turn = turns[i % len(turns)]
        shares.append(Share(speaker, turn.n_prompt, answer_tokens or turn.answer))
    return shares
