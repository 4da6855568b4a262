"""Jinja for templates of unknown origin: no way out, about a second of CPU time, and bounded memory."""

from __future__ import annotations

import functools
import json
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from jinja2 import nodes
from jinja2.exceptions import TemplateSyntaxError
from jinja2.ext import Extension
from jinja2.lexer import TokenStream
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

from icarus_local.errors import TemplateError

MAX_SIZE = 1024 * 1024
MAX_SECONDS = 1.0
_MAX_BITS = 4096
_MAX_DEPTH = 100
_MAX_INDENT = 64
_MAX_MADE = 128  # times the largest value: what one rendering may make in all

_NEW_LINE = re.compile(r"\r\n|\r|\n")
_WIDE = re.compile(r"\d{6,}")
# Names that no template can spell, for what the syntax tree is rewritten to.
_EACH, _JOINED, _MADE = "each of", "joined", "made"
# They draw random numbers or take quadratic time, and no chat template needs them.
_LEFT_OUT = ("pprint", "random", "striptags", "urlize", "wordwrap", "xmlattr")
_UNSAFE = {
    str: {"encode", "expandtabs", "format_map", "maketrans", "translate"},
    int: {"to_bytes", "from_bytes"},
}


class LimitError(TemplateError):
    """A template takes too long or makes too much."""


class Column(int):
    """A line number that knows the column as well; both count from one."""

    column: int

    def __new__(cls, line: int, column: int) -> Column:
        place = super().__new__(cls, line)
        place.column = column
        return place


class _Budget(threading.local):
    """What the rendering under way on this thread may still spend; a template that compiles has the smallest."""

    deadline = float("inf")
    size = MAX_SIZE
    made = 0

    def begin(self, size: int) -> None:
        self.deadline, self.size, self.made = time.thread_time() + MAX_SECONDS, size, 0

    def end(self) -> None:
        self.deadline, self.size, self.made = float("inf"), MAX_SIZE, 0

    def check_time(self) -> None:
        # CPU time of this thread: a busy machine makes no template fail.
        if time.thread_time() > self.deadline:
            raise LimitError(f"it takes longer than {MAX_SECONDS:g} s")

    def check_size(self, size: int) -> None:
        if size > self.size:
            raise LimitError(f"it makes a text or list of more than {self.size} characters or items")

    def add(self, value: Any) -> Any:
        """Counts a value that the template made, and gives it back."""
        self.check_time()
        if isinstance(value, str | list | tuple | set | dict):
            self.check_size(_size(value, self.size))
            self.made += len(value)
            if self.made > _MAX_MADE * self.size:
                raise LimitError("it makes too many texts and lists")
        return value


def _size(value: Any, enough: int) -> int:
    """Characters and items that writing `value` out would visit; counted until it is more than `enough`."""
    total, level, depth = 0, [value], 0
    while level and total <= enough:
        # Python hashes nested tuples without minding its stack.
        depth += 1
        if depth > _MAX_DEPTH:
            raise LimitError(f"it nests lists more than {_MAX_DEPTH} deep")
        below: list[Any] = []
        for item in level:
            if isinstance(item, str):
                total += len(item)
            elif isinstance(item, dict):
                total += len(item)
                below += [*item.keys(), *item.values()]
            elif isinstance(item, list | tuple | set | frozenset):
                total += len(item)
                below += item
            if total > enough:
                break
        level = below
    return total


class _Counted:
    """The iterable of a loop, which looks at the clock before each item."""

    def __init__(self, items: Iterable[Any], budget: _Budget) -> None:
        self._items, self._budget = items, budget

    def __iter__(self) -> Iterator[Any]:
        for item in self._items:
            self._budget.check_time()
            yield item

    def __len__(self) -> int:
        return len(self._items)  # type: ignore[arg-type]  # a TypeError for a generator, as Jinja expects


class _PlainNamespace(Namespace):
    """A namespace that does not write out what it holds: nested ones would double at each level."""

    def __repr__(self) -> str:
        return "<Namespace>"


