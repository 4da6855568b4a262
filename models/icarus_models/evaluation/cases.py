"""Calls that a coder's answer must get right, besides a task's own examples: one example alone passes too much.

What a task's wording leaves open (letter case, order, ties) no call asks about.
"""

from __future__ import annotations

from typing import Any

from icarus_models.data.tasks import Task, run

# Of tasks that have few examples of their own; a list is right in any order where the task asks for none.
_CALLS: dict[str, tuple[str, ...]] = {
    "reverse_words": ('reverse_words("one two three")', 'reverse_words("word")', 'reverse_words("b a a c")'),
    "capitalize_words": ('capitalize_words("hello big world")', 'capitalize_words("a")', 'capitalize_words("x yz")'),
    "shortest_word": (
        'shortest_word("tiny elephant zoo")',
        'shortest_word("ox apple banana")',
        'shortest_word("plum fig cherry")',
        'shortest_word("word")',
    ),
    "word_frequency": ('word_frequency("a b a")', 'word_frequency("one")', 'word_frequency("x y x y x")'),
    "unique_words": ('unique_words("a b a c")', 'unique_words("one")', 'unique_words("ant bee bee cow ant")'),
    "primes_up_to": ("primes_up_to(11)", "primes_up_to(2)", "primes_up_to(30)", "primes_up_to(1)"),
    "collatz_steps": ("collatz_steps(6)", "collatz_steps(1)", "collatz_steps(7)"),
    "celsius_to_fahrenheit": (
        "celsius_to_fahrenheit(100)",
        "celsius_to_fahrenheit(0)",
        "celsius_to_fahrenheit(-40)",
        "celsius_to_fahrenheit(36.6)",
    ),
    "flatten": ("flatten([[1, 2], [3]])", "flatten([])", "flatten([[], [4], [5, 6, 4]])"),
    "find_max": ("find_max([1, 5, 3])", "find_max([-7, -2, -9])", "find_max([4])", "find_max([9, 8, 7])"),
    "find_min": ("find_min([4, 1, 3])", "find_min([-2, -9, -7, 5])", "find_min([4])", "find_min([7, 8, 9])"),
    "quicksort": ("quicksort([3, 1, 2, 3, 0])", "quicksort([])", "quicksort([5, -1, 4, -1])"),
    "missing_number": ("missing_number([1, 2, 4, 5])", "missing_number([1, 3])", "missing_number([6, 1, 2, 3, 4])"),
    "common_keys": (
        'common_keys({"a": 1, "b": 2}, {"b": 3})',
        'common_keys({"b": 3}, {"a": 1, "b": 2})',
        'common_keys({"a": 1}, {"c": 1})',
        'common_keys({"a": 1, "b": 2, "c": 3}, {"c": 0, "a": 0})',
    ),
    "minutes_to_seconds": ("minutes_to_seconds(5)", "minutes_to_seconds(0)", "minutes_to_seconds(90)"),
    "weeks_to_days": ("weeks_to_days(5)", "weeks_to_days(0)", "weeks_to_days(52)"),
    "square_area": ("square_area(3)", "square_area(1)", "square_area(10)"),
    "box_volume": ("box_volume(2, 3, 5)", "box_volume(1, 1, 1)", "box_volume(4, 4, 2)"),
    "sphere_volume": ("sphere_volume(3)", "sphere_volume(1)", "sphere_volume(0)"),
    "add_tax": ("add_tax(50, 20)", "add_tax(100, 0)", "add_tax(80, 5)"),
}
_IN_ANY_ORDER = {"common_keys"}

# Stands behind an answer's code: by value, so that 9.0 is 9, and a tuple a list, but True is not 1.
_SAME = """
def _same(found, right, in_any_order=False):
    if isinstance(right, bool) or isinstance(found, bool):
        return found is right
    if isinstance(right, (int, float)):
        return isinstance(found, (int, float)) and abs(found - right) <= 1e-6 * max(1, abs(right))
    if isinstance(right, list) and in_any_order:
        return len(found) == len(right) and sorted(found) == sorted(right)
    if isinstance(right, list):
        return isinstance(found, (list, tuple)) and len(found) == len(right) and all(map(_same, found, right))
    return found == right
"""


def expected(task: Task) -> list[tuple[str, Any]]:
    """Calls of a task's function, each with what its own code gives: a value of literals."""
    calls = _CALLS.get(task.name) or tuple(call for call, _ in task.examples)
    return [(call, run(task.code, call)) for call in calls]


def checks(name: str, cases: list[tuple[str, Any]]) -> str:
    """Code that raises unless a function `name`, defined before it, gives what is expected."""
    in_any_order = name in _IN_ANY_ORDER
    lines = [f"assert _same({call}, {right!r}, {in_any_order}), {call!r}" for call, right in cases]
    return "\n".join([_SAME, *lines])
