"""Training records: the file format, and its rendering to token ids by the runtime's own conversation.

A record is one line, `{"messages": [{"role": "user"|"assistant", "content": text, "agent": name, "weight": 0|1}]}`.
`agent` says who speaks; `weight` 0 (as in OpenAI's fine-tuning format) keeps an answer as context. No torch here.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from icarus_local.chat.agents import Agent
from icarus_local.chat.conversation import Conversation
from icarus_local.errors import IcarusError
from icarus_local.text.template import ChatTemplate
from icarus_local.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Sample:
    """One rendered record: `ids` of the whole conversation; at `positions[i]` the next token is to be `labels[i]`."""

    ids: list[int]
    positions: list[int]
    labels: list[int]


@dataclass(slots=True)
class Loaded:
    """The samples of one file, and what was left out: `(line number, reason)`, and the count of too long ones."""

    samples: list[Sample] = field(default_factory=list)
    bad: list[tuple[int, str]] = field(default_factory=list)
    too_long: int = 0

    @property
    def supervised(self) -> int:
        """Number of tokens that are trained on."""
        return sum(len(sample.labels) for sample in self.samples)

    @property
    def tokens(self) -> int:
        """Number of tokens that the encoder reads."""
        return sum(len(sample.ids) for sample in self.samples)


class Renderer:
    """Renders records for one agent, so that training sees the very ids that a chat will hold."""

    def __init__(self, tokenizer: Tokenizer, template: ChatTemplate, agents: Iterable[Agent], speaker: str) -> None:
        self._tokenizer, self._template = tokenizer, template
        self._agents = {agent.name: agent for agent in agents}
        self.speaker = self._agents.get(speaker) or Agent(name=speaker)

    def sample(self, record: Mapping[str, Any]) -> Sample:
        """The sample of one record. Raises `ValueError` with the reason for one that cannot be used."""
        conversation = Conversation(self._template)
        supervised: list[tuple[int, list[int]]] = []
        ids: list[int] = []
        for message in checked_messages(record):
            if message["role"] == "user":
                conversation.ask(message["content"])
                continue
            name = message.get("agent", self.speaker.name)
            conversation.hand_over(self._agents.get(name) or Agent(name=name))
            prompt = conversation.prompt()
            if prompt[: len(ids)] != ids:
                raise ValueError("the chat template rewrites earlier turns, which no cache could keep")
            answer = self._tokenizer.encode(message["content"])
            ids = [*prompt, *answer]
            if name == self.speaker.name and message.get("weight", 1):
                supervised.append((len(prompt), [*answer, conversation.end_of_turn]))
            conversation.answer(name, answer)
        positions: list[int] = []
        labels: list[int] = []
        for start, wanted in supervised:
            # The row before an answer predicts its first token; the last answer token predicts the end of turn.
            positions.extend(range(start - 1, start - 1 + len(wanted)))
            labels.extend(wanted)
        if not labels:
            raise ValueError(f"no answer of {self.speaker.name} to learn from")
        return Sample(ids[: positions[-1] + 1], positions, labels)


def checked_messages(record: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The messages of a record. Raises `ValueError` with the reason where the format is broken."""
    messages = record.get("messages") if isinstance(record, Mapping) else None
    if not isinstance(messages, list) or not messages:
        raise ValueError("no list `messages`")
    last_user = False
    for message in messages:
        if not isinstance(message, dict) or message.get("role") not in ("user", "assistant"):
            raise ValueError("a message whose role is not user or assistant")
        if not isinstance(message.get("content"), str) or not message["content"].strip():
            raise ValueError("a message without content")
        if not isinstance(message.get("agent", "a"), str):
            raise ValueError("an agent that is not a name")
        last_user = message["role"] == "user"
    if messages[0]["role"] != "user" or last_user:
        raise ValueError("messages must begin with a user's and end with an answer")
    return messages


def read_samples(path: Path, renderer: Renderer, max_tokens: int) -> Loaded:
    """The samples of a .jsonl file; bad lines are named, not fatal. Raises `IcarusError` when nothing is left."""
    loaded = Loaded()
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise IcarusError(f"{path}: cannot be read: {error}") from error
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            sample = renderer.sample(json.loads(line))
        except (ValueError, IcarusError) as error:
            loaded.bad.append((number, str(error)))
            continue
        if len(sample.ids) > max_tokens:
            loaded.too_long += 1
        else:
            loaded.samples.append(sample)
    if not loaded.samples:
        first = f"; line {loaded.bad[0][0]}: {loaded.bad[0][1]}" if loaded.bad else ""
        raise IcarusError(
            f"{path}: nothing to train on "
            f"({len(loaded.bad)} bad lines, {loaded.too_long} over {max_tokens} tokens{first})"
        )
    return loaded


def plan_batches(lengths: Sequence[int], batch: int, steps: int, seed: int) -> list[int]:
    """Order of samples for `steps` batches: shuffled per epoch, and samples of like length side by side.

    The whole run's order is known from the seed, so a resumed run goes on with exactly the batches it had left.
    A last batch that is short is filled from the epoch's start. Returns `steps * batch` indices.
    """
    rng = random.Random(seed)
    order: list[int] = []
    while len(order) < steps * batch:
        epoch = list(range(len(lengths)))
        rng.shuffle(epoch)
        shuffled = list(epoch)
        epoch.extend(shuffled[index % len(shuffled)] for index in range(-len(shuffled) % batch))
        pool = batch * 16
        batches: list[list[int]] = []
        for start in range(0, len(epoch), pool):
            some = sorted(epoch[start : start + pool], key=lambda index: lengths[index])
            batches.extend(some[cut : cut + batch] for cut in range(0, len(some), batch))
        rng.shuffle(batches)
        order.extend(index for one in batches for index in one)
    return order[: steps * batch]