class _Rewriter(NodeTransformer):
    """Routes what Jinja compiles to plain Python, and the sandbox would not see, through filters of our own."""

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802 - Jinja's naming
        self.generic_visit(node)
        node.iter = _filter(node.iter, _EACH)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return _filter(nodes.List(node.nodes, lineno=node.lineno), _JOINED)

    def visit_List(self, node: nodes.List) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return _filter(node, _MADE)

    def visit_Dict(self, node: nodes.Dict) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return _filter(node, _MADE)

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return _filter(node, _MADE) if node.ctx == "load" else node


def _filter(node: Any, name: str) -> nodes.Filter:
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)


class _GenerationTag(Extension):
    """`{% generation %}`: marks what is trained on; rendering it changes nothing."""

    tags = {"generation"}  # noqa: RUF012 - as Jinja declares it

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)


class Sandbox(ImmutableSandboxedEnvironment):
    """Jinja as chat templates expect it, with limits on time and size.

    Loops, calls, filters and tests look at the clock; whatever makes a text or a list is measured, before it is made
    where it may be far larger than what it is made of.
    """

    intercepted_binops = frozenset({"+", "*", "**", "%", "//"})

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", _GenerationTag])
        self.budget = _Budget()
        self.concat = self._concat  # type: ignore[method-assign]
        self.globals.pop("lipsum")
        self.globals["namespace"] = _PlainNamespace
        self.filters["tojson"] = _to_json
        for name in _LEFT_OUT:
            del self.filters[name]
        self.filters = {name: self._bounded(name, function) for name, function in self.filters.items()}
        self.tests = {name: self._timed(function) for name, function in self.tests.items()}
        self.filters[_EACH] = lambda items: _Counted(items, self.budget)
        self.filters[_JOINED] = self._joined
        self.filters[_MADE] = self.budget.add

    def _tokenize(self, source: str, name: str | None, filename: str | None = None, state: str | None = None) -> Any:
        tokens = _with_columns(_NEW_LINE.sub("\n", source), self.lexer.tokeniter(source, name, filename, state))
        return TokenStream(self.lexer.wrap(tokens, name, filename), name, filename)

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = super()._parse(source, name, filename)
        _Rewriter().visit(tree)
        return tree

    def _concat(self, pieces: Iterable[str]) -> str:
        kept, total = [], 0
        for piece in pieces:
            total += len(piece)
            self.budget.check_size(total)
            kept.append(piece)
        return str(self.budget.add("".join(kept)))

    def _joined(self, values: list[Any]) -> str:
        return self._concat(map(str, values))

    def _timed(self, function: Any) -> Callable[..., Any]:
        @functools.wraps(function)
        def timed(*args: Any, **kwargs: Any) -> Any:
            self.budget.check_time()
            return function(*args, **kwargs)

        return timed

    def _bounded(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        # Some filters take the context or the environment first.
        at = int(hasattr(function, "jinja_pass_arg"))

        @functools.wraps(function)
        def bounded(*args: Any, **kwargs: Any) -> Any:
            value, others = args[at], [*args[at + 1 :], *kwargs.values()]
            self._check_arguments(others)
            if name == "replace":
                self._check_replace(str(value), *args[at + 1 :])
            elif name == "join":
                value = list(_Counted(value, self.budget))
                # A separator stands once for each item at most.
                self.budget.check_size(_size(value, self.budget.size))
                self.budget.check_size(len(value) * max([0, *(len(o) for o in others if isinstance(o, str))]))
                args = (*args[:at], value, *args[at + 1 :])
            elif name == "format":
                self._check_format(str(value), "%", others)
            elif name in {"indent", "tojson"}:
                if any((len(o) if isinstance(o, str) else o) > _MAX_INDENT for o in others if isinstance(o, str | int)):
                    raise LimitError(f"it indents by more than {_MAX_INDENT}")
            elif name == "sum" and not all(isinstance(o, str | int | float) for o in others):
                raise LimitError("it adds up what are no numbers")
            return self.budget.add(function(*args, **kwargs))

        return bounded

    def _check_arguments(self, values: Iterable[Any]) -> None:
        """Numbers are widths, counts and the like: none may be larger than what may be made."""
        for value in values:
            if isinstance(value, int):
                self.budget.check_size(abs(value))

    def _check_replace(self, text: str, old: Any = "", new: Any = "", *_: Any) -> None:
        self.budget.check_size(len(text) + text.count(str(old)) * len(str(new)))

    def _check_format(self, text: str, sign: str, values: Any) -> None:
        if _WIDE.search(text) or (sign == "%" and "*" in text):
            raise LimitError("it formats a value too wide")
        largest = _size(values if isinstance(values, list | tuple | dict) else [values], self.budget.size)
        self.budget.check_size(len(text) + text.count(sign) * largest)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """`str.format`, checked."""
        wrapped = super().wrap_str_format(value)
        if wrapped is None:
            return None
        text = value.__self__

        @functools.wraps(wrapped)
        def checked(*args: Any, **kwargs: Any) -> str:
            self._check_format(text, "{", [*args, *kwargs.values()])
            return wrapped(*args, **kwargs)

        return checked

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Not those by which a short text becomes a long one."""
        if isinstance(obj, bytes) or any(isinstance(obj, kind) and attr in names for kind, names in _UNSAFE.items()):
            return False
        return super().is_safe_attribute(obj, attr, value)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Runs an operator after measuring what it would make."""
        if isinstance(left, int) and isinstance(right, int):
            bits = left.bit_length() + right.bit_length()
            if operator == "**":
                bits = max(bits, left.bit_length() * abs(right))
            if bits > _MAX_BITS:
                raise LimitError(f"it reckons with numbers of more than {_MAX_BITS} bits")
        elif operator == "*":
            value, times = (right, left) if isinstance(left, int) else (left, right)
            if isinstance(times, int):
                self.budget.check_size(_size(value, self.budget.size) * max(0, times))
                self.budget.check_size((len(value) if isinstance(value, str | list | tuple) else 0) * max(0, times))
        elif operator == "%" and isinstance(left, str):
            self._check_format(left, "%", right)
        return self.budget.add(super().call_binop(context, operator, left, right))

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        """Runs a call after measuring what it would make."""
        __self.budget.check_time()
        __self._check_arguments([*args, *kwargs.values()])
        text = getattr(__obj, "__self__", None)
        name = getattr(__obj, "__name__", "")
        if isinstance(text, str) and name == "replace":
            __self._check_replace(text, *args)
        elif isinstance(text, str) and name == "join" and args:
            values = list(_Counted(args[0], __self.budget))
            __self.budget.check_size(_size(values, __self.budget.size))
            __self.budget.check_size(len(values) * len(text))
            args = (values, *args[1:])
        return __self.budget.add(super().call(__context, __obj, *args, **kwargs))


def _with_columns(source: str, tokens: Iterable[tuple[int, str, str]]) -> Iterator[tuple[int, str, str]]:
    """Jinja's tokens with columns: white space that it strips is skipped by searching for the next token."""
    position = 0
    try:
        for line, kind, value in tokens:
            start = source.find(value, position)
            if start < 0:
                yield line, kind, value
                continue
            yield Column(line, start - source.rfind("\n", 0, start)), kind, value
            position = start + len(value)
    except TemplateSyntaxError as error:
        # The lexer stops right behind the last token that it could read.
        position += len(source[position:]) - len(source[position:].lstrip(" \t"))
        error.lineno = Column(error.lineno, position - source.rfind("\n", 0, position))
        raise


def place_of(error: BaseException) -> str:
    """Where in the template an error arose, as " at line N, column M"; what is not known is left out."""
    line: int | None = error.lineno if isinstance(error, TemplateSyntaxError) else None
    if line is None:
        traceback = error.__traceback__
        while traceback is not None:
            if traceback.tb_frame.f_code.co_filename == "<template>":
                line = traceback.tb_lineno
            traceback = traceback.tb_next
    if line is None:
        return ""
    return f" at line {line}, column {line.column}" if isinstance(line, Column) else f" at line {line}"


def _to_json(value: Any, ensure_ascii: bool = False, indent: Any = None, **options: Any) -> str:
    """`tojson` without Jinja's escapes for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **options)
