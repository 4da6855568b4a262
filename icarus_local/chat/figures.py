"""What is shown of an answer: its figures in one line, and its text without what could harm a terminal."""

from __future__ import annotations

import re

from icarus_local.chat.events import AnswerDone

_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")  # all but line ends and tabs


def figures(done: AnswerDone) -> str:
    """One line about an answer: what it reused, what it cost, what the cache holds."""
    kv = f"KV {mib(done.kv_bytes)} in one cache, {mib(done.kv_bytes_separate)} in separate ones"
    return f"[{done.agent}: {_cost(done)}; {kv}]{f' {done.notice}' if done.notice else ''}"


def cost(done: AnswerDone) -> str:
    """The same without the cache, for where that is shown by itself."""
    return f"[{done.agent}: {_cost(done)}]{f' {done.notice}' if done.notice else ''}"


def _cost(done: AnswerDone) -> str:
    stopped = {"stop": "", "length": ", cut at its length", "cancelled": ", stopped"}[done.finish_reason]
    drafted = f" ({done.accepted} of them drafted)" if done.accepted else ""
    return (
        f"{done.reused} tokens reused, {done.encoded} encoded, {done.generated} generated{drafted}{stopped}; "
        f"first token {done.ttft_s * 1000:.0f} ms, {done.tok_s:.1f} tok/s"
    )


def counted(n: int, what: str) -> str:
    """A number of things."""
    return f"{n} {what}{'' if n == 1 else 's'}"


def mib(n_bytes: int) -> str:
    """Bytes as MiB."""
    return f"{n_bytes / 2**20:.1f} MiB"


def printable(text: str) -> str:
    """`text` without the control characters that could move a terminal's cursor or change its state."""
    return _CONTROL.sub("\ufffd", text)
