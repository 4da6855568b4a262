"""Templates that would run for ever, fill the memory or get out are stopped; broken ones are named with their place."""

from __future__ import annotations

import threading
import time
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from icarus_local.cli.opening import load_template
from icarus_local.errors import IcarusError, TemplateError
from icarus_local.text.sandbox import MAX_SIZE, LimitError
from icarus_local.text.template import ChatTemplate
from icarus_local.text.tokenizer import Tokenizer
from tests.text.test_template import Words, plain, user, words

DOUBLING = "{% set ns = namespace(x='aa') %}{% for i in range(60) %}{% set ns.x = STEP %}{% endfor %}{{ ns.x }}"
NESTING = "{% set ns = namespace(x=['a']) %}{% for i in range(60) %}{% set ns.x = STEP %}{% endfor %}{{ ns.x }}"
LOOP = "{% for i in range(100000) %}"

SLOW = {
    "loops": LOOP * 3 + "{% endfor %}" * 3,
    "loops that call nothing": "{% set r = range(100000) %}" + "{% for i in r %}" * 3 + "{% endfor %}" * 3,
    "loops that say something": LOOP * 2 + "{{ loop.last }}" + "{% endfor %}" * 2,
    "filters": LOOP
    + "{{ range(100000) | map('upper') | select('in', range(100000) | list) | list | length }}{% endfor %}",
    "recursion": "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(60) }}",
    "a recursive loop": "{% for i in [1, 2] recursive %}{{ loop([1, 2]) if loop.depth < 60 }}{% endfor %}",
    "sorting": LOOP + "{% set x = range(100000) | sort(reverse=true) %}{% endfor %}",
    "a straight line": "{% set x = 'b' * 1000000 %}" + "{% set y = x | upper | lower | replace('a', 'c') %}" * 3000,
}

LARGE = {
    "a string times a number": "{{ 'a' * 10**10 }}",
    "a number times a string": "{{ 10000000000 * 'a' }}",
    "a list times a number": "{{ ([messages] * 10**10) | length }}",
    "a power": "{{ 10 ** (10 ** 10) }}",
    "powers step by step": NESTING.replace("['a']", "9").replace("STEP", "ns.x * ns.x"),
    "adding": DOUBLING.replace("STEP", "ns.x + ns.x"),
    "joining": DOUBLING.replace("STEP", "ns.x ~ ns.x"),
    "replacing": DOUBLING.replace("STEP", "ns.x.replace('a', ns.x)"),
    "the filter replace": DOUBLING.replace("STEP", "ns.x | replace('a', ns.x)"),
    "a separator": DOUBLING.replace("STEP", "ns.x.join([ns.x, ns.x, ns.x])"),
    "a separator of many": "{{ ('a' * 1000000).join(range(100000) | map('string')) }}",
    "the filter join": "{{ range(100000) | join('a' * 1000000) }}",
    "lists of lists": NESTING.replace("STEP", "[ns.x, ns.x]"),
    "dicts of dicts": NESTING.replace("STEP", "{'a': ns.x, 'b': ns.x}"),
    "tuples of tuples": NESTING.replace("STEP", "(ns.x, ns.x)"),
    "dict by name": NESTING.replace("STEP", "dict(a=ns.x, b=ns.x)"),
    "a centre": "{{ 'a' | center(10**10) }}",
    "a justified text": "{{ 'a'.ljust(10**10) }}",
    "the constant centre": "{{ 'a' | center(10000000000) }}",
    "an indented text": "{{ ('a\n' * 100000) | indent(1000000) }}",
    "indented JSON": "{{ [[[[messages]]]] | tojson(indent=1000000) }}",
    "a format": "{{ '%10000000000d' % 1 }}",
    "a format with a width": "{{ '%*d' % (10**9, 1) }}",
    "a repeating format": "{{ ('%(a)s' * 100000) % {'a': 'a' * 1000000} }}",
    "the filter format": "{{ '%10000000000d' | format(1) }}",
    "str.format": "{{ '{:10000000000}'.format(1) }}",
    "str.format that repeats": "{{ ('{0}' * 100000).format('a' * 1000000) }}",
    "the time": "{{ strftime_now('%10000000000d') }}",
    "a sum of lists": "{{ ([[1]] * 100000) | sum(start=[]) }}",
    "a block": "{% set x %}" + LOOP + "{{ 'b' * 1000000 }}{% endfor %}{% endset %}",
    "output": LOOP + "this is a long text that is not the end{% endfor %}",
    "tuples in tuples": NESTING.replace("60", "100000").replace("STEP", "(ns.x,)") + "{{ {ns.x: 1} | length }}",
    "a number read from a text": "{{ ('f' * 1000000) | int(base=16) // ('e' * 500000) | int(base=16) }}",
    "a filter block": "{% filter center(10**9) %}a{% endfilter %}",
    "a mapped filter": "{{ messages | map('center', 10**9) | list }}",
    "many texts": "{{ range(100000) | map('center', 1000000) | list | length }}",
    "a method by name": "{{ (('a' * 1000000) | attr('join'))(range(100000) | map('string')) }}",
    "a range": "{{ range(10**10) | length }}",
}

