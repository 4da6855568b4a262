"""Training records: the file format, and its rendering to token ids by the runtime's own conversation.

A record is one line, `{"messages": [{"role": "user"|"assistant", "content": text, "agent": name, "weight": 0|1}]}`, or
`{"prompt": text, "answer": text}`. `agent` says who speaks; `weight` 0 (as in OpenAI's fine-tuning format) keeps an
answer as context. No torch here.
"""

from __future__ import annotations

import datetime
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from icarus_local.chat.agents import Agent
from icarus_local.chat.conversation import Conversation
from icarus_local.errors import IcarusError
from icarus_local.text.template import ChatTemplate, own_template
from icarus_local.text.tokenizer import Tokenizer

# What templates that ask for the date are told: a run that goes on another day has the same ids. Llama 3's own default.
DATE = datetime.datetime(2024, 7, 26)


@dataclass(frozen=True, slots=True)
class Sample:
    """One rendered record: `ids` of the whole conversation; at `positions[i]` the next token is to be `labels[i]`."""

    ids: list[int]
    positions: list[int]
    labels: list[int]


@dataclass(slots=True)
class Loaded:
    """The samples of one file, and the lines that were left out: `(line number, reason)`."""

    samples: list[Sample] = field(default_factory=list)
    left_out: list[tuple[int, str]] = field(default_factory=list)

    @property
    def supervised(self) -> int:
        """Number of tokens that are trained on."""
        return sum(len(sample.labels) for sample in self.samples)

    @property
    def tokens(self) -> int:
        """Number of tokens that the encoder reads."""
        return sum(len(sample.ids) for sample in self.samples)

    @property
    def sha256(self) -> str:
        """Of ids, positions and labels of all samples, hexadecimal: whatever changes what is learnt changes it."""
        digest = hashlib.sha256()
        for sample in self.samples:
            digest.update(json.dumps([sample.ids, sample.positions, sample.labels]).encode())
        return digest.hexdigest()


class Renderer:
    """Renders records for one agent, so that training sees the very ids that a chat will hold."""

    def __init__(self, tokenizer: Tokenizer, template: ChatTemplate, agents: Iterable[Agent], speaker: str) -> None:
        self.tokenizer, self._template = tokenizer, template
        self._agents = {agent.name: agent for agent in agents}
        self.speaker = self._agents.get(speaker) or Agent(name=speaker)

    def sample(self, record: Mapping[str, Any]) -> Sample:
        """The sample of one record. Raises `ValueError` with the reason for one that cannot be used."""
        conversation = Conversation(self._template)
        supervised: list[tuple[int, list[int]]] = []
        ids: list[int] = []
        for message in checked_messages(record):
            answer = self._say(conversation, message)
            if answer is None:
                continue
            prompt, said = answer
            if prompt[: len(ids)] != ids:
                raise ValueError("the chat template rewrites earlier turns, which no cache could keep")
            ids = [*prompt, *said]
            if self._name(message) == self.speaker.name and message.get("weight", 1):
                supervised.append((len(prompt), [*said, conversation.end_of_turn]))
        positions: list[int] = []
        labels: list[int] = []
        for start, wanted in supervised:
            # The row before an answer predicts its first token; the last answer token predicts the end of turn.
            positions.extend(range(start - 1, start - 1 + len(wanted)))
            labels.extend(wanted)
        if not labels:
            raise ValueError(f"no answer of {self.speaker.name} to learn from")
        return Sample(ids[: positions[-1] + 1], positions, labels)

    def prompt(self, messages: Iterable[Mapping[str, Any]]) -> list[int]:
        """Token ids up to where the agent's answer to `messages` begins."""
        conversation = Conversation(self._template)
        for message in messages:
            self._say(conversation, message)
        conversation.hand_over(self.speaker)
        return conversation.prompt()

    def _say(self, conversation: Conversation, message: Mapping[str, Any]) -> tuple[list[int], list[int]] | None:
        """Adds a message; for an answer gives the ids before it and its own."""
        if message["role"] == "user":
            conversation.ask(message["content"])
            return None
        name = self._name(message)
        conversation.hand_over(self._agents.get(name) or Agent(name=name))
        prompt, said = conversation.prompt(), self.tokenizer.encode(message["content"])
        conversation.answer(name, said)
        return prompt, said

    def _name(self, message: Mapping[str, Any]) -> str:
        return str(message.get("agent", self.speaker.name))


