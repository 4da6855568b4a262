"""Thoughts and answers are told apart however the text comes, and an answer's ids are counted as what they spell."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from icarus_local.chat.thoughts import ThoughtSplitter
from icarus_local.text.template import THINK, THOUGHT
from tests.chat.scripted import generate

# Mostly marks, parts of marks and white space.
PIECES = ["<think>", "</think>", "<th", "ink>", "</", "<", ">", "/", "a", "bc", "\n", " ", "\t", "é"]
TEXTS = st.lists(st.sampled_from(PIECES), max_size=12).map("".join)
ANSWERS = TEXTS | st.builds("{}<think>{}</think>{}".format, st.sampled_from(["", "\n", " \n"]), TEXTS, TEXTS)


def split(parts: Sequence[str], thinking: bool) -> tuple[str, str]:
    """Thought and answer of a text that comes in `parts`."""
    splitter = ThoughtSplitter(thinking)
    pieces = [piece for part in parts for piece in splitter.add(part)] + splitter.finish()
    assert all(text for text, _ in pieces)
    # A thought never goes on behind the answer's beginning.
    assert [thought for _, thought in pieces] == sorted((thought for _, thought in pieces), reverse=True)
    thought, said = ("".join(text for text, thought in pieces if thought is which) for which in (True, False))
    return thought, said


def cut(text: str, places: list[int]) -> list[str]:
    borders = sorted({0, len(text), *(place % (len(text) + 1) for place in places)})
    return [text[a:b] for a, b in itertools.pairwise(borders)]


@settings(max_examples=500)
@given(ANSWERS, st.lists(st.integers(0, 200), max_size=12), st.booleans())
@example("<think>\n\n</think>\n\na", list(range(25)), False)
@example("<think>a\n</thin\n</think>", list(range(25)), False)
def test_any_cutting_gives_the_same_as_the_whole(text: str, places: list[int], thinking: bool) -> None:
    assert split(cut(text, places), thinking) == split([text], thinking)
    assert split(list(text), thinking) == split([text], thinking)


@settings(max_examples=500)
@given(ANSWERS, st.booleans())
@example("<think>", False)
@example(" \n<thin", False)
@example("\n\na\n</think>\n\n b\n", True)
def test_nothing_is_lost_but_marks_and_line_ends_beside_them(text: str, thinking: bool) -> None:
    thought, said = split(list(text), thinking)
    opening = "" if thinking else rf"\s*{THINK}"
    if not thinking and not re.match(opening, text):
        assert (thought, said) == ("", text)
    elif THOUGHT not in text[0 if thinking else text.index(THINK) :]:
        assert said == ""
        assert re.fullmatch(rf"{opening}\n*{re.escape(thought)}", text)
    else:
        assert re.fullmatch(rf"{opening}\n*{re.escape(thought)}\n*{THOUGHT}\n*{re.escape(said)}", text)
        # All line ends there are trimmed, nothing else is, and the first mark counts.
        assert THOUGHT not in thought
        assert thought == thought.strip("\n")
        assert said == said.lstrip("\n")


@pytest.mark.parametrize(
    ("text", "thinking", "thought", "said"),
    [
        ("<think>\nhm\n</think>\n\nyes\n", False, "hm", "yes\n"),
        ("<think> hm \n\n</think> yes", False, " hm ", " yes"),
        ("\n <think>hm</think>yes", False, "hm", "yes"),
        ("<think>\n\n</think>\n\nyes", False, "", "yes"),
        ("<think>a\n\nb</think>yes", False, "a\n\nb", "yes"),
        ("hm\n</think>\n\nyes", True, "hm", "yes"),
        ("\n</think>yes", True, "", "yes"),
        # Only what opens an answer is a thought.
        ("yes <think>hm</think>", False, "", "yes <think>hm</think>"),
        ("<think>hm</think>yes</think> <think>no", False, "hm", "yes</think> <think>no"),
        ("<think>hm</think><think>no</think>", False, "hm", "<think>no</think>"),
        ("hm</think>yes", False, "", "hm</think>yes"),
        ("<thinking>hm</thinking>", False, "", "<thinking>hm</thinking>"),
        # Unclosed, or never quite opened.
        ("<think>\nhm", False, "hm", ""),
        ("<think>hm\n</thi", False, "hm\n</thi", ""),
        ("<think>\n", False, "", ""),
        ("hm", True, "hm", ""),
        ("", True, "", ""),
        ("\n <thin", False, "", "\n <thin"),
        ("\n\n", False, "", "\n\n"),
        ("\n yes", False, "", "\n yes"),
    ],
)
def test_what_is_thought_and_what_is_said(text: str, thinking: bool, thought: str, said: str) -> None:
    assert split([text], thinking) == (thought, said)


def test_what_cannot_become_a_mark_is_given_at_once() -> None:
    splitter = ThoughtSplitter()
    for part, pieces in [
        (" <thi", []),
        ("nk>\n", []),
        ("a\n", [("a", True)]),
        ("b </", [("\nb ", True)]),
        ("thing\n\n</thin", [("</thing", True)]),
        ("k>\n", []),
        ("\n", []),
        ("c\n</think>", [("c\n</think>", False)]),
        ("\n<", [("\n<", False)]),
    ]:
        assert splitter.add(part) == pieces
    assert splitter.finish() == []


# -- an answer's ids ---------------------------------------------------------------------------------------------------

MARKED = (b"<think>", b"</think>", *(bytes([byte]) for byte in range(256)), b"\n\n", b"hm", b"<end>")
"""Each mark is one token, as in Qwen 3."""
SPELLED = (*(bytes([byte]) for byte in range(256)), b"<th", b"ink", b"</", b"think", b">\n", b">\n\n", b"hm", b"<end>")
"""Marks are spelled over several tokens, one of which holds line ends too."""
STRADDLING = (*SPELLED[:-1], b">h", b"\nh", b"k>\xe6", b"<end>")
"""Tokens may hold the mark's end and more."""


