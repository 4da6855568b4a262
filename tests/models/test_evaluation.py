"""Evaluation on GGUF: each system computes its own function, answers are kept, a killed evaluation goes on."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from peft import PeftModel

from icarus_convert.write import convert_adapter
from icarus_local.errors import AdapterError, IcarusError
from icarus_local.text.tokenizer import Tokenizer
from icarus_models.base import load_base
from icarus_models.cli import main
from icarus_models.data.shape import user
from icarus_models.evaluation import evaluate as module
from icarus_models.evaluation.adapters import ordinary_gguf, ready, trained
from icarus_models.evaluation.evaluate import Place, evaluate, read_scores
from icarus_models.evaluation.items import Item, Scores, Task, with_score
from icarus_models.evaluation.systems import SystemName, opened
from icarus_models.reference import base_logits, ordinary_logits, two_stream_logits
from icarus_models.specialists import specialist
from icarus_models.training import train
from tests.tiny import CHATML, tiny_llama

from .conftest import Toy

PROMPT = [1, 40, 41, 90, 17, 200, 3, 60, 8, 9, 33, 120]


def quiet(line: str) -> None:
    pass


def adapter_of(toy: Toy, system: SystemName) -> Path | None:
    if system == "base":
        return None
    # Trained so far that every system says something else.
    return train(toy.recipe(system, method=system, learning_rate=0.05), toy.base, quiet)


def greedy(model: PeftModel, logits_of: Callable[..., torch.Tensor], n: int, end: set[int]) -> list[int]:
    ids, said = list(PROMPT), list[int]()
    while len(said) < n:
        tensor = torch.tensor([ids])
        with torch.no_grad():
            token = int(logits_of(model, tensor, torch.ones_like(tensor))[0, -1].argmax())
        if token in end:
            break
        said.append(token)
        ids.append(token)
    return said


@pytest.mark.parametrize("system", ["base", "icarus", "lora"])
def test_each_system_says_what_torch_says(toy: Toy, system: SystemName) -> None:
    folder = adapter_of(toy, system)
    model = load_base(toy.base)
    like: Any = PeftModel.from_pretrained(model, str(folder)) if folder else None
    wanted = {"base": base_logits, "icarus": two_stream_logits, "lora": ordinary_logits}[system]
    with closing(Tokenizer(toy.base)) as tokenizer:
        ends = {token for token in range(tokenizer.n_vocab) if tokenizer.is_end_of_generation(token)}
        with (
            ready(system, trained(folder) if folder else None, toy.base) as adapter,
            opened(system, toy.base, tokenizer, adapter, 64) as answering,
        ):
            said = answering.answer(PROMPT, 12)
            assert answering.answer(PROMPT, 12) == said, "the first answer was left in the cache"
            assert answering.answer(PROMPT, 3) == said[:3]
    if like is None:
        from icarus_models.reference import add_lora

        like = add_lora(model, 4, 8.0, 0)
    assert said == greedy(like.eval(), wanted, 12, ends)
    other = {"base": [], "icarus": [ordinary_logits, base_logits], "lora": [two_stream_logits, base_logits]}[system]
    assert all(said != greedy(like, how, 12, ends) for how in other), "the systems would pass for each other"


def task(n: int = 5) -> Task:
    def score(item: Item, answer: str) -> Scores:
        return with_score(len(answer) % 2 == item.truth, even=len(answer) % 2 == 0)

    items = tuple(Item(f"i{i}", (user(f"question {i}"),), i % 2) for i in range(n))
    return Task("toy", specialist("math").model_copy(update={"max_tokens": 6}), items, score)


class Counting:
    """A system that says a token for each prompt, and dies after so many."""

    def __init__(self, dies_after: int | None) -> None:
        self.dies_after, self.prompts = dies_after, list[list[int]]()

    def answer(self, prompt: Sequence[int], max_tokens: int) -> list[int]:
        if self.dies_after == len(self.prompts):
            raise KeyboardInterrupt
        self.prompts.append(list(prompt))
        return [40 + len(prompt) % 50] * (max_tokens - 1)


@pytest.fixture
def counting(monkeypatch: pytest.MonkeyPatch) -> Counting:
    from contextlib import nullcontext

    system = Counting(None)
    monkeypatch.setattr(module, "opened", lambda *_: nullcontext(system))
    return system


def test_a_killed_evaluation_goes_on(toy: Toy, counting: Counting) -> None:
    place = Place(toy.base, toy.folder / "results")
    counting.dies_after = 3
    with pytest.raises(KeyboardInterrupt):
        evaluate(task(), "base", None, place, quiet)
    (file,) = place.folder.glob("*.jsonl")
    assert len(file.read_text("utf-8").splitlines()) == 4
    # It may have died within a line.
    whole = file.read_bytes()
    file.write_bytes(whole[:-4])
    counting.dies_after = None
    told: list[str] = []
    scores = json.loads(evaluate(task(), "base", None, place, told.append).read_text("utf-8"))
    assert len(counting.prompts) == 3 + 3
    assert [one["id"] for one in scores["items"]] == [f"i{i}" for i in range(5)]
    assert file.read_bytes().startswith(whole)
    assert any("toy, base:" in line and "of 5" in line for line in told)
    evaluate(task(), "base", None, place, quiet)
    assert len(counting.prompts) == 6, "what was answered was asked again"
    assert [of["task"] for of in read_scores(place.folder)] == ["toy"]


def test_what_answers_depend_on_makes_other_answers(
    toy: Toy, counting: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Place(toy.base, toy.folder / "results")

    def asked_anew(some: Task, system: SystemName = "base", adapter: Path | None = None) -> bool:
        before = len(counting.prompts)
        evaluate(some, system, adapter, place, quiet)
        return len(counting.prompts) > before

    assert asked_anew(task())
    assert not asked_anew(task())
    assert asked_anew(task(6))
    assert len(counting.prompts) == 6, "what was answered was asked again among more questions"
    assert not asked_anew(task(2))
    changed = task()
    assert asked_anew(Task("toy", changed.agent.model_copy(update={"max_tokens": 7}), changed.items, changed.score))
    # How answers are scored is no part of what they are.
    assert not asked_anew(Task("toy", changed.agent, changed.items, lambda item, answer: with_score(True)))
    one, other = (train(toy.recipe(f"{n}", max_steps=n), toy.base, quiet) for n in (1, 2))
    assert asked_anew(task(), "icarus", one)
    assert asked_anew(task(), "icarus", other)
    monkeypatch.setattr("icarus_models.evaluation.answers.VERSION", 0)
    assert asked_anew(task())


def test_the_prompt_is_a_chats(toy: Toy, counting: Counting) -> None:
    evaluate(task(1), "base", None, Place(toy.base, toy.folder / "results"), quiet)
    with closing(Tokenizer(toy.base)) as tokenizer:
        text = tokenizer.decode(counting.prompts[0])
    assert f"question 0\n\n{specialist('math').instruction}" in text
    assert text.rstrip().endswith("assistant")


def test_damaged_answers_are_told(toy: Toy, counting: Counting) -> None:
    place = Place(toy.base, toy.folder / "results")
    evaluate(task(), "base", None, place, quiet)
    (file,) = place.folder.glob("*.jsonl")
    file.write_text("[]\n", encoding="utf-8")
    with pytest.raises(IcarusError, match="no answers to go on with"):
        evaluate(task(), "base", None, place, quiet)


def test_wrong_adapters_are_refused(toy: Toy) -> None:
    place = Place(toy.base, toy.folder / "results")
    icarus, lora = (train(toy.recipe(m, method=m, max_steps=1), toy.base, quiet) for m in ("icarus", "lora"))
    with pytest.raises(AdapterError, match="ordinary way"):
        evaluate(task(), "icarus", lora, place, quiet)
    with pytest.raises(AdapterError, match="trained is icarus"):
        evaluate(task(), "lora", icarus, place, quiet)
    with pytest.raises(IcarusError, match="needs an adapter"):
        evaluate(task(), "icarus", None, place, quiet)
    with pytest.raises(IcarusError, match="base has an adapter"):
        evaluate(task(), "base", icarus, place, quiet)
    with pytest.raises(AdapterError, match="cannot be read"):
        evaluate(task(), "lora", toy.folder, place, quiet)


def test_an_icarus_file_is_no_ordinary_lora(toy: Toy) -> None:
    place = Place(toy.base, toy.folder / "results")
    icarus, lora = (train(toy.recipe(m, method=m, max_steps=1), toy.base, quiet) for m in ("icarus", "lora"))
    of_icarus, of_lora = toy.folder / "coder.gguf", toy.folder / "ordinary.gguf"
    convert_adapter(icarus, toy.base, of_icarus)
    with pytest.raises(AdapterError, match=r"coder\.gguf is an ICaRus adapter"):
        evaluate(task(), "lora", of_icarus, place, quiet)
    convert_adapter(lora, toy.base, of_icarus, assume_icarus=True, force=True)
    with pytest.raises(AdapterError, match=r"coder\.gguf is assumed to be an ICaRus adapter"):
        evaluate(task(), "lora", of_icarus, place, quiet)
    ordinary_gguf(lora, toy.base, of_lora)
    assert evaluate(task(), "lora", of_lora, place, quiet).is_file()


def test_an_evaluation_asks_the_same_on_every_day(tmp_path: Path, counting: Counting) -> None:
    base = tiny_llama(tmp_path, name="dated", template="{{ strftime_now('%d %b %Y') }}" + CHATML).path
    evaluate(task(1), "base", None, Place(base, tmp_path / "results"), quiet)
    with closing(Tokenizer(base)) as tokenizer:
        assert tokenizer.decode(counting.prompts[0]).startswith("26 Jul 2024")


def test_the_command_asks_for_what_it_needs() -> None:
    result = CliRunner().invoke(main, ["eval"])
    assert result.exit_code == 1
    assert "--task" in result.output
    assert "--table" in result.output


def test_the_command_evaluates(toy: Toy) -> None:
    given = ["--base", str(toy.base), "--results", str(toy.folder / "results"), "--items", "2"]
    result = CliRunner().invoke(main, ["eval", "--task", "reviewer", "--system", "base", *given])
    assert result.exit_code == 0, result.output
    assert "reviewer, base: 2 of 2 answered" in result.output
    (of,) = read_scores(toy.folder / "results")
    assert len(of["items"]) == 2
