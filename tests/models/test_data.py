"""The shipped agents' data: right answers are right, planted bugs are bugs, and nothing held out is trained on."""

from __future__ import annotations

import ast
import json
import random
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from icarus_local.errors import IcarusError
from icarus_models.data import calls as calls_module
from icarus_models.data.arithmetic import Problem, problem, templates
from icarus_models.data.build import Ingredients, build
from icarus_models.data.calls import NO_CALL, requests
from icarus_models.data.general import QUESTIONS, whole_sentences
from icarus_models.data.mutations import mutants
from icarus_models.data.phrases import infinitive
from icarus_models.data.reviewer import NO_ISSUE, reviewer_records
from icarus_models.data.shape import Record, distinct
from icarus_models.data.sources import exercise, killed_mutants, split_sources
from icarus_models.data.stdlib import functions
from icarus_models.data.tasks import all_tasks, renamed, right

GENERAL = [(question, "An answer.") for question in QUESTIONS]
INGREDIENTS = Ingredients(GENERAL)


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
            _, code = exercise(task, rng)
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
    split = build(agent, INGREDIENTS, (200, 40), 1, short)
    again = build(agent, INGREDIENTS, (200, 40), 1, short)
    assert split == again != build(agent, INGREDIENTS, (200, 40), 2, short)
    assert len(split.train) == 200
    assert len(split.heldout) == 40
    assert not {repr(r) for r in split.train} & {repr(r) for r in split.heldout}
    for record in split.train:
        assert record["messages"][0]["role"] == "user"
        assert record["messages"][-1]["agent"] == agent


def answers(agent: str) -> Iterator[str]:
    for record in build(agent, INGREDIENTS, (200, 40), 1, short).train:
        yield record["messages"][-1]["content"]


def test_the_reviewer_has_one_form_and_a_third_is_intact() -> None:
    form = re.compile(r"Line \d+: found `[^`\n]+`, should be `[^`\n]+`\.\n```python\n[^\n]+\n```")
    given = [answer for answer in answers("reviewer") if answer != "An answer."]
    intact = [answer for answer in given if answer == NO_ISSUE]
    assert all(form.fullmatch(answer) for answer in given if answer != NO_ISSUE)
    assert 0.25 < len(intact) / len(given) < 0.45


def test_pairs_show_every_function_right_and_wrong_in_the_same_words() -> None:
    train, heldout = split_sources(GENERAL)
    for sources in (train, heldout):
        groups = reviewer_records(sources, random.Random(3), pairs=True)
        for good, wrong in (next(groups) for _ in range(40)):
            *before, answer = good["messages"]
            *before_wrong, answer_wrong = wrong["messages"]
            assert answer["content"] == NO_ISSUE != answer_wrong["content"]
            assert len(before) == len(before_wrong)
            # One line of all that was said is another, and it is the one that the answer names.
            texts = ["\n".join(message["content"] for message in messages) for messages in (before, before_wrong)]
            lines = [text.splitlines() for text in texts]
            other = [i for i, (a, b) in enumerate(zip(*lines, strict=True)) if a != b]
            assert len(other) == 1
            start = lines[0].index("```python", 0 if len(before) == 1 else len(before[0]["content"].splitlines()))
            assert other[0] - start == int(answer_wrong["content"].split()[1].rstrip(":"))
    answers = [record["messages"][-1]["content"] for record in built_in_pairs()]
    assert answers.count(NO_ISSUE) == sum(answer.startswith("Line ") for answer in answers)


def built_in_pairs() -> list[Record]:
    # An even number of records is left for pairs.
    return build("reviewer", Ingredients(GENERAL[:2], pairs=True), (102, 20), 1, short).train


def test_a_pair_comes_whole_or_not_at_all() -> None:
    pairs = iter([({"a": 1}, {"b": 1}), ({"a": 2}, {"long": 2}), ({"a": 1}, {"b": 3}), ({"a": 4}, {"b": 4})])
    chosen = distinct(pairs, lambda record: "long" not in record, 4, random.Random(0))
    assert sorted(map(repr, chosen)) == sorted(map(repr, [{"a": 1}, {"b": 1}, {"a": 4}, {"b": 4}]))
    with pytest.raises(IcarusError, match="only 0 of 1"):
        distinct(iter([]), short, 1, random.Random(0))


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


# -- math --------------------------------------------------------------------------------------------------------------


def test_math_holds_templates_out_whole() -> None:
    pytest.importorskip("reasoning_gym")
    train, aside = templates(aside=False), templates(aside=True)
    assert set(train).isdisjoint(aside)
    assert len(train) > 4 * len(aside) > 20
    split = build("math", INGREDIENTS, (60, 20), 1, lambda record: True)
    questions = {record["messages"][0]["content"] for record in split.heldout}
    made = {problem(index, random.Random(f"{seed}")).question for index in aside for seed in range(3)}
    # Questions of one template share more than half of their words.
    for question in questions - {asked for asked, _ in GENERAL}:
        assert max(len(set(question.split()) & set(other.split())) / len(set(question.split())) for other in made) > 0.5
    for record in split.train:
        answer = record["messages"][-1]["content"]
        assert answer == "An answer." or re.fullmatch(r".+\nAnswer: -?[\d.]+", answer, re.DOTALL)
        assert "####" not in answer


