"""Bugs of one line each, planted in a function's text: what a reviewer learns to find."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

_COMPARE: dict[type[ast.cmpop], tuple[str, ...]] = {
    ast.Lt: ("<=", ">"),
    ast.LtE: ("<", ">="),
    ast.Gt: (">=", "<"),
    ast.GtE: (">", "<="),
    ast.Eq: ("!=",),
    ast.NotEq: ("==",),
    ast.In: ("not in",),
    ast.NotIn: ("in",),
    ast.Is: ("is not",),
    ast.IsNot: ("is",),
}
_BINARY: dict[type[ast.operator], str] = {
    ast.Add: "-",
    ast.Sub: "+",
    ast.Mult: "+",
    ast.Div: "*",
    ast.FloorDiv: "%",
    ast.Mod: "//",
}
_SWAPPED = (
    ("min", "max"),
    ("any", "all"),
    ("upper", "lower"),
    ("isupper", "islower"),
    ("startswith", "endswith"),
    ("isdigit", "isalpha"),
    ("lstrip", "rstrip"),
)
_NAMES = {"append": "extend", "keys": "values", **dict(_SWAPPED), **{b: a for a, b in _SWAPPED}}
_INDICES = {"0": "1", "-1": "0", "1": "0", "::-1": "::1", "1:": "0:", ":-1": ":1"}
_Edits = Iterator[tuple[str, ast.expr | ast.stmt, str]]


@dataclass(frozen=True, slots=True)
class Mutant:
    """`code` has on line `line` (1 is the `def`) `found` where `should` was; `fixed` is that line as it should be."""

    kind: str
    code: str
    line: int
    found: str
    should: str
    fixed: str


def mutants(code: str) -> list[Mutant]:
    """All mutants of one function's dedented ASCII text, in order of place. Docstrings and signatures stay whole."""
    lines = code.splitlines()
    function = ast.parse(code).body[0]
    result: dict[str, Mutant] = {}
    for node in ast.walk(function):
        for kind, place, replacement in _edits(code, node):
            # A place in the signature is a default value or the like: no bug that the body could show.
            if place.lineno != place.end_lineno or place.lineno == function.lineno:
                continue
            line = lines[place.lineno - 1]
            end = place.end_col_offset or 0
            found, should = replacement, line[place.col_offset : end]
            changed = line[: place.col_offset] + found + line[end:]
            if found == should or "`" in found + should:
                continue
            mutated = "\n".join([*lines[: place.lineno - 1], changed, *lines[place.lineno :]])
            if _parses(mutated):
                result.setdefault(mutated, Mutant(kind, mutated, place.lineno, found, should, line))
    return sorted(result.values(), key=lambda mutant: (mutant.line, mutant.found))


def _edits(code: str, node: ast.AST) -> _Edits:
    """`(kind, node to replace, its new text)` for every bug that `node` offers."""
    if isinstance(node, ast.stmt):
        yield from _statements(code, node)
    elif isinstance(node, ast.Compare) and len(node.ops) == 1:
        left, right = _text(code, node.left), _text(code, node.comparators[0])
        for symbol in _COMPARE[type(node.ops[0])]:
            yield "comparison", node, f"{left} {symbol} {right}"
    elif isinstance(node, ast.BoolOp):
        word = "or" if isinstance(node.op, ast.And) else "and"
        yield "and/or", node, f" {word} ".join(_text(code, value) for value in node.values)
    elif isinstance(node, ast.BinOp):
        yield from _operators(code, node)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield "dropped not", node, _text(code, node.operand)
    elif isinstance(node, ast.Call) and not node.keywords:
        yield from _calls(code, node)
    elif isinstance(node, ast.Subscript) and _text(code, node.slice) in _INDICES:
        yield "wrong index", node, f"{_text(code, node.value)}[{_INDICES[_text(code, node.slice)]}]"
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield "wrong constant", node, str(not node.value)


def _statements(code: str, node: ast.stmt) -> _Edits:
    if isinstance(node, ast.Return) and node.value is not None and not isinstance(node.value, ast.Constant):
        yield "dropped return", node, _text(code, node.value)
    elif isinstance(node, ast.Break | ast.Continue):
        yield "break/continue", node, "continue" if isinstance(node, ast.Break) else "break"
    elif isinstance(node, ast.AugAssign):
        target, value = _text(code, node.target), _text(code, node.value)
        yield "assignment", node, f"{target} = {value}"
        if isinstance(node.op, ast.Add | ast.Sub):
            yield "assignment", node, f"{target} {'-=' if isinstance(node.op, ast.Add) else '+='} {value}"
    elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant):
        value_now = node.value.value
        if type(value_now) is int and value_now in (0, 1):
            yield "wrong start", node, f"{_text(code, node.targets[0])} = {1 - value_now}"


def _operators(code: str, node: ast.BinOp) -> _Edits:
    left, right = _text(code, node.left), _text(code, node.right)
    if type(node.op) in _BINARY:
        yield "operator", node, f"{left} {_BINARY[type(node.op)]} {right}"
    if right == "1" and isinstance(node.op, ast.Add | ast.Sub):
        yield "off by one", node, left


def _calls(code: str, node: ast.Call) -> _Edits:
    arguments = [_text(code, argument) for argument in node.args]
    if isinstance(node.func, ast.Name) and node.func.id == "range":
        *first, last = arguments
        shorter = last[:-4] if last.endswith(" + 1") else f"{last} - 1"
        yield "off by one", node, f"range({', '.join([*first, shorter])})"
        if not last.endswith((" + 1", " - 1")):
            yield "off by one", node, f"range({', '.join([*first, last + ' + 1'])})"
        if not first:
            yield "off by one", node, f"range(1, {last})"
    elif isinstance(node.func, ast.Name) and node.func.id in _NAMES:
        yield "wrong call", node, f"{_NAMES[node.func.id]}({', '.join(arguments)})"
    elif isinstance(node.func, ast.Attribute) and node.func.attr in _NAMES:
        yield "wrong call", node, f"{_text(code, node.func.value)}.{_NAMES[node.func.attr]}({', '.join(arguments)})"


def _text(code: str, node: ast.AST) -> str:
    """The text of `node` with the parentheses that it stands in, if a part of it would need them."""
    text = ast.get_source_segment(code, node) or ""
    return (
        f"({text})"
        if isinstance(node, ast.BoolOp | ast.IfExp | ast.Lambda | ast.Compare) and "\n" not in text
        else text
    )


def _parses(code: str) -> bool:
    try:
        ast.parse(code)
    except (SyntaxError, ValueError):
        return False
    return True