ESCAPES = [
    "{{ ''.__class__.__mro__ }}",
    "{{ ('a' * 10).translate({97: 'b'}) }}",
    "{{ 'a'.encode() }}",
    "{{ (5).to_bytes(1000000, 'big') }}",
    "{{ messages.append(1) }}",
    "{{ messages[0].update({'role': 'x'}) }}",
    "{% include 'other' %}",
    "{{ raise_exception.__globals__.os }}",
    "{{ raise_exception.__self__.source }}",
    "{{ strftime_now.__globals__.os }}",
    "{{ namespace.__init__.__globals__.os }}",
    "{{ '{0.__class__.__mro__}'.format(1) }}",
    "{{ (messages | map(attribute='__class__') | list)[0].__name__.upper() }}",
    "{{ cycler.__init__.__globals__.os }}",
]


@pytest.mark.parametrize("case", SLOW)
def test_a_slow_template_ends_within_about_a_second_in_any_thread(case: str) -> None:
    caught: list[BaseException] = []

    def render() -> None:
        try:
            words(SLOW[case]).render([user("q")])
        except TemplateError as error:
            caught.append(error)
        # Of this thread's own time: the machine may be busy.
        seconds.append(time.thread_time())

    seconds: list[float] = []
    thread = threading.Thread(target=render)
    thread.start()
    thread.join(60)
    assert not thread.is_alive()
    assert "is stopped" in str(caught[0])
    assert seconds[0] < 3


@pytest.mark.parametrize("case", LARGE)
def test_a_template_that_makes_too_much_is_stopped(case: str) -> None:
    tracemalloc.start()
    start = time.thread_time()
    try:
        with pytest.raises(TemplateError, match=r"^the chat template test (is stopped|fails on this conversation)"):
            words(LARGE[case]).render([user("q")])
        assert tracemalloc.get_traced_memory()[1] < 200 * MAX_SIZE
        assert time.thread_time() - start < 5
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("source", ESCAPES)
def test_there_is_no_way_out(source: str) -> None:
    with pytest.raises(TemplateError, match="fails on this conversation"):
        words(source).render([user("q")])


def test_lists_are_not_nested_so_deeply_that_python_runs_out_of_stack() -> None:
    with pytest.raises(LimitError, match="nests lists more than 100 deep"):
        words(LARGE["tuples in tuples"]).render([user("q")])


def test_what_is_limited_is_back_for_the_next_rendering() -> None:
    template = words("{% if messages[0].content == 'q' %}{{ 'a' * 10**10 }}{% endif %}<c>")
    with pytest.raises(LimitError):
        template.render([user("q")])
    assert template.render([user("r")]) == [1]


class Lengths(Words):
    """A vocabulary quick enough for long texts."""

    def encode(self, text: str) -> list[int]:
        return [len(text)]


def test_a_long_conversation_is_no_large_output() -> None:
    messages = [user("a" * MAX_SIZE)] * 3
    template = ChatTemplate("{% for m in messages %}{{ m.content + '' }}{% endfor %}", Lengths())
    assert template.render(messages) == [3 * MAX_SIZE]