class Pieces:
    """A tokenizer that is a list of pieces, the last of which ends an answer."""

    def __init__(self, pieces: Sequence[bytes], controls: Sequence[str] = ()) -> None:
        self.pieces = pieces
        self.end = len(pieces) - 1
        self.controls = {text: pieces.index(text.encode()) for text in controls}

    def piece(self, token: int) -> bytes:
        return b"" if token in self.controls.values() else self.pieces[token]

    def is_end_of_generation(self, token: int) -> bool:
        return token == self.end

    def encode(self, text: str) -> list[int]:
        """The longest pieces, from the left."""
        data, ids = text.encode(), []
        while data:
            ids.append(max((i for i in range(self.end) if data.startswith(self.pieces[i])), key=self._length))
            data = data[len(self.pieces[ids[-1]]) :]
        return ids

    def _length(self, token: int) -> int:
        return len(self.pieces[token])

    def spell(self, ids: Sequence[int]) -> str:
        return b"".join(self.pieces[token] for token in ids).decode("utf-8", "replace")


@pytest.mark.parametrize("pieces", [MARKED, SPELLED], ids=["marked", "spelled"])
@pytest.mark.parametrize(
    ("thought", "answer", "thinking"),
    [
        ("<think>\nhm\n</think>\n\n", "yes\n", False),
        ("<think>hm</think>", "yes", False),
        ("\n<think>\n\n</think>\n", "é", False),
        ("hm 模\n</think>\n\n", "yes", True),
        ("<think>hm</think>\n\n", "", False),
        ("", "yes <think>hm</think> no", False),
        ("", "<think>hm\n\n", False),
        ("", "hm", True),
        ("", "", False),
    ],
)
def test_the_ids_of_a_thought_are_counted(pieces: tuple[bytes, ...], thought: str, answer: str, thinking: bool) -> None:
    tokenizer = Pieces(pieces)
    ids = tokenizer.encode(thought + answer)
    generation, done = generate(tokenizer, tokenizer.end + 1, [*ids, tokenizer.end], thinking)
    assert tokenizer.spell(generation.tokens[: generation.thought]) == thought
    assert generation.tokens == ids
    assert done.finish_reason == "stop"
    if thought:
        assert (done.thought, done.text) == (re.sub(f"</?{THINK[1:]}", "", thought).strip("\n"), answer)
    else:
        assert (done.thought, done.text) == split([answer], thinking)


def test_marks_that_are_control_tokens_are_seen_and_no_others() -> None:
    pieces = (*MARKED[:-1], b"<tool>", b"<end>")
    tokenizer = Pieces(pieces, ["<think>", "</think>", "<tool>"])
    ids = [*tokenizer.encode("<think>\nhm\n</think>\n\nyes"), len(pieces) - 2]
    generation, done = generate(tokenizer, tokenizer.end + 1, [*ids, tokenizer.end], False)
    assert (done.thought, done.text) == ("hm", "yes")
    assert tokenizer.spell(generation.tokens[: generation.thought]) == "<think>\nhm\n</think>\n\n"


