"""Functions of Python's standard library with docstrings: the wide part of the training data (PSF licence)."""

from __future__ import annotations

import ast
import sysconfig
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_SKIPPED = {
    "test",
    "tests",
    "idle_test",
    "lib2to3",
    "site-packages",
    "__pycache__",
    "turtledemo",
    "idlelib",
    "ensurepip",
}


@dataclass(frozen=True, slots=True)
class Function:
    """One function: `code` without its docstring, `head` its signature, `says` the docstring's first sentence."""

    module: str
    name: str
    head: str
    says: str
    docstring: str
    code: str


def functions(max_body_lines: int = 20, root: Path | None = None) -> list[Function]:
    """The plain functions (no methods, generators' helpers included) that are short and ASCII, in order of module."""
    root = root or Path(sysconfig.get_paths()["stdlib"])
    result: list[Function] = []
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).parts
        if not _SKIPPED.intersection(parts):
            module = ".".join(parts).removesuffix(".py").removesuffix(".__init__")
            result.extend(_functions_of(path, module, max_body_lines))
    return result


def _functions_of(path: Path, module: str, max_body_lines: int) -> Iterator[Function]:
    try:
        source = path.read_text(encoding="utf-8")
        tree = ast.parse(source)
    except (OSError, SyntaxError, ValueError):
        return  # the library holds files that are wrong on purpose
    lines = source.splitlines()
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef) or node.decorator_list or len(node.body) < 2:
            continue
        docstring = ast.get_docstring(node)
        if not docstring or any(
            argument.arg in ("self", "cls") for argument in [*node.args.posonlyargs, *node.args.args]
        ):
            continue
        start, first, end = node.body[0].lineno, node.body[1].lineno, node.end_lineno or 0
        if end - first + 1 > max_body_lines or node.lineno >= start:
            continue
        code = textwrap.dedent(
            "\n".join([*lines[node.lineno - 1 : start - 1], *_without_blank(lines[first - 1 : end])])
        )
        head = textwrap.dedent("\n".join(lines[node.lineno - 1 : start - 1]))
        says = " ".join(docstring.split("\n\n")[0].split()).split(". ")[0].rstrip(".")
        if code.isascii() and 15 <= len(says) <= 140 and "`" not in code and "\t" not in code:
            yield Function(module, node.name, head, says, " ".join(docstring.split("\n\n")[0].split()), code)


def _without_blank(lines: list[str]) -> list[str]:
    return [line.rstrip() for line in lines if line.strip()]
