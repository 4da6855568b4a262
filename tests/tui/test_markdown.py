"""Markdown as it streams: what is shown, that nothing vanishes, and what an addition costs."""

from __future__ import annotations

import random
import time
from collections.abc import Iterable
from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from icarus_local.chat.code import CodeBlock, code_blocks
from icarus_tui import markdown
from icarus_tui.answer import Answer
from icarus_tui.block import Block
from icarus_tui.lines import Form, Line, breaks, graphemes
from icarus_tui.markdown import code_at, render
from icarus_tui.stream import Stream


def answer(*pieces: str, end: bool = True) -> Answer:
    result = Answer("coder", 0)
    for piece in pieces:
        result.say(piece)
    if end:
        result.end()
    return result


def lines(shown: Answer) -> list[Line]:
    """Those of the Markdown."""
    return [line for piece in shown._pieces for line in piece.lines]


def rows(text: str, width: int = 60) -> list[str]:
    """What stands in the rows of a whole answer."""
    shown = answer(text)
    shown.layout(width)
    result = []
    for row in range(1, shown.height):
        ((block, index, part, *_),) = shown.cells(row)
        line = block.lines[index]
        begin, end = block.part(index, part)
        decoration = line.form.hang if part else line.form.lead
        fill = line.form.fill * (width - len(decoration) - len(line.text)) if line.form.fill != " " else ""
        result.append((decoration * (line.form.margin(width) > 0) + line.shown(width)[begin:end]).rstrip() + fill)
    return result


def styles(text: str) -> dict[str, set[str]]:
    """Which characters have which styles."""
    found: dict[str, set[str]] = {}
    for piece in answer(text)._pieces:
        piece.colour()
        for line in piece.lines:
            for span in line.spans or ():
                found.setdefault(line.text[span.start : span.end], set()).add(str(span.style))
    return found


# -- what is shown -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("# Title\ntext", ["Title", "text"]),
        ("Title\n=====\n\n\ntext", ["Title", "", "", "text"]),
        ("one\ntwo\n  three", ["one", "two", "  three"]),
        ("**b** *i* ~~s~~ `c` ***both***", ["b i s `c` both"]),
        ("- a\n- b\n  - c\n\n  more", ["• a", "• b", "  • c", "", "  more"]),
        ("3. a\n7) b\n   - c", ["3. a", "7) b", "   • c"]),
        ("-\n- a", ["•", "• a"]),
        ("> a\n> b\n>\n> > c", ["│ a", "│ b", "│", "│ │ c"]),
        ("a\n\n---\nb", ["a", "", "─" * 60, "b"]),
        ("[text](http://x.y 'title') <http://z.w>", ["text (http://x.y title) http://z.w"]),
        ("![alt](a%20b.png) [](c)", ["alt (a%20b.png)  (c)"]),
        ("[日本](http://例え.jp/?a=1&amp;b)", ["日本 (http://例え.jp/?a=1&amp;b)"]),
        ("[a](javascript:alert(1))", ["a (javascript:alert(1))"]),
        ("[a]: http://x 'y'\n\n[a]", ["[a]: http://x 'y'", "", "[a]"]),
        ("&lt;b&gt; \\* <b>x</b>\n<div>\ny", ["&lt;b&gt; \\* <b>x</b>", "<div>", "y"]),
        ("```python\nx = 1\n\n\ty\n```\nz", ["▎ python", "▎ x = 1", "▎", "▎ \ty", "z"]),
        ("```\nx\n", ["▎ x"]),
        ("~~~sh -e\nls\n~~~~", ["▎ sh -e", "▎ ls"]),
        ("a\n\n    code\n      more", ["a", "", "▎ code", "▎   more"]),
        ("1. do:\n   ```sh\n   ls\n   ```\n2. done", ["1. do:", "   ▎ sh", "   ▎ ls", "2. done"]),
        ("- ```sh\n  ls\n  ```", ["• ▎ sh", "  ▎ ls"]),
        ("|a|b|\n|-|-:|\n|1|`22`|\n|日|", ["a  │    b", "───┼─────", "1  │ `22`", "日 │"]),
        ("\n\n a", [" a"]),
        ("> " * 30 + "deep", ["> " * 30, "deep"]),
    ],
    ids=range(24),
)
def test_what_is_shown(text: str, shown: list[str]) -> None:
    assert rows(text) == [row.rstrip() for row in shown]