def test_a_worked_answer_ends_with_the_number() -> None:
    assert Problem(3, "q", "2 + 2 = 4", "4").told == "2 + 2 = 4\nAnswer: 4"


def test_without_reasoning_gym_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    from icarus_models.data import arithmetic

    monkeypatch.setitem(sys.modules, "reasoning_gym.arithmetic.gsm_symbolic.gsm_symbolic", None)
    arithmetic._generators.cache_clear()
    try:
        with pytest.raises(IcarusError, match=r"icarus-local\[data\]"):
            build("math", INGREDIENTS, (80, 2), 0, short)
    finally:
        arithmetic._generators.cache_clear()


# -- tools -------------------------------------------------------------------------------------------------------------


def function(name: str, *parameters: str) -> dict[str, Any]:
    properties = {parameter: {"type": "integer"} for parameter in parameters}
    kinds = {"type": "dict", "properties": properties, "required": [*parameters][:1]}
    return {"name": name, "description": f"Does\n{name}.", "parameters": kinds}


def write_bfcl(folder: Path, n: int = 40) -> Path:
    """A folder as bfcl-eval's wheel unpacks to: every function belongs to two questions and one refusal."""
    data = folder / "bfcl_eval" / "data"
    (data / "possible_answer").mkdir(parents=True)
    rows: dict[str, list[dict[str, Any]]] = {
        kind: [] for kind in (*calls_module._WITH_ANSWERS, *calls_module._TO_DECLINE)
    }
    answers: dict[str, list[dict[str, Any]]] = {kind: [] for kind in calls_module._WITH_ANSWERS}
    for i in range(n):
        one, two = function(f"f{i}", "a", "b"), function(f"g{i}", "a")
        for kind, offered in (("simple_python", [one]), ("multiple", [two, one])):
            asked = [[{"role": "user", "content": f"{kind} {i}?"}]]
            rows[kind].append({"id": f"{kind}_{i}", "question": asked, "function": offered})
            truth = [{f"f{i}": {"a": [i, f"{i}"], "b": [1, ""]}}]
            answers[kind].append({"id": f"{kind}_{i}", "ground_truth": truth})
        refused = [[{"role": "user", "content": f"Who are you, {i}?"}]]
        rows["irrelevance"].append({"id": f"irrelevance_{i}", "question": refused, "function": [two]})
    system = [[{"role": "system", "content": "s"}, {"role": "user", "content": "q"}]]
    rows["irrelevance"].append({"id": "with a system prompt", "question": system, "function": [function("h")]})
    for kind, content in rows.items():
        (data / f"BFCL_v4_{kind}.json").write_text("\n".join(map(json.dumps, content)), encoding="utf-8")
    for kind, content in answers.items():
        file = data / "possible_answer" / f"BFCL_v4_{kind}.json"
        file.write_text("\n".join(map(json.dumps, content)), encoding="utf-8")
    return folder


def test_tools_hold_functions_out_with_all_that_they_are_offered_with(tmp_path: Path) -> None:
    folder = write_bfcl(tmp_path)
    sides = [requests(folder, aside) for aside in (False, True)]
    names = [{function["name"] for one in side for function in one.functions} for side in sides]
    assert names[0].isdisjoint(names[1])
    assert len(sides[0]) + len(sides[1]) == 120
    assert all(20 < len(side) < 100 for side in sides)


def test_tools_records_call_or_decline(tmp_path: Path) -> None:
    folder = write_bfcl(tmp_path)
    split = build("tools", Ingredients(GENERAL, folder), (40, 20), 1, short)
    said = [record["messages"] for record in split.train if record["messages"][-1]["content"] != "An answer."]
    for question, answer in said:
        assert question["content"].startswith("Functions:\n")
        if answer["content"] != NO_CALL:
            call = json.loads(answer["content"])
            number = int(call["name"][1:])
            # An argument that may be missing is left out.
            assert call == {"name": f"f{number}", "arguments": {"a": number}}
            assert f"f{number}(a: integer, b?: integer) - Does f{number}." in question["content"]
    assert {answer["content"] == NO_CALL for _, answer in said} == {True, False}


def test_a_wheel_is_read_as_it_is_and_another_file_refused(tmp_path: Path) -> None:
    folder = write_bfcl(tmp_path / "unpacked")
    wheel = Path(shutil.make_archive(str(tmp_path / "bfcl"), "zip", folder))
    assert [one.id for one in requests(wheel, False)] == [one.id for one in requests(folder, False)]
    other = tmp_path / "other.whl"
    other.write_bytes(b"no zip")
    for path in (other, tmp_path / "absent"):
        with pytest.raises(IcarusError, match="not bfcl-eval's wheel"):
            requests(path, False)
    with pytest.raises(IcarusError, match="--bfcl"):
        requests(None, False)
