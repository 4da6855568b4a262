"""How answers are scored: what is right counts, what only looks right does not."""

from __future__ import annotations

import gzip
import json
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icarus_local.errors import IcarusError
from icarus_models.data.arithmetic import problems, templates
from icarus_models.data.calls import NO_CALL, Call, Request, requests
from icarus_models.data.reviewer import NO_ISSUE
from icarus_models.data.shape import held_out
from icarus_models.data.sources import split_sources
from icarus_models.evaluation.arithmetic import last_number, sums_hold
from icarus_models.evaluation.calls import first_call, is_right
from icarus_models.evaluation.cases import checks, expected
from icarus_models.evaluation.code import code_of, coder_task, function_of, human_eval_task
from icarus_models.evaluation.items import SCORE, Item
from icarus_models.evaluation.reviews import is_passed, reviewer_task
from icarus_models.evaluation.tasks import TASKS, load_task, specialist_of

from .test_data import write_bfcl


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("So 3 + 4 = 7\nAnswer: 7", 7),
        ("Answer: 1,250.5 dollars", 1250.5),
        ("Answer: -3", -3),
        ("It is 12.", 12),
        ("none", None),
        ("Answer: 5%", 5),
    ],
)
def test_the_last_number_is_the_answer(text: str, number: float | None) -> None:
    assert last_number(text) == number


def test_math_asks_of_templates_that_training_did_not_see() -> None:
    pytest.importorskip("reasoning_gym")
    unseen, seen = load_task("math", 30, bfcl=None), load_task("math-numbers", 30)
    aside = set(templates(aside=True))
    assert {int(item.id.split("-")[0]) for item in unseen.items} == aside
    assert aside.isdisjoint(int(item.id.split("-")[0]) for item in seen.items)
    assert len({item.id for item in unseen.items}) == len(unseen.items) == 30
    item = unseen.items[0]
    assert unseen.score(item, f"Answer: {item.truth['answer']}")[SCORE] == 1
    assert unseen.score(item, f"Answer: {item.truth['answer']}1")[SCORE] == 0
    assert unseen.items == load_task("math", 30).items


CALL = Call(
    "f",
    {"a": [1, "one"], "b": ["San Jose, CA"], "c": [[1, 2]], "d": [{"x": [True], "y": ["z", ""]}], "e": ["", 5]},
)
RIGHT: dict[str, Any] = {"b": "san jose ca", "a": 1.0, "c": [1, 2], "d": {"x": True}}


def test_a_call_is_right_in_any_order_and_with_values_that_mean_the_same() -> None:
    assert is_right({"name": "f", "arguments": RIGHT}, CALL)
    assert is_right({"name": "f", "arguments": {**RIGHT, "a": "One", "e": 5, "d": {"x": True, "y": "z"}}}, CALL)


@pytest.mark.parametrize(
    "change",
    [
        {"a": 2},
        {"a": True},
        {"b": "San Francisco"},
        {"b": None},
        {"c": [2, 1]},
        {"c": [1]},
        {"c": "12"},
        {"d": {"x": 1}},
        {"d": {"y": "z"}},
        {"d": {"x": True, "w": 1}},
        {"e": 6},
        {"f": 1},
    ],
)
def test_one_wrong_argument_makes_a_call_wrong(change: dict[str, Any]) -> None:
    assert not is_right({"name": "f", "arguments": {**RIGHT, **change}}, CALL)


def test_a_missing_argument_or_another_name_makes_a_call_wrong() -> None:
    assert not is_right({"name": "g", "arguments": RIGHT}, CALL)
    for name in RIGHT:
        assert not is_right({"name": "f", "arguments": {k: v for k, v in RIGHT.items() if k != name}}, CALL)


def test_the_first_call_of_an_answer_counts() -> None:
    call = {"name": "f", "arguments": {}}
    assert first_call(f"```json\n{json.dumps(call)}\n``` and {{}}") == call
    assert first_call('{"a": {"name": "f", "arguments": {}}}') == call
    for text in ("", "{", '{"name": "f"}', '{"name": 3, "arguments": {}}', "f(a=1)", "{" * 5000):
        assert first_call(text) is None


@given(st.text())
def test_no_answer_is_fatal(text: str) -> None:
    first_call(text)
    last_number(text)
    function_of(code_of(text), "f")


