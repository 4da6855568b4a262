"""Which of llama.cpp's pre-tokenizers splits text as a `tokenizer.json` does, told by what stands in that file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from icarus_local.errors import ModelFileError

# Names of llama.cpp (llama-vocab.cpp), one for each way of splitting; --pre takes these.
NAMES = (
    *("bailingmoe", "bloom", "chatglm-bpe", "command-r", "dbrx", "deepseek-coder", "deepseek-llm", "deepseek-v3"),
    *("exaone", "falcon", "gpt-2", "gpt-4o", "kimi-k2", "llama-bpe", "olmo", "poro-chat", "qwen2", "refact"),
    *("seed-coder", "smaug-bpe", "smollm", "stablelm2", "starcoder", "superbpe", "tekken", "trillion", "viking"),
)

_ENDINGS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_CASES = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+ENDINGS|"
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*ENDINGS|"
)
_REST_WITH_SLASH = r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
# cl100k's regex as tiktoken writes it; greedy and possessive split alike here.
_TIKTOKEN = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}|"
    r" ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
)
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_REGEXES = {
    rf"{_ENDINGS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}|{_REST}": "dbrx",
    _TIKTOKEN: "dbrx",
    rf"{_ENDINGS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}|{_REST}": "qwen2",
    _CASES.replace("ENDINGS", f"{_ENDINGS}?") + r"\p{N}{1,3}|" + _REST_WITH_SLASH: "gpt-4o",
    _CASES.replace("ENDINGS", "") + r"\p{N}|" + _REST_WITH_SLASH: "tekken",
    _GPT2: "gpt-2",
}


def recognise(path: Path, tokenizer: dict[str, Any]) -> str:
    """llama.cpp's name of the pre-tokenizer of a byte-level BPE.

    Args:
        path: of the `tokenizer.json`, for messages. tokenizer: what it holds.

    Raises:
        ModelFileError: none splits so, as far as is known here.
    """
    steps = _steps(tokenizer.get("pre_tokenizer"))
    known: dict[tuple[str, ...], str] = {("gpt-2",): "gpt-2", ("digits", "gpt-2"): "smollm"}
    known |= {(regex,): name for regex, name in _REGEXES.items()}
    name = known.get(tuple(steps)) if steps is not None else None
    if name is None:
        raise ModelFileError(
            f"{path} splits text in a way that is not recognised",
            f"Give llama.cpp's name for it with --pre, which is tried out on texts: one of {', '.join(NAMES)}",
        )
    # Llama 3 splits as cl100k does, and takes a word whole where the vocabulary has it.
    if name == "dbrx" and tokenizer.get("model", {}).get("ignore_merges") is True:
        return "llama-bpe"
    return name


def check_name(name: str) -> str:
    """The name itself.

    Raises:
        ModelFileError: llama.cpp knows no such pre-tokenizer.
    """
    if name not in NAMES:
        raise ModelFileError(f"there is no pre-tokenizer {name!r}", f"Give one of {', '.join(NAMES)}")
    return name


def _steps(part: Any) -> list[str] | None:
    """What is done to a text, step by step: "digits", "gpt-2" or a regex; None for what is not known."""
    if not isinstance(part, dict):
        return None
    kind = part.get("type")
    known: list[str] | None = None
    if kind == "Sequence":
        inner = [_steps(step) for step in part.get("pretokenizers") or ()]
        known = None if None in inner else [step for steps in inner for step in steps or ()]
    elif kind == "ByteLevel" and not part.get("add_prefix_space"):
        known = ["gpt-2"] if part.get("use_regex", True) else []
    elif kind == "Digits" and part.get("individual_digits") is True:
        known = ["digits"]
    elif kind == "Split":
        pattern = part.get("pattern")
        regex = pattern.get("Regex") if isinstance(pattern, dict) else None
        # To keep the matches, or to remove what is between them where the matches are everything, is the same.
        how = (part.get("behavior"), bool(part.get("invert")))
        if isinstance(regex, str) and how in (("Isolated", False), ("Removed", True)):
            known = [regex]
    return known