def test_what_stands_out() -> None:
    found = styles("# T\n**b** *i* `c` ~~s~~ [l](u)\n- x\n\n|h|\n|-|\n```python\nreturn 1\n```")
    assert found["T"] == {"bold underline $text-primary"}
    assert {"b": {"bold"}, "i": {"italic"}, "s": {"strike"}, "l": {"underline"}, "h": {"bold"}}.items() <= found.items()
    assert "`c`" in found
    assert " (u)" in found
    assert "return" in found
    assert styles("## T **b**")["b"] == {"bold underline $text-primary", "bold"}
    assert not styles("say `` nothing")


def test_items_and_quotes_hang_where_they_wrap() -> None:
    text = "12. twelve twelve twelve\n    > quoted quoted quoted"
    assert rows(text, 18) == ["12. twelve twelve", "    twelve", "    │ quoted", "    │ quoted", "    │ quoted"]
    assert rows("> > - deep deep", 9) == ["│ │ • deep", "deep"][:0] or all(
        len(row) <= 9 for row in rows("> > - deep deep", 9)
    )


def test_a_table_that_does_not_fit_is_shown_as_it_was_written() -> None:
    table = "|first column|second column|\n|---|---|\n|1|2|"
    assert rows(table, 40)[0] == "first column │ second column"
    assert rows(table, 20) == ["|first column|second", "column|", "|---|---|", "|1|2|"]
    assert rows("|a|\n|-|\n|1|too|many|") == ["|a|", "|-|", "|1|too|many|"]


def test_code_breaks_where_the_row_is_full_and_keeps_its_spaces() -> None:
    assert rows("```\nab  cd  ef  gh  ij  kl\n```", 14) == ["▎ ab  cd  ef", "▎ gh  ij  kl"]


def test_code_blocks_are_marked_with_what_they_hold() -> None:
    text = "a\n```py\nx = '\x1b'\n```\n- in:\n  ~~~\n  y\n  ~~~\n\n    indented\n"
    shown = answer(text)
    marks = [(piece, mark) for piece in shown._pieces for mark in piece.marks]
    assert [mark.code and mark.code() for _, mark in marks] == code_blocks(text)
    assert [[line.text for line in piece.lines[mark.first : mark.end]] for piece, mark in marks] == [
        ["py", "x = '\ufffd'"],
        ["y"],
    ]
    assert code_at("```a\n1\r```\r\n```b\n2\n```", 0) == CodeBlock("a", "1\ufffd```\ufffd\n```b\n2\n")


def test_the_source_is_what_the_agent_wrote() -> None:
    text = "\n\n# a\x1b[0m\r\n\n> b\n\n```c\nd\n"
    assert answer(*text).text == text
    assert answer(text, end=False).text == text


# -- nothing vanishes --------------------------------------------------------------------------------------------------

SYNTAX = st.sampled_from(
    [
        *(
            "\n",
            "\n\n",
            "- ",
            "* ",
            "1. ",
            "9) ",
            "> ",
            "```",
            "```py\n",
            "~~~",
            "    ",
            "  ",
            "\t",
            "# ",
            "---\n",
            "==\n",
        ),
        *(
            "| a | b |\n",
            "|---|--:|\n",
            "|",
            "**",
            "*",
            "_",
            "~~",
            "`",
            "[x](y)",
            '![i](u "t")',
            "<http://a>",
            "](",
            "<b>",
        ),
        *("==\n", "<b>", "\\", "&amp;", "[a]: b\n", "\n- x\n", "\n1. y\n", "\x1b[1m", "\r\n", "\ufeff", "\u2028"),
    ]
)
WORDS = st.sampled_from(
    ["a", "b1 ", "word ", "日本", "é", "e\u0301", "👩\u200d👩\u200d👧", "שלום ", "\u202e", "ß", "x" * 30]
)
LONG = st.sampled_from(["line\n" * 40, "- item\n" * 5, "> quote\n" * 120, "word " * 1_100, "```\n" + "code\n" * 9])
TEXT = st.lists(st.one_of(SYNTAX, SYNTAX, WORDS, LONG), max_size=25).map("".join)


