"""Streaming text: whole characters, no part of a stop string, the same text however the bytes are cut."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from icarus_local.text.detokenizer import Detokenizer


def stream(data: bytes, cuts: list[int], stop: list[str]) -> tuple[list[str], Detokenizer]:
    borders = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    pieces = [data[a:b] for a, b in itertools.pairwise(borders)]
    detokenizer = Detokenizer(pieces.__getitem__, stop)
    return [*(detokenizer.add(i) for i in range(len(pieces))), detokenizer.finish()], detokenizer


TEXTS = st.text(st.sampled_from("ab<>é模😀\n"), max_size=30)


@given(
    TEXTS,
    st.lists(st.integers(0, 200), max_size=20),
    st.lists(st.text(st.sampled_from("ab<>é"), min_size=1, max_size=4), max_size=3),
)
def test_any_cutting_gives_the_text_up_to_the_first_stop(text: str, cuts: list[int], stop: list[str]) -> None:
    parts, detokenizer = stream(text.encode(), cuts, stop)
    hits = [text.find(s) for s in stop if s in text]
    shown = "".join(parts)
    if not hits:
        assert shown == text
        assert detokenizer.stopped is None
    else:
        # Cut by cut the earliest *completed* stop ends the text; none of it is ever shown.
        assert detokenizer.stopped in stop
        assert text.startswith(shown + detokenizer.stopped)
    assert not any(s in shown for s in stop)
    assert not any("�" in part for part in parts)


def test_a_character_over_three_tokens_comes_whole() -> None:
    parts, _ = stream("模".encode(), [1, 2], [])
    assert parts == ["", "", "模", ""]


def test_a_cut_character_becomes_one_replacement_at_the_end() -> None:
    parts, _ = stream("模".encode()[:2], [1], [])
    assert "".join(parts) == "�"


def test_what_may_become_a_stop_string_is_held_back_and_released() -> None:
    pieces = [b"x<", b"|e", b"nd", b"y"]
    detokenizer = Detokenizer(pieces.__getitem__, ["<|end|>"])
    assert [detokenizer.add(i) for i in range(4)] == ["x", "", "", "<|endy"]