def test_ordinary_jinja_works() -> None:
    source = (
        "{% for k, v in {'a': 1, 'b': 2}.items() %}{{ loop.index }}{{ k }}{{ v }}{{ ',' if not loop.last }}{% endfor %}"
        "{% for m in messages if m.role == 'user' %}{{ loop.length }}{{ m.content | trim }}{% break %}{% endfor %}"
        "{% set ns = namespace(n=0) %}{% for i in range(3) %}{% set ns.n = ns.n + i %}{% endfor %}{{ ns.n }}"
        "{{ ' %s-%03d ' % ('x', 7) }}{{ '{}!'.format('y') }}{{ ['b', 'a'] | sort | join('+') }}{{ 'a' ~ 1 ~ none }}"
        "{{ {'é': '<b>'} | tojson }}{{ messages[::-1] | length }}{{ 'abc'.replace('b', 'x')[1:] }}{{ 2 ** 8 }}"
        "{% generation %}g{% endgeneration %}{% for x in [[1, [2]], [3]] recursive %}"
        "{{ x if x is number else loop(x) }}{% endfor %}{% set a, b = 1, 2 %}{{ a }}{{ b }}"
        "{% for i in messages | selectattr('role', 'equalto', 'user') %}{{ loop.last }}{% else %}none{% endfor %}"
    )
    expected = '1a1,2b21q3 x-007 y!a+ba1None{"é": "<b>"}1xc256g12312True'
    assert words(source).render([user(" q ")]) == plain(expected)


@pytest.mark.parametrize(
    ("source", "place", "reason"),
    [
        ("{{ messages }}\n  {% for m in %}", "line 2, column 15", "Expected an expression"),
        ("a\nbc{{ x | nosuch }}", "line 2, column 10", "No filter named 'nosuch'"),
        ("{% if x %}\n\n  {%- frobnicate y %}", "line 3, column 7", "unknown tag 'frobnicate'"),
        ("a\r\nb\r\n{{ 1 ; 2 }}", "line 3, column 6", "got ';'"),
        ("{{ 'a\n", "line 1, column 4", "unexpected char"),
        ("{{ (1 }}", "line 1, column 7", "unexpected '}'"),
        ("{% if x %}\nabc", "line 2, column 1", "end of template"),
        ("{{ a", "line 1, column 4", "end of template"),
    ],
)
def test_a_broken_template_is_named_with_line_and_column(source: str, place: str, reason: str) -> None:
    with pytest.raises(TemplateError) as caught:
        words(source)
    assert str(caught.value).startswith(f"the chat template test is broken at {place}: ")
    assert reason in str(caught.value)


def test_a_template_that_fails_while_it_renders_is_named_with_its_line() -> None:
    with pytest.raises(TemplateError, match=r"test fails on this conversation at line 3: .*division"):
        words("{% macro m() %}\n\n{{ 1 / 0 }}{% endmacro %}\n{{ m() }}").render([user("q")])


def test_a_template_nested_too_deeply_is_an_error() -> None:
    with pytest.raises(TemplateError, match=r"test (cannot be compiled|is broken)"):
        words("{{ " + "(" * 50_000 + ")" * 50_000 + " }}")


def test_a_template_that_raises_says_its_own_words() -> None:
    with pytest.raises(TemplateError) as caught:
        words("{% if true %}{{ raise_exception('Ask me ' ~ 'politely!') }}{% endif %}").render([user("q")])
    assert str(caught.value) == "the chat template refuses this conversation: Ask me politely!"
    with pytest.raises(TemplateError) as caught:
        words("{{ raise_exception('a' * 100000) }}").render([user("q")])
    assert len(str(caught.value)) < 1000


FILES: dict[str, tuple[bytes | None, str]] = {
    "missing": (None, "cannot be read: .*No such file"),
    "not UTF-8": (b"{{ '\xff' }}", "cannot be read: .*utf-8"),
    "empty": (b"", "is empty"),
    "white space": (b" \n\n", "is empty"),
    "too large": (b"a" * (MAX_SIZE + 1), f"has {MAX_SIZE + 1} characters; {MAX_SIZE} are allowed"),
    "broken behind a byte order mark": (b"\xef\xbb\xbf{% if %}", "is broken at line 1, column 7: "),
    "broken": (b"{% if %}", "is broken at line 1, column 7: "),
}


@pytest.mark.parametrize("case", FILES)
def test_a_template_file_that_cannot_be_used(tmp_path: Path, smollm2_tokenizer: Tokenizer, case: str) -> None:
    data, message = FILES[case]
    file = tmp_path / "given.jinja"
    if data is not None:
        file.write_bytes(data)
    with pytest.raises(IcarusError, match=f"the chat template {file} {message}"):
        load_template(file, smollm2_tokenizer)


def test_a_template_of_the_largest_size_is_taken(smollm2_tokenizer: Tokenizer) -> None:
    template: Any = ChatTemplate("a" * MAX_SIZE, smollm2_tokenizer)
    assert template.source == "a" * MAX_SIZE