def visible(text: str) -> list[str]:
    return [character for character in text if character.isalnum()]


@settings(max_examples=200, deadline=None)
@given(TEXT)
@example("|a|\n|-|\n|b|c|")
@example(">" * 40 + "a")
@example("[" * 300 + "a")
@example("- " * 60 + "a")
def test_every_letter_and_digit_is_shown_in_order(text: str) -> None:
    for width in (200, 10):
        shown = iter("".join(line.form.lead + line.shown(width) for line in lines(answer(text))))
        assert [character for character in visible(text) if character not in shown] == []


@settings(max_examples=150, deadline=None)
@example("a\n***b\n", [1])
@example("a\n| h |\n|---|x\n\nb", [1])
@example("a\n| h |\n|---|\n| x |\n\nb", [1])
@example("````\n```\nx\n``` `\n    ````\n`````\ny", [1])
@example("~~~\n```\n~~~\n~~~", [1])
@example("\n" + "word " * 1_100 + "\n- ", [7])
@example("- a\n- b\n" + "word " * 1_100, [999])
@given(TEXT, st.lists(st.sampled_from([1, 4, 30, 100, 999]), min_size=2, max_size=60))
def test_text_in_pieces_comes_to_the_same_lines_as_whole_text(text: str, sizes: list[int]) -> None:
    streamed, whole = Answer("coder", 0), answer(text)
    position, width = 0, 30
    for n in range(10**6):
        size = sizes[n % len(sizes)]
        streamed.say(text[position : position + size])
        position += size
        if size % 3:
            streamed.layout(width)
        if position >= len(text):
            break
    streamed.end()
    for shown in (streamed, whole):
        shown.layout(width)
    assert streamed.text == whole.text == text
    assert len(streamed._pieces) == len(whole._pieces)
    for one, other in zip(streamed._pieces, whole._pieces, strict=True):
        assert [(line.text, line.form, line.narrow, line.least) for line in one.lines] == [
            (line.text, line.form, line.narrow, line.least) for line in other.lines
        ]
        assert one._breaks == other._breaks
        assert [mark[:3] for mark in one.marks] == [mark[:3] for mark in other.marks]
        one.colour()
        assert all(line.spans is not None for line in one.lines)
        assert all(0 <= a <= b <= len(line.text) for line in one.lines for a, b, _ in line.spans or ())


@settings(max_examples=200, deadline=None)
@given(st.lists(st.one_of(SYNTAX, WORDS), max_size=12).map("".join))
def test_text_that_is_under_way_is_shown_too(text: str) -> None:
    shown = Answer("coder", 0)
    for n, character in enumerate(text):
        shown.say(character)
        here = iter("".join(line.form.lead + line.text for line in lines(shown)))
        assert [each for each in visible(text[: n + 1]) if each not in here] == []


# -- wrapping ----------------------------------------------------------------------------------------------------------

WRAPPED = st.text(st.sampled_from("ab  \t-日\u0301🙂\u200d"), max_size=60)


@settings(max_examples=500, deadline=None)
@example("\u200d\u200d日a", 2, False)
@example("aa\t\u0301b", 2, True)
@given(WRAPPED, st.integers(2, 12), st.booleans())
def test_rows_hold_all_and_are_no_wider_than_they_may_be(text: str, width: int, fold: bool) -> None:
    ends = [0, *breaks(text, width, fold), len(text)]
    assert ends == sorted(set(ends)) or not text
    whole = {end for _, end, _ in graphemes(text)} | {0}
    assert set(ends) <= whole
    for begin, end in pairwise(ends):
        shown = text[begin:end] if fold else text[begin:end].rstrip(" \t")
        assert cell_len(shown.expandtabs(4).replace("\t", "")) <= width or "\t" in shown


@settings(max_examples=300, deadline=None)
@given(WRAPPED, st.integers(1, 9), st.booleans(), st.integers(0, 60))
def test_text_that_grows_keeps_its_breaks(text: str, width: int, fold: bool, begun: int) -> None:
    assert breaks(text, width, fold, breaks(text[:begun], width, fold)) == breaks(text, width, fold)


