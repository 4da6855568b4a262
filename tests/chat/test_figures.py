"""What is shown of an answer: its figures, and text that cannot steer a terminal."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from icarus_local.chat.events import AnswerDone
from icarus_local.chat.figures import figures, printable


def test_figures_in_one_line() -> None:
    done = AnswerDone("coder", "text", "length", 10, 20, 30, 0.1234, 56.78, 3 << 20, 6 << 20)
    assert figures(done) == (
        "[coder: 10 tokens reused, 20 encoded, 30 generated, cut at its length; first token 123 ms, 56.8 tok/s; "
        "KV 3.0 MiB in one cache, 6.0 MiB in separate ones]"
    )
    drafted = AnswerDone("coder", "text", "stop", 10, 20, 30, 0.1234, 56.78, 3 << 20, 6 << 20, drafted=20, accepted=12)
    assert "30 generated (12 of them drafted); first" in figures(drafted)
    told = AnswerDone("coder", "text", "stop", 1, 2, 3, 0.1, 5, 6, 7, notice="x.gguf has changed")
    assert figures(told).endswith("] x.gguf has changed")


@given(st.text())
def test_printable_keeps_length_and_text_and_drops_control(text: str) -> None:
    shown = printable(text)
    assert len(shown) == len(text)
    for before, after in zip(text, shown, strict=True):
        control = before not in "\n\t" and (ord(before) < 0x20 or 0x7F <= ord(before) < 0xA0)
        assert after == ("�" if control else before)
