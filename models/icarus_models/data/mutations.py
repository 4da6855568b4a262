"""Bugs of one line each, planted in a function's text: what a reviewer learns to find."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

_COMPARE: dict[type[ast.cmpop], tuple[str, ...]] = {
    ast.Lt: ("<=", ">"), ast.LtE: ("<", ">="), ast.Gt: (">=", "<"), ast.GtE: (">", "<="),
    ast.Eq: ("!=",), ast.NotEq: ("==",), ast.In: ("not in",), ast.NotIn: ("in",), ast.Is: ("is not",), ast.IsNot: ("is",),
}
_BINARY: dict[type[ast.operator], tuple[str, ...]] = {
    ast.Add: ("-",), ast.Sub: ("+",), ast.Mult: ("+",), ast.Div: ("*",), ast.FloorDiv: ("%",), ast.Mod: ("//",),
}
_NAMES = {
    "min": "max", "max": "min", "any": "all", "all": "any", "upper": "lower", "lower": "upper", "isupper": "islower",
    "islower": "isupper", "startswith": "endswith", "endswith": "startswith", "append": "extend", "keys": "values",
    "isdigit": "isalpha", "isalpha": "isdigit", "True": "False", "False": "True", "lstrip": "rstrip", "rstrip": "lstrip",
}  # fmt: skip


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


def _edits(code: str, node: ast.AST) -> Iterator[tuple[str, ast.expr | ast.stmt, str]]:
    """`(kind, node to replace, its new text)` for every bug that `node` offers."""
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        left, right = _text(code, node.left), _text(code, node.comparators[0])
        for symbol in _COMPARE.get(type(node.ops[0]), ()):
            yield "comparison", node, f"{left} {symbol} {right}"
    elif isinstance(node, ast.BoolOp):
        word = "or" if isinstance(node.op, ast.And) else "and"
        yield "and/or", node, f" {word} ".join(_text(code, value) for value in node.values)
    elif isinstance(node, ast.BinOp):
        for symbol in _BINARY.get(type(node.op), ()):
            yield "operator", node, f"{_text(code, node.left)} {symbol} {_text(code, node.right)}"
        if isinstance(node.right, ast.Constant) and node.right.value == 1 and isinstance(node.op, ast.Add | ast.Sub):
            yield "off by one", node, _text(code, node.left)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield "dropped not", node, _text(code, node.operand)
    elif isinstance(node, ast.Return) and node.value is not None and not isinstance(node.value, ast.Constant):
        yield "dropped return", node, _text(code, node.value)
    elif isinstance(node, ast.Break | ast.Continue):
        yield "break/continue", node, "continue" if isinstance(node, ast.Break) else "break"
    elif isinstance(node, ast.AugAssign):
        target, value = _text(code, node.target), _text(code, node.value)
        yield "assignment", node, f"{target} = {value}"
        if isinstance(node.op, ast.Add | ast.Sub):
            yield "assignment", node, f"{target} {'-=' if isinstance(node.op, ast.Add) else '+='} {value}"
    elif isinstance(node, ast.Call):
        yield from _calls(code, node)
    elif isinstance(node, ast.Subscript):
        yield from _subscripts(code, node)
    elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant) and node.value.value in (0, 1):
        if type(node.value.value) is int:
            yield "wrong start", node, f"{_text(code, node.targets[0])} = {1 - node.value.value}"
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield "wrong constant", node, str(not node.value)


def _calls(code: str, node: ast.Call) -> Iterator[tuple[str, ast.expr, str]]:
    arguments = [_text(code, argument) for argument in node.args]
    if node.keywords:
        return
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


def _subscripts(code: str, node: ast.Subscript) -> Iterator[tuple[str, ast.expr, str]]:
    value, index = _text(code, node.value), _text(code, node.slice)
    swapped = {"0": "1", "-1": "0", "1": "0", "::-1": "::1", "1:": "0:", ":-1": ":1"}.get(index)
    if swapped:
        yield "wrong index", node, f"{value}[{swapped}]"


def _text(code: str, node: ast.AST) -> str:
    """The text of `node` with the parentheses that it stands in, if a part of it would need them."""
    text = ast.get_source_segment(code, node) or ""
    return f"({text})" if isinstance(node, ast.BoolOp | ast.IfExp | ast.Lambda | ast.Compare) and "\n" not in text else text


def _parses(code: str) -> bool:
    try:
        ast.parse(code)
    except (SyntaxError, ValueError):
        return False
    return True