def test_tools_are_called_or_declined(tmp_path: Path) -> None:
    folder = write_bfcl(tmp_path)
    task = load_task("tools", 20, bfcl=folder)
    known: dict[str, Request] = {one.id: one for one in requests(folder, aside=True)}
    assert sum(item.truth is None for item in task.items) == 10
    for item in task.items:
        told = known[item.id].told
        assert task.score(item, told)[SCORE] == 1
        assert task.score(item, told.replace('"f', '"g'))[SCORE] == (item.truth is None)
        assert task.score(item, NO_CALL)[SCORE] == (item.truth is None)
        # To say nothing of use is no refusal.
        assert task.score(item, "I cannot tell.")[SCORE] == 0
        if item.truth is not None:
            assert task.score(item, f"{NO_CALL} {told}")[SCORE] == 0
        # The instruction has it in quotes.
        assert task.score(item, f'"{NO_CALL}"')[SCORE] == (item.truth is None)


def test_the_reviewer_is_asked_of_right_and_wrong_code_alike() -> None:
    task = reviewer_task(40, 1)
    wrong = [item for item in task.items if item.truth is not None]
    assert len(wrong) == 20
    assert len({item.id for item in task.items}) == 40
    for item in task.items:
        if item.truth is None:
            assert task.score(item, NO_ISSUE) == {SCORE: 1, "intact": 1}
            assert task.score(item, "Line 2: found `a`, should be `b`.")[SCORE] == 0
            continue
        line, fixed = item.truth["line"], item.truth["fixed"]
        assert task.score(item, f"Line {line}: found `x`.\n```python\n{fixed}\n```") == {SCORE: 1, "line": 1, "fix": 1}
        assert task.score(item, f"Line {line}: found `x`.\n```python\n{fixed}x\n```") == {SCORE: 0, "line": 1, "fix": 0}
        assert task.score(item, f"Line {line + 1}: found.\n```python\n{fixed}\n```")[SCORE] == 0
        assert task.score(item, f"{NO_ISSUE} Line {line}:\n```python\n{fixed}\n```")[SCORE] == 0


def test_the_coder_is_asked_for_what_training_did_not_see_and_its_code_is_run() -> None:
    from icarus_models.data.tasks import all_tasks

    task = coder_task(60, 1)
    assert len({item.messages[0]["content"] for item in task.items}) == 60
    known = {one.name: one for one in all_tasks()}
    assert all(held_out(item.truth["name"]) for item in task.items)
    for item in task.items[:6]:
        code = known[item.truth["name"]].code
        assert task.score(item, f"Here:\n```python\n{code}\n```\nDone.")[SCORE] == 1
        renamed = code.replace(f"def {item.truth['name']}(", "def another_name(")
        if item.truth["name"] not in renamed:
            assert task.score(item, f"```python\n{renamed}\n```")[SCORE] == 1
        stub = code.splitlines()[0] + "\n    return object()"
        assert task.score(item, f"```python\n{stub}\n```")[SCORE] == 0
        assert task.score(item, "I cannot.")[SCORE] == 0


def coder_scores(name: str, code: str) -> float:
    """Of code for the held-out task of that name."""
    task = next(task for task in split_sources(())[1].tasks if task.name == name)
    item = Item(name, (), {"name": name, "cases": expected(task)})
    return coder_task(1, 1).score(item, f"```python\n{code}\n```")[SCORE]


def test_every_held_out_task_has_several_cases_that_its_own_code_gets_right() -> None:
    for task in split_sources(())[1].tasks:
        cases = expected(task)
        assert len(cases) >= 3, task.name
        exec(f"{task.code}\n{checks(task.name, cases)}", {})


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("word_frequency", "from collections import Counter\ndef f(text):\n    return dict(Counter(text.split()))"),
        ("unique_words", "def f(text):\n    return list(dict.fromkeys(text.split()))"),
        ("common_keys", "def f(a, b):\n    return set(a) & set(b)"),
        ("common_keys", "def f(a, b):\n    return [key for key in b if key in a]"),
        ("square_area", "def f(side):\n    return float(side) ** 2"),
        ("filter_negative", "def f(numbers):\n    return tuple(n for n in numbers if n < 0)"),
        ("celsius_to_fahrenheit", "def f(c):\n    return c / 5 * 9 + 32"),
    ],
)
def test_what_means_the_same_is_right(name: str, code: str) -> None:
    assert coder_scores(name, code) == 1


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("shortest_word", "def f(text):\n    return min(text.split())"),
        ("common_keys", "def f(a, b):\n    return list(b)"),
        ("missing_number", "def f(numbers):\n    return len(numbers) // 2 + 1"),
        ("find_min", "def f(numbers):\n    return numbers[1]"),
        ("any_even", "def f(numbers):\n    return sum(n % 2 == 0 for n in numbers)"),
        ("flatten", "def f(items):\n    return items[0] + items[1]"),
        ("square_area", "def f(side):\n    return side * 3"),
        ("unique_words", "def f(text):\n    return text.split()"),
    ],
)
def test_what_gets_one_example_right_is_not(name: str, code: str) -> None:
    assert coder_scores(name, code) == 0


