"""The shipped agents' data: right answers are right, planted bugs are bugs, and nothing held out is trained on."""

from __future__ import annotations

import ast
import random
import re
from collections.abc import Iterator

import pytest

from icarus_models.data import build as build_module
from icarus_models.data.build import NO_ISSUE, Record, build, killed_mutants, split_sources
from icarus_models.data.general import QUESTIONS, whole_sentences
from icarus_models.data.mutations import mutants
from icarus_models.data.phrases import infinitive
from icarus_models.data.stdlib import functions
from icarus_models.data.tasks import all_tasks, renamed, right

GENERAL = [(question, "An answer.") for question in QUESTIONS]


def short(record: Record) -> bool:
    return len(repr(record)) < 1500


def test_every_task_is_right_and_has_examples() -> None:
    tasks = all_tasks()
    assert len(tasks) > 250
    assert len({task.name for task in tasks}) == len(tasks)
    for task in tasks:
        assert task.examples, task.name
        assert all(task.says), task.name
        assert right(task.code, task), task.name
        assert '"""' not in task.code, task.name
        assert len(task.code.splitlines()) <= 20, task.name


def test_renamed_tasks_stay_right() -> None:
    rng = random.Random(0)
    for task in all_tasks():
        for _ in range(3):
            _, code = build_module._exercise(task, rng)
            assert right(code, task), code
    assert renamed("def f(n):\n    return a.n + n  # n", {"n": "x"}) == "def f(x):\n    return a.n + x  # n"


def test_a_mutant_says_where_and_what_it_is() -> None:
    kinds = set()
    for task in all_tasks():
        for bug in mutants(task.code):
            line = bug.code.splitlines()[bug.line - 1]
            assert bug.found in line
            assert line != bug.fixed
            lines = bug.code.splitlines()
            lines[bug.line - 1] = bug.fixed
            assert "\n".join(lines) == task.code.rstrip()
            assert bug.should in bug.fixed
            kinds.add(bug.kind)
    assert {"comparison", "and/or", "operator", "off by one", "dropped return", "wrong start"} <= kinds


def test_mutants_cover_loops_and_membership() -> None:
    code = "def f(a):\n    for x in a:\n        if x not in a:\n            break\n    return a"
    found = {bug.found for bug in mutants(code)}
    assert {"continue", "x in a", "a"} <= found


def test_only_mutants_that_fail_are_kept() -> None:
    endless = next(task for task in all_tasks() if task.name == "gcd")
    assert killed_mutants(endless)
    for task in all_tasks()[:20]:
        for bug in killed_mutants(task):
            assert bug.code != task.code


def test_library_functions_are_split_by_module() -> None:
    train, heldout = split_sources(GENERAL)
    assert {f.module for f in train.functions}.isdisjoint(f.module for f in heldout.functions)
    assert {t.name for t in train.tasks}.isdisjoint(t.name for t in heldout.tasks)
    assert {q for q, _ in train.general}.isdisjoint(q for q, _ in heldout.general)
    assert len(heldout.tasks) > 15
    assert len(heldout.functions) > 50
    assert heldout.general


def test_library_functions_are_short_and_parse() -> None:
    some = functions()
    assert len(some) > 500
    for function in some[::10]:
        ast.parse(function.code)
        assert "self" not in function.head.split("(")[1]


@pytest.mark.parametrize("agent", ["coder", "reviewer"])
def test_records_are_seeded_and_distinct(agent: str) -> None:
    split = build(agent, GENERAL, (200, 40), 1, short)
    again = build(agent, GENERAL, (200, 40), 1, short)
    assert split == again != build(agent, GENERAL, (200, 40), 2, short)
    assert len(split.train) == 200
    assert len(split.heldout) == 40
    assert not {repr(r) for r in split.train} & {repr(r) for r in split.heldout}
    for record in split.train:
        assert record["messages"][0]["role"] == "user"
        assert record["messages"][-1]["agent"] == agent


def answers(agent: str) -> Iterator[str]:
    for record in build(agent, GENERAL, (200, 40), 1, short).train:
        yield record["messages"][-1]["content"]


def test_the_reviewer_has_one_form_and_a_third_is_intact() -> None:
    form = re.compile(r"Line \d+: found `[^`\n]+`, should be `[^`\n]+`\.\n```python\n[^\n]+\n```")
    given = [answer for answer in answers("reviewer") if answer != "An answer."]
    intact = [answer for answer in given if answer == NO_ISSUE]
    assert all(form.fullmatch(answer) for answer in given if answer != NO_ISSUE)
    assert 0.25 < len(intact) / len(given) < 0.45


def test_the_coder_answers_with_one_block_that_parses() -> None:
    for answer in answers("coder"):
        if answer != "An answer.":
            assert answer.startswith("```python\n")
            assert answer.endswith("\n```")
            ast.parse(answer[10:-4])


def test_phrases() -> None:
    assert infinitive("checks if a word is long") == "check if a word is long"
    assert infinitive("multiplies and adds") == "multiply and add"
    assert infinitive("removes duplicates from a list and keeps the order").endswith("and keep the order")
    assert whole_sentences("One. Two. Thr", cut=True) == "One. Two."
    assert whole_sentences("1. first", cut=True) == ""
