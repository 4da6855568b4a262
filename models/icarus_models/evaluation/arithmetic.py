"""The task math: the number at the end is the right one."""

from __future__ import annotations

import ast
import operator
import random
import re
from collections.abc import Callable, Iterator

from icarus_models.data.arithmetic import Problem, problem, problems, templates
from icarus_models.data.shape import user
from icarus_models.evaluation.items import Item, Scores, Task, with_score
from icarus_models.specialists import specialist

_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")
_CLOSE = 1e-6
# A sum in a worked answer: an expression of numbers that begins and ends where other words do, and its result.
_SUM = re.compile(
    r"(?<![\w.%×x*/+-])(?<!\b[x×] )(?<![%*/+-] )(?=[^=]*[-+*/])((?:[\d.]+|[-+*/() ])+)"
    r"=\s*(-?\d+(?:\.\d+)?)(?![\d.]*\s*[-+*/x%])"
)
_MONEY = re.compile(r"[$€£¥,]")
_ROUNDED = 0.01  # of a sum, that its result may be off
_OPERATORS: dict[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


def math_task(n: int, seed: int) -> Task:
    """Problems of templates that training has not seen."""
    made = problems(templates(aside=True), random.Random(f"evaluation {seed}"))
    return _task("math", n, (next(made) for _ in range(100 * n)))


def math_numbers_task(n: int, seed: int) -> Task:
    """Problems of the templates that training saw, with numbers of a seed that it did not."""
    rng = random.Random(f"evaluation of numbers {seed}")
    of = templates(aside=False)
    return _task("math-numbers", n, (problem(rng.choice(of), rng) for _ in range(100 * n)))


def _task(name: str, n: int, made: Iterator[Problem]) -> Task:
    items: dict[str, Item] = {}
    for one in made:
        if len(items) == n:
            break
        # Some templates cut halves off: "5*0.5=2".
        if not sums_hold(one.worked):
            continue
        items.setdefault(
            one.question, Item(f"{one.template}-{len(items)}", (user(one.question),), {"answer": one.answer})
        )
    return Task(name, specialist("math"), tuple(items.values()), _score)


def _score(item: Item, answer: str) -> Scores:
    said, right = last_number(answer), last_number(item.truth["answer"])
    return with_score(said is not None and right is not None and abs(said - right) < _CLOSE)


def last_number(text: str) -> float | None:
    """The last number of a text, thousands with or without commas; None where there is none."""
    found = _NUMBER.findall(text)
    return float(found[-1].replace(",", "")) if found else None


def sums_hold(worked: str) -> bool:
    """Whether every sum in a worked answer that can be read has the result that stands behind it."""
    for found in _SUM.finditer(_MONEY.sub("", worked)):
        try:
            value = _value(ast.parse(found[1].strip(), mode="eval").body)
        except (SyntaxError, ValueError, ZeroDivisionError):
            continue
        if abs(value - float(found[2])) > _ROUNDED * max(1.0, abs(value)):
            return False
    return True


def _value(node: ast.expr) -> float:
    """The value of a sum. Raises `ValueError` where it is another expression."""
    match node:
        case ast.BinOp(left, of, right) if type(of) in _OPERATORS:
            return _OPERATORS[type(of)](_value(left), _value(right))
        case ast.UnaryOp(ast.USub(), operand):
            return -_value(operand)
        case ast.Constant(int() | float() as value):
            return float(value)
    raise ValueError("no sum")