@pytest.mark.parametrize("fence", ["```python", "```python3", "```Python", "```", "``` py ", "   ```python"])
def test_code_stands_in_any_fence(fence: str) -> None:
    assert code_of(f"Here it is:\n\n{fence}\ndef f():\n    return 1\n```\nDone.").strip() == "def f():\n    return 1"
    assert code_of(f"{fence}\ndef f():\n    return 1") == "def f():\n    return 1"


@pytest.mark.parametrize(
    ("answer", "passed"),
    [
        (NO_ISSUE, True),
        ("There is no issue with this code. It adds two numbers.", True),
        ("There are no bugs.", True),
        ("The code is correct.", True),
        ("The code is not correct.", False),
        ("The bug is in the loop. There is no issue elsewhere.", False),
        ("Line 2: found `a`, should be `b`. No issue otherwise.", False),
        ("", False),
    ],
)
def test_a_review_lets_code_pass_in_its_own_words(answer: str, passed: bool) -> None:
    assert is_passed(answer) is passed


@pytest.mark.parametrize(
    ("worked", "hold"),
    [
        ("He has 5*0.5=2 left", False),
        ("She needs 49 / 14 = 3 trays", False),
        ("She needs 150 / 20 = 7.5 trays", True),
        ("It costs 3 * $1,200 = $3,600.\nSo $3,600 - $600 = $3,000.", True),
        ("It costs 3 * $1,200 = $3,500.", False),
        ("19 x 2 = 38 and 25% of 80 = 20", True),
        ("one third is 10 / 3 = 3.33", True),
        ("(2+3)*4=20", True),
        ("nothing to add", True),
    ],
)
def test_sums_of_a_worked_answer(worked: str, hold: bool) -> None:
    assert sums_hold(worked) is hold


def test_math_asks_nothing_whose_own_answer_is_wrong() -> None:
    pytest.importorskip("reasoning_gym")
    # Templates that cut halves off.
    asked = {item.id.split("-")[0] for item in load_task("math", 300).items}
    assert {"4", "75"} < asked
    known = {one.question: one for one in islice(problems([4, 75], Random("evaluation 1")), 300)}
    assert not all(sums_hold(one.worked) for one in known.values()), "nothing was there to leave out"


def human_eval(folder: Path) -> Path:
    row = {
        "task_id": "HumanEval/0",
        "prompt": 'from typing import List\n\n\ndef first(xs: List[int]) -> int:\n    """The first."""\n',
        "entry_point": "first",
        "canonical_solution": "    return xs[0]\n",
        "test": "def check(candidate):\n    assert candidate([3, 4]) == 3\n",
    }
    file = folder / "HumanEval.jsonl.gz"
    with gzip.open(file, "wt", encoding="utf-8") as lines:
        lines.write(json.dumps(row) + "\n")
    return file


@pytest.mark.parametrize(
    ("answer", "right"),
    [
        ("```python\ndef first(xs: List[int]) -> int:\n    return xs[0]\n```", 1),
        ("```python\n    return xs[0]\n```", 1),
        ("    return xs[0]", 1),
        ("```python\ndef first(xs):\n    return xs[1]\n```", 0),
        ("```python\ndef other(xs):\n    return xs[0]\n```", 0),
        ("no code", 0),
    ],
)
def test_human_eval_takes_whole_functions_and_what_goes_on(tmp_path: Path, answer: str, right: int) -> None:
    task = human_eval_task(5, human_eval(tmp_path))
    assert "def first" in task.items[0].messages[0]["content"]
    assert task.score(task.items[0], answer)[SCORE] == right


def test_what_a_task_lacks_is_told(tmp_path: Path) -> None:
    for name, part in (("tools", "--bfcl"), ("humaneval", "--human-eval")):
        with pytest.raises(IcarusError, match=part):
            load_task(name, 1)
    (tmp_path / "x.gz").write_bytes(b"none")
    with pytest.raises(IcarusError, match="not HumanEval"):
        load_task("humaneval", 1, human_eval=tmp_path / "x.gz")


def test_every_task_is_a_specialists() -> None:
    assert {specialist_of(task) for task in TASKS} == {"coder", "reviewer", "math", "tools"}
