"""What is shown of an answer: its figures in one line, and its text without what could harm a terminal."""

from __future__ import annotations

from icarus_local.chat.events import AnswerDone


def figures(done: AnswerDone) -> str:
    """One line about an answer: what it reused, what it cost."""
    stopped = {"stop": "", "length": ", cut at its length", "cancelled": ", stopped"}[done.finish_reason]
    drafted = f" ({done.accepted} of them drafted)" if done.accepted else ""
    return (
        f"[{done.agent}: {done.reused} tokens reused, {done.encoded} encoded, {done.generated} generated{drafted}"
        f"{stopped}; "
        f"first token {done.ttft_s * 1000:.0f} ms, {done.tok_s:.1f} tok/s; "
        f"KV {mib(done.kv_bytes)} in one cache, {mib(done.kv_bytes_separate)} in separate ones]"
        f"{f' {done.notice}' if done.notice else ''}"
    )


def mib(n_bytes: int) -> str:
    """Bytes as MiB."""
    return f"{n_bytes / 2**20:.1f} MiB"


def printable(text: str) -> str:
    """`text` without the control characters that could move a terminal's cursor or change its state."""
    return "".join(c if c in "\n\t" or not _is_control(c) else "�" for c in text)


def _is_control(character: str) -> bool:
    code = ord(character)
    return code < 0x20 or 0x7F <= code < 0xA0