def dated_template(tokenizer: Tokenizer) -> ChatTemplate:
    """A base's own template on `DATE`. Raises `TemplateError`: it is broken."""
    return own_template(tokenizer.template_source, tokenizer, DATE)


def messages_of(record: Any) -> list[dict[str, Any]]:
    """The messages of a record, which begin with a user's. Raises `ValueError` where the format is broken."""
    if not isinstance(record, Mapping):
        raise ValueError("not a JSON object")
    if "prompt" in record:
        turns = [("user", record["prompt"]), *([("assistant", record["answer"])] if "answer" in record else [])]
        messages: Any = [{"role": role, "content": content} for role, content in turns]
    else:
        messages = record.get("messages")
    if not isinstance(messages, list) or not messages:
        raise ValueError("neither a list `messages` nor `prompt` and `answer`")
    for message in messages:
        _check(message)
    if messages[0]["role"] != "user":
        raise ValueError("messages must begin with a user's")
    return messages


def _check(message: Any) -> None:
    if not isinstance(message, dict):
        raise ValueError("a message that is not a JSON object")
    if message.get("role") not in ("user", "assistant"):
        raise ValueError(f"a message of the role {message.get('role')!r}, not user or assistant")
    if not isinstance(message.get("content"), str) or not message["content"].strip():
        raise ValueError(f"a message of the {message['role']} without content")
    if not isinstance(message.get("agent", "a"), str):
        raise ValueError("an agent that is not a name")
    if message.get("weight", 1) not in (0, 1):
        raise ValueError(f"a weight of {message['weight']!r}, which is neither 0 nor 1")


def checked_messages(record: Any) -> list[dict[str, Any]]:
    """The messages of a record that ends with an answer. Raises `ValueError` where the format is broken."""
    messages = messages_of(record)
    if messages[-1]["role"] == "user":
        raise ValueError("messages must end with an answer")
    return messages


def lines_of(path: Path) -> Iterator[tuple[int, str]]:
    """The lines of a .jsonl file that are not blank, with their numbers. Raises `IcarusError`: it cannot be read."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise IcarusError(f"{path}: cannot be read: {error}") from error
    # Other characters that end lines elsewhere may stand in a JSON string.
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            yield number, line


def read_samples(path: Path, renderer: Renderer, max_tokens: int) -> Loaded:
    """The samples of a .jsonl file; lines that cannot be used are named, not fatal.

    Raises:
        IcarusError: the file cannot be read, or nothing is left.
    """
    loaded = Loaded()
    for number, line in lines_of(path):
        try:
            sample = renderer.sample(parsed(line))
            if len(sample.ids) > max_tokens:
                raise ValueError(f"{len(sample.ids)} tokens, over {max_tokens}")
        except (ValueError, IcarusError) as error:
            loaded.left_out.append((number, str(error)))
        else:
            loaded.samples.append(sample)
    if not loaded.samples:
        raise IcarusError(f"{path}: nothing to train on{': ' + named(loaded.left_out) if loaded.left_out else ''}")
    return loaded


def parsed(line: str) -> Any:
    """The JSON value of a line. Raises `ValueError` in words that name no place in a file of one line."""
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not JSON ({getattr(error, 'msg', 'nested too deeply')})") from error


def named(left_out: Sequence[tuple[int, str]], most: int = 5, what: str = "line") -> str:
    """How many lines, or whatever `what` says, were left out, and the first of them by number."""
    first = "; ".join(f"{what} {number}: {reason}" for number, reason in left_out[:most])
    lines = f"1 {what}" if len(left_out) == 1 else f"{len(left_out)} {what}s"
    return f"{lines} left out: {first}{' …' if len(left_out) > most else ''}"
