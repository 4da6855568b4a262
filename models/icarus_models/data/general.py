"""General questions with the base's own answers: what keeps a specialist able to talk."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from icarus_local.chat.conversation import DEFAULT_SYSTEM, Conversation
from icarus_local.errors import IcarusError
from icarus_local.text.tokenizer import Tokenizer
from icarus_models.records import dated_template

MAX_TOKENS = 64
QUESTIONS = tuple(
    """What is the capital of France?
Hello!
Hi, how are you?
Who are you?
What can you help me with?
Thank you for your help.
What is photosynthesis?
Why is the sky blue?
How many days are there in a year?
Name three kinds of fruit.
What is the largest planet?
Who wrote Romeo and Juliet?
What does a lawyer do?
Give me a tip for sleeping better.
How do I boil an egg?
What is the difference between weather and climate?
Tell me a fun fact about cats.
What is gravity?
How far away is the moon?
What is the boiling point of water?
Explain what an atom is.
Why do leaves turn red in autumn?
What is a volcano?
How do bees make honey?
What should I pack for a weekend trip?
Suggest a name for a dog.
What is the opposite of hot?
Translate "good morning" into Spanish.
What language is spoken in Brazil?
How do I write a polite email?
What is democracy?
Who was Albert Einstein?
What is the speed of light?
How does a bicycle stay upright?
What is inflation?
What is a haiku?
Give me a short quote about learning.
What do pandas eat?
Why do we dream?
What is the Pacific Ocean?
How can I learn faster?
What is a balanced diet?
How many continents are there?
What is the tallest mountain?
What is Python?
What is a variable in programming?
What is a loop?
What is recursion?
What is the difference between a list and a tuple?
What is a dictionary in Python?
What is an algorithm?
What is a bug in software?
Why should I write tests?
What is version control?
What is a compiler?
What does HTML stand for?
What is open source software?
What is a database?
What is machine learning?
How does the internet work?
What is a good name for a blog about cooking?
How do I stay motivated?
What is the meaning of the word serene?
Goodbye!""".splitlines()
)


def answers(base: Path, cache: Path, questions: Sequence[str] = QUESTIONS) -> list[tuple[str, str]]:
    """Each question with the base's greedy answer of at most `MAX_TOKENS` tokens, whole sentences only.

    Kept in `cache`, a JSON file bound to what was asked; made anew (a few minutes) when they differ.
    """
    asked = {"base": base.name, "system": DEFAULT_SYSTEM, "questions": list(questions)}
    if cache.is_file():
        kept = json.loads(cache.read_text(encoding="utf-8"))
        if {key: kept.get(key) for key in asked} == asked:
            return [(question, answer) for question, answer in kept["pairs"] if answer]
    pairs = list(zip(questions, _ask_base(base, questions), strict=True))
    cache.parent.mkdir(parents=True, exist_ok=True)
    cache.write_text(json.dumps({**asked, "pairs": pairs}, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return [(question, answer) for question, answer in pairs if answer]


def _ask_base(base: Path, questions: Sequence[str]) -> list[str]:
    from llama_cpp import Llama

    tokenizer = Tokenizer(base)
    template = dated_template(tokenizer)
    llama = Llama(model_path=str(base), n_ctx=512, verbose=False)
    result = []
    try:
        for question in questions:
            conversation = Conversation(template)
            conversation.ask(question)
            reply: Any = llama.create_completion(conversation.prompt(), max_tokens=MAX_TOKENS, temperature=0.0)
            choice = reply["choices"][0]
            result.append(whole_sentences(choice["text"], choice["finish_reason"] == "length"))
    except RuntimeError as error:
        raise IcarusError(f"{base}: libllama cannot answer with this base: {error}") from error
    finally:
        llama.close()
        tokenizer.close()
    return result


def whole_sentences(text: str, cut: bool) -> str:
    """`text` up to its last sentence's end where it was cut off; empty where no sentence is whole."""
    text = text.strip()
    if not cut:
        return text
    ends = [match.end() for match in re.finditer(r"[.!?](?=\s|$)", text) if not text[: match.start()][-1:].isdigit()]
    return text[: ends[-1]] if ends else ""