@settings(max_examples=200, deadline=None)
@given(ANSWERS, st.booleans(), st.sampled_from([MARKED, SPELLED, STRADDLING]))
@example("<think>a</think>hm", False, STRADDLING)
@example("<think>a</think>模", False, STRADDLING)
@example("<think>a</think>\nhm", False, STRADDLING)
def test_any_answers_ids_are_counted_up_to_what_it_says(text: str, thinking: bool, pieces: tuple[bytes, ...]) -> None:
    tokenizer = Pieces(pieces)
    ids = tokenizer.encode(text)
    generation, done = generate(tokenizer, tokenizer.end + 1, ids, thinking)
    assert (done.thought, done.text) == split([text], thinking)
    # The most ids that spell a thought with its mark and line ends, and nothing behind these.
    opening = "" if thinking else rf"\s*{THINK}"
    whole = re.compile(rf"(?s){opening}(?:(?!{THOUGHT}).)*{THOUGHT}\n*")
    spelled = [b"".join(map(tokenizer.piece, ids[:n])) for n in range(len(ids) + 1)]
    assert generation.thought == max((n for n, text in enumerate(spelled) if _fits(whole, text)), default=0)


def _fits(pattern: re.Pattern[str], data: bytes) -> bool:
    try:
        return bool(pattern.fullmatch(data.decode()))
    except UnicodeDecodeError:
        return False


@pytest.mark.parametrize("pieces", [MARKED, SPELLED], ids=["marked", "spelled"])
@pytest.mark.parametrize(
    ("stop", "thought", "text", "counted"),
    [
        # May have begun with the mark's end or the line ends behind it, and did not.
        ("\n\n\n", "hm", "yes", "<think>hm</think>\n\n"),
        ("\n\nno", "hm", "yes", "<think>hm</think>\n\n"),
        (">\nno", "hm", "yes", "<think>hm</think>\n\n"),
        ("</thin>", "hm", "yes", "<think>hm</think>\n\n"),
        # Ends it there.
        ("\n\n", "hm", "", "<think>hm</think>\n\n"),
        ("</think>", "hm", "", "<think>hm</think>"),
        ("k>\n", "hm</thin", "", "<think>hm</think>\n"),
        ("yes", "hm", "", "<think>hm</think>\n\n"),
        ("es", "hm", "y", "<think>hm</think>\n\n"),
        # Before the thought has ended, or begun.
        ("hm", "", "", ""),
        ("m", "h", "", ""),
        ("<think>", "", "", ""),
        ("think>", "", "<", ""),
    ],
)
def test_stop_strings_around_the_marks(
    pieces: tuple[bytes, ...], stop: str, thought: str, text: str, counted: str
) -> None:
    tokenizer = Pieces(pieces)
    ids = [token for part in ("<think>", "hm", "</think>", "\n", "\n", "yes") for token in tokenizer.encode(part)]
    generation, done = generate(tokenizer, tokenizer.end + 1, [*ids, tokenizer.end], stop=(stop,))
    assert (done.thought, done.text, done.finish_reason) == (thought, text, "stop")
    assert tokenizer.spell(generation.tokens[: generation.thought]) == counted
    # Whatever was held back, the ids behind the thought begin with what the answer says.
    assert tokenizer.spell(generation.tokens[generation.thought :]).startswith(text)


def test_a_stop_string_that_may_begin_at_the_mark_holds_no_end_of_the_thought_back() -> None:
    """One token ends the mark and begins what may become a stop string; the thought has ended all the same."""
    tokenizer = Pieces(SPELLED)
    ids = [*tokenizer.encode("<think>hm</think"), SPELLED.index(b">\n\n"), *tokenizer.encode("yes")]
    generation, done = generate(tokenizer, tokenizer.end + 1, [*ids, tokenizer.end], stop=("\n\nno", ">\n\n!"))
    assert tokenizer.spell(generation.tokens[: generation.thought]) == "<think>hm</think>\n\n"
    assert (done.thought, done.text) == ("hm", "yes")


@pytest.mark.parametrize(
    ("n", "thought", "text", "counted"), [(2, "", "<think", 0), (5, "hm</", "", 0), (8, "hm", "", 8), (9, "hm", "y", 8)]
)
def test_cut_at_its_length_in_the_middle_of_a_thought(n: int, thought: str, text: str, counted: int) -> None:
    tokenizer = Pieces(SPELLED)
    ids = [*map(SPELLED.index, (b"<th", b"ink", b">", b"hm", b"</", b"think", b">\n", b"\n")), *tokenizer.encode("yes")]
    generation, done = generate(tokenizer, tokenizer.end + 1, ids, max_tokens=n)
    assert (done.thought, done.text, done.finish_reason) == (thought, text, "length")
    assert (generation.thought, len(generation.tokens)) == (counted, n)
