"""How people ask for a function: the same wish in many wordings."""

from __future__ import annotations

import random
from collections.abc import Sequence

_WITH_S = (
    "Write a function that {says}.",
    "Write a Python function that {says}.",
    "I need a function that {says}.",
    "Can you write a function that {says}?",
    "Please write a function which {says}.",
    "Give me a Python function that {says}.",
    "Python function that {says}, please",
    "write a function that {says}",
    "Implement a function that {says}.",
    "Show me a function that {says}.",
)
_PLAIN = (
    "Write a function to {to}.",
    "Write a Python function to {to}.",
    "How do I {to} in Python?",
    "write code to {to}",
    "I want to {to}. How do I do that in Python?",
    "Python code to {to}",
    "Can you {to} in Python?",
    "Help me {to} with Python.",
)
_SIGNATURE = (
    "Write a function {signature} that {says}.",
    "Write a Python function `{signature}` that {says}.",
    "Write `{signature}`, which {says}.",
    "Complete this function:\n```python\ndef {signature}:\n    # {says}\n```",
    "def {signature}: it {says}. Write it.",
)
FOLLOW_UPS = ("Now {ask}", "Thanks. {ask}", "Good. {ask}", "{ask}", "Next: {ask}")
FIXES = (
    "Fix it.",
    "Please fix the bug.",
    "Fix the function.",
    "Write it again without the bug.",
    "Correct it, please.",
)
REVIEWS = (
    "Is this right?",
    "Review this function.",
    "Is there a bug in this?",
    "What is wrong with this code?",
    "Check this, please.",
    "Find the bug.",
    "Does this work? It {says}.",
    "This function {says}. Is it correct?",
)
_SPECIAL = {"does": "do", "has": "have", "is": "be", "tells": "tell", "solves": "solve"}


def infinitive(says: str) -> str:
    """ "counts the vowels" -> "count the vowels"; the first word is a verb, and so is one after "and"."""
    words = says.split(" ")
    words[0] = _verb(words[0])
    for index in range(1, len(words)):
        if words[index - 1] == "and" and words[index] in ("keeps", "returns", "adds"):
            words[index] = _verb(words[index])
    return " ".join(words)


def _verb(word: str) -> str:
    if word in _SPECIAL:
        return _SPECIAL[word]
    if word.endswith("ies"):
        return word[:-3] + "y"
    if word.endswith(("sses", "shes", "ches", "xes", "zzes")):
        return word[:-2]
    return word[:-1] if word.endswith("s") else word


def asked(says: Sequence[str], signature: str, rng: random.Random) -> tuple[str, bool]:
    """A question for one of the phrases, and whether it names the signature."""
    phrase = rng.choice(says)
    kind = rng.random()
    if kind < 0.4:
        return rng.choice(_WITH_S).format(says=phrase), False
    if kind < 0.75:
        return rng.choice(_PLAIN).format(to=infinitive(phrase)), False
    return asked_by_signature([phrase], signature, rng), True


def asked_by_signature(says: Sequence[str], signature: str, rng: random.Random) -> str:
    """A question for one of the phrases that names the signature."""
    return rng.choice(_SIGNATURE).format(says=rng.choice(says), signature=signature)
