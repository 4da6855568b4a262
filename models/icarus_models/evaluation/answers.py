"""The answers of a system to a task, kept by everything that they depend on: a killed evaluation goes on."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from icarus_local import __version__
from icarus_local.errors import IcarusError
from icarus_local.text.tokenizer import Tokenizer
from icarus_models.evaluation.systems import System

# Raise it when what an answer is changes: how prompts are put to a system, how its tokens become text.
VERSION = 2


@dataclass(frozen=True, slots=True)
class Question:
    """An item as it is put to a system: token ids of the prompt, and how long the answer may be."""

    id: str
    prompt: list[int]
    max_tokens: int

    @property
    def sha256(self) -> str:
        """Of what is asked, hexadecimal."""
        return hashlib.sha256(json.dumps([self.prompt, self.max_tokens]).encode()).hexdigest()


def facts(task: str, system: str, *, agent: str, adapter_sha256: str, base_sha256: str) -> dict[str, Any]:
    """What a system's answers depend on, as JSON values; `agent` is the specialist that answers, "" for the base."""
    import llama_cpp

    return {
        "version": VERSION,
        "icarus_local": __version__,
        "llama_cpp": llama_cpp.__version__,
        "task": task,
        "system": system,
        "agent": agent,
        "adapter_sha256": adapter_sha256,
        "base_sha256": base_sha256,
    }


def file_of(folder: Path, of: Mapping[str, Any]) -> Path:
    """Where answers with these facts are kept."""
    key = hashlib.sha256(json.dumps(of, sort_keys=True).encode()).hexdigest()
    speaker = f"{of['system']}-{of['agent']}" if of["agent"] else of["system"]
    return folder / f"{of['task']}.{speaker}.{key[:16]}.jsonl"


def answer_all(
    file: Path,
    of: Mapping[str, Any],
    questions: list[Question],
    *,
    open_system: Callable[[], System],
    tokenizer: Tokenizer,
    tell: Callable[[int, int], None],
) -> dict[str, str]:
    """The text of every answer by its question's id: those that `file` holds, and the others, written there one by one.

    An answer is known by what was asked: more questions later, or fewer, find those that there are. `open_system` is
    called where there is anything left to answer; `tell` gets how many are done of how many.

    Raises:
        IcarusError: the file is of something else, or cannot be written.
    """
    try:
        done = _kept(file, of)
        asked = {question.sha256: question for question in questions}
        left = [key for key in asked if key not in done]
        if left:
            system = open_system()
            with file.open("a", encoding="utf-8") as handle:
                for number, key in enumerate(left, start=1):
                    tokens = system.answer(asked[key].prompt, asked[key].max_tokens)
                    done[key] = text = tokenizer.decode(tokens)
                    line = {"id": asked[key].id, "asked_sha256": key, "text": text, "tokens": len(tokens)}
                    handle.write(json.dumps(line, ensure_ascii=False) + "\n")
                    handle.flush()
                    tell(len(asked) - len(left) + number, len(asked))
    except OSError as error:
        raise IcarusError(f"{file} cannot be read or written: {error.strerror}") from error
    return {question.id: done[question.sha256] for question in questions}


def _kept(file: Path, of: Mapping[str, Any]) -> dict[str, str]:
    """The texts that a file holds by what was asked; cut behind its last whole line, begun anew where there is none."""
    if file.is_file():
        raw = file.read_bytes()
        whole = raw[: raw.rfind(b"\n") + 1]
        if whole:
            try:
                first, *rest = [json.loads(line) for line in whole.decode("utf-8").split("\n")[:-1]]
                if first != dict(of):
                    raise ValueError("it is of something else")
                done = {line["asked_sha256"]: line["text"] for line in rest}
            except (ValueError, KeyError, TypeError) as error:
                raise IcarusError(f"{file} holds no answers to go on with: {error}", "Remove it") from error
            if len(whole) < len(raw):
                os.truncate(file, len(whole))
            return done
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(dict(of)) + "\n", encoding="utf-8")
    return {}
