"""Simple, self-contained tasks with one correct answer each, and examples that tell a right answer from a wrong one."""

from __future__ import annotations

import ast
import doctest
import io
import tokenize
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.resources import files

from icarus_models.data.families import families


@dataclass(frozen=True, slots=True)
class Task:
    """`code` defines `name(params)`; `says` are phrases such as "counts the vowels in a string".

    `examples` are expressions that call the function, each with the `repr` of what is right ("" for None).
    `family` is empty for tasks written by hand; tasks of one family share a pattern.
    """

    name: str
    params: tuple[str, ...]
    code: str
    says: tuple[str, ...]
    examples: tuple[tuple[str, str], ...]
    family: str = ""

    @property
    def signature(self) -> str:
        """As a person writes it: `name(a, b)`."""
        return f"{self.name}({', '.join(self.params)})"


def all_tasks() -> list[Task]:
    """Every task, in a fixed order, names unique (those written by hand come first)."""
    tasks: dict[str, Task] = {}
    for resource in ("text", "numbers", "lists", "dicts"):
        source = files("icarus_models.data").joinpath("tasks", f"{resource}.pytxt").read_text(encoding="utf-8")
        for task in parse_tasks(source):
            tasks.setdefault(task.name, task)
    for entry in families():
        code, name = entry.code, ast.parse(entry.code).body[0].name  # type: ignore[attr-defined]
        examples = tuple((call, _shown(run(code, call))) for call in entry.calls)
        tasks.setdefault(name, Task(name, _params(code), code, entry.says, examples, entry.family))
    return list(tasks.values())


def parse_tasks(source: str) -> Iterator[Task]:
    """Tasks of a module's text: each function's docstring holds its phrases, divided by `|`, then doctests."""
    lines = source.splitlines()
    for node in ast.parse(source).body:
        if not isinstance(node, ast.FunctionDef):
            continue
        text = ast.get_docstring(node) or ""
        cases = doctest.DocTestParser().get_examples(text)
        says = tuple(part.strip() for part in text.split("\n")[0].split("|"))
        start, end = node.body[0].lineno, node.body[0].end_lineno or 0
        assert node.end_lineno is not None
        code = "\n".join([*lines[node.lineno - 1 : start - 1], *lines[end : node.end_lineno]])
        examples = tuple((case.source.strip(), case.want.strip()) for case in cases)
        yield Task(node.name, _params(code), code, says, examples)


def run(code: str, call: str) -> object:
    """The value of the expression `call` beside the functions that `code` defines. Only for the project's own code."""
    names: dict[str, object] = {}
    exec(code, names)
    return eval(call, names)


def right(code: str, task: Task) -> bool:
    """Whether `code` gives every example's result."""
    return all(_shown(run(code, call)) == want for call, want in task.examples)


def renamed(code: str, names: Mapping[str, str]) -> str:
    """`code` with identifiers replaced, formatting kept; strings and attributes stay as they are."""
    tokens = list(tokenize.generate_tokens(io.StringIO(code).readline))
    lines = code.splitlines(keepends=True)
    for index in range(len(tokens) - 1, -1, -1):
        token = tokens[index]
        attribute = index > 0 and tokens[index - 1].string == "."
        if token.type == tokenize.NAME and token.string in names and not attribute:
            row, column = token.start
            line = lines[row - 1]
            lines[row - 1] = line[:column] + names[token.string] + line[token.end[1] :]
    return "".join(lines)


def _params(code: str) -> tuple[str, ...]:
    function = ast.parse(code).body[0]
    assert isinstance(function, ast.FunctionDef)
    return tuple(argument.arg for argument in function.args.args)


def _shown(value: object) -> str:
    return "" if value is None else repr(value)