@settings(max_examples=200, deadline=None)
@given(st.lists(WRAPPED, max_size=12), st.integers(1, 20), st.randoms(use_true_random=False))
def test_a_block_that_is_continued_wraps_as_a_whole_one(pieces: list[str], width: int, chance: random.Random) -> None:
    streamed, whole = Block([Line("")]), Block([Line(line) for line in "\n".join(pieces).split("\n")])
    for number, piece in enumerate(pieces):
        streamed.append(piece if not number else f"\n{piece}")
        if chance.random() < 0.5:
            streamed.layout(width)
    for block in (streamed, whole):
        block.layout(width)
    assert [line.text for line in streamed.lines] == [line.text for line in whole.lines]
    assert (streamed._breaks, streamed._starts) == (whole._breaks, whole._starts)


def test_decoration_leaves_text_its_room() -> None:
    form = Form(lead="│ " * 10, hang="│ " * 10)
    assert (form.margin(80), form.room(80)) == (20, 60)
    assert (form.margin(25), form.room(25)) == (0, 25)


# -- what it costs -----------------------------------------------------------------------------------------------------


def cost(texts: Iterable[str]) -> float:
    """How much longer the last additions take than those at the beginning."""
    shown, times = Answer("coder", 0), []
    for text in texts:
        begin = time.process_time()
        shown.say(text)
        shown.layout(70)
        times.append(time.process_time() - begin)
    n = len(times) // 10
    return sum(times[-n:]) / max(sum(times[n : 2 * n]), 1e-4)


@pytest.mark.parametrize(
    ("opening", "line"),
    [
        ("```python\n", "    return [value for value in rows if value]\n"),
        ("", "A line of **prose** with `code` in it, as models write them.\n"),
        ("", "A paragraph of **prose** with `code` in it.\n\n"),
        ("", "- an item with **bold** text\n"),
        ("", "a word and "),
    ],
    ids=["code", "lines", "paragraphs", "items", "one line"],
)
def test_an_addition_to_a_long_answer_costs_what_the_first_cost(opening: str, line: str) -> None:
    # One line without an end is cleaned of control characters as a whole: six times as long, six times the cost.
    bound = 4 if "\n" in line else 8
    # A busy machine may be slow once.
    assert any(cost([opening, *([line] * 4_000)]) < bound for _ in range(3))


@pytest.mark.parametrize(
    ("opening", "line"), [("- x\n  ```\n", "  code\n"), ("", "> quoted\n"), ("|a|\n|-|\n", "|b|\n")]
)
def test_one_large_block_is_not_parsed_at_every_addition(
    opening: str, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    parsed = []
    monkeypatch.setattr(
        "icarus_tui.stream.render", lambda source, *a, **k: parsed.append(len(source)) or render(source)
    )
    shown = answer(opening, *([line] * 4_000))
    assert sum(parsed) < 2_000 * 8_000
    assert len(lines(shown)) >= 4_000


def test_an_open_code_block_is_coloured_once_it_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    coloured: list[str] = []
    highlight = markdown.highlight
    monkeypatch.setattr(markdown, "highlight", lambda code, **k: coloured.append(code) or highlight(code, **k))
    shown = Answer("coder", 0)
    for text in ("```python\n", "x = 1\n", "y = 2", "\n``"):
        shown.say(text)
        for piece in shown._pieces:
            piece.colour()
    assert coloured == []
    assert [line.text for line in lines(shown)] == ["python", "x = 1", "y = 2"]
    shown.say("`\n")
    for _ in range(3):
        shown._pieces[0].colour()
    assert coloured == ["x = 1\ny = 2"]
    shown.say("more")
    shown._pieces[0].colour()
    assert coloured == ["x = 1\ny = 2"]


def test_what_would_take_too_long_stays_plain() -> None:
    assert "return" not in styles("```python\n" + "return 1\n" * 3_000 + "```")
    assert not styles("**b** " * 1_000)
    begin = time.process_time()
    for text in ("[" * 4_900, "![" * 2_400, "*a **b " * 700, "_a*" * 1_600, "[a](" * 1_200, "`a``b" * 900):
        answer(text)
    assert time.process_time() - begin < 5


def test_pieces_are_few_and_small() -> None:
    stream = Stream()
    stream.append("a\n\nb\n\n" + "line\n" * 200 + "\n- 1\n- 2\n\nc")
    assert stream.n_settled >= 5
    assert len(stream.rest) < 100
