"""Workflow files are read whole, or refused by file and key."""

from __future__ import annotations

from pathlib import Path

import pytest

from icarus_local.bench.measurement import cases
from icarus_local.bench.records import Case
from icarus_local.bench.script import Script
from icarus_local.bench.workflow import WorkflowError, read_workflow, shipped
from icarus_local.errors import RequestError

GOOD = """\
name = "mine"
agents = 2
contexts = [512]
[[turns]]
role = "writer"
hand_over = 4
answer = 8
"""


def refused(folder: Path, text: str) -> str:
    file = folder / "mine.toml"
    file.write_text(text, "utf-8")
    with pytest.raises(WorkflowError) as caught:
        read_workflow(str(file))
    message = str(caught.value)
    assert str(file) in message
    return message.replace(str(file), "")


def test_the_shipped_ones_fit_their_contexts_and_have_forty_warm_turns() -> None:
    assert shipped() == ["panel", "react", "reflexion", "rounds"]
    for name in shipped():
        workflow = read_workflow(name)
        assert workflow.name == name
        assert workflow.description
        for context in workflow.contexts:
            (case,) = cases(workflow, [], [context], [], None)
            assert (case.agents, case.answer_tokens, case.warm_turns) == (workflow.agents, None, 40)
            script = Script(workflow, case, 1000)
            assert script.n_warm_rounds * sum(len(step) for step in script.steps) >= 40
            assert all(share.n_answer == 32 for step in script.steps for share in step)
    assert read_workflow("rounds").contexts == (1024, 4096, 8192)


def test_a_file_of_ones_own(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(GOOD, "utf-8")
    workflow = read_workflow(str(tmp_path / "mine.toml"))
    assert (workflow.name, workflow.agents, workflow.turns[0].answer) == ("mine", 2, 8)


def test_what_names_a_workflow_and_what_does_not(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(GOOD, "utf-8")
    (tmp_path / "other.toml").write_text(GOOD.replace("answer = 8", "answer = 9"), "utf-8")
    (tmp_path / "words.toml").write_text('description = "x"\n' + GOOD.replace("agents = 2", "agents = 3"), "utf-8")
    mine, other, words = (read_workflow(str(tmp_path / f"{name}.toml")) for name in ("mine", "other", "words"))
    assert mine.sha256 != other.sha256
    # How many agents there are is the case's, and what people read changes no figure.
    assert mine.sha256 == words.sha256


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (GOOD.replace("answer = 8", "answer = 0"), "key turns.0.answer"),
        (GOOD.replace("answer = 8", 'answer = "8"'), "key turns.0.answer"),
        (GOOD.replace("answer = 8", "answer = 8\ntokens = 3"), "key turns.0.tokens"),
        (GOOD.replace("hand_over = 4\n", ""), "key turns.0.hand_over"),
        (GOOD.replace("agents = 2", "agents = 65"), "key agents"),
        (GOOD.replace("agents = 2", "agents = 2\nspeed = 1"), "key speed"),
        (GOOD.replace('name = "mine"', 'name = "My workflow"'), "key name"),
        (GOOD.partition("[[turns]]")[0], "key turns"),
        (GOOD.replace("hand_over = 4", "hand_over = 4\nspeaker = 0"), "each of the 2 agents"),
        (GOOD.replace("agents = 2", "agents = 1\nat_once = true") + "speaker = 0\n", "leave speaker out"),
        (GOOD + "speaker = 0\n" + "[[turns]]" + GOOD.partition("[[turns]]")[2], "at some turns only"),
        ("name = ", "no TOML"),
    ],
)
def test_what_is_wrong_is_named_with_its_key(tmp_path: Path, text: str, words: str) -> None:
    assert words in refused(tmp_path, text)


def test_a_name_that_is_none_says_which_there_are() -> None:
    with pytest.raises(WorkflowError, match=r"there is no workflow chess.*panel, react, reflexion, rounds"):
        read_workflow("chess")


def test_a_file_too_large_or_not_text_is_refused(tmp_path: Path) -> None:
    assert "larger than" in refused(tmp_path, "#" * (1 << 20) + "\n")
    (tmp_path / "mine.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(WorkflowError, match="no TOML"):
        read_workflow(str(tmp_path / "mine.toml"))


def test_a_context_that_holds_no_two_rounds_is_refused_with_what_it_takes() -> None:
    case = Case(workflow="rounds", agents=8, context=768, answer_tokens=None, warm_turns=40)
    with pytest.raises(RequestError, match="768 tokens does not hold two rounds of rounds, which have 384 tokens each"):
        Script(read_workflow("rounds"), case, 1000)
    assert Script(read_workflow("rounds"), case.model_copy(update={"context": 769}), 1000).n_shared == 1


def test_another_number_of_agents_than_the_speakers_is_refused(tmp_path: Path) -> None:
    text = GOOD + "speaker = 0\n" + "[[turns]]" + GOOD.partition("[[turns]]")[2] + "speaker = 1\n"
    (tmp_path / "mine.toml").write_text(text, "utf-8")
    workflow = read_workflow(str(tmp_path / "mine.toml"))
    case = Case(workflow="mine", agents=2, context=512, answer_tokens=None, warm_turns=40)
    assert len(Script(workflow, case, 100).steps) == 2
    with pytest.raises(RequestError, match="it has 2 agents, not 3"):
        Script(workflow, case.model_copy(update={"agents": 3}), 100)
