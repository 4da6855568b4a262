"""Distillation: an ordinary LoRA's answers and distributions make an ICaRus adapter, and what it keeps is measured."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from icarus_local.errors import AdapterError, IcarusError
from icarus_local.text.template import own_template
from icarus_local.text.tokenizer import Tokenizer
from icarus_models.base import load_base, sharing, with_adapter
from icarus_models.records import Renderer
from icarus_models.run_files import RUN_FILE
from icarus_models.teacher import answer_prompts
from icarus_models.training import train

from .conftest import Toy


def quiet(line: str) -> None:
    pass


@pytest.fixture
def teacher(toy: Toy) -> Path:
    """An ordinary LoRA, K and V and all, that has learnt the toy's data."""
    modules = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
    return train(toy.recipe("teacher", method="lora", modules=modules, max_steps=30), toy.base, quiet)


def prompts(toy: Toy) -> Path:
    path = toy.folder / "prompts.jsonl"
    lines = [*(json.dumps({"prompt": f"q{i}"}) for i in range(6)), "{", json.dumps({"prompt": "q", "answer": "kept"})]
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def test_a_student_learns_what_its_teacher_says(toy: Toy, teacher: Path) -> None:
    told: list[str] = []
    recipe = toy.recipe("student", data=prompts(toy), teacher=teacher, max_steps=30, learning_rate=0.01)
    adapter = train(recipe, toy.base, told.append)
    found = json.loads((adapter / RUN_FILE).read_text(encoding="utf-8"))
    losses = found["losses"]
    assert losses["heldout_teacher"] < losses["heldout_base"]
    gain = losses["heldout_base"] - losses["heldout_teacher"]
    assert losses["gain_kept"] == pytest.approx((losses["heldout_base"] - losses["heldout_trained"]) / gain)
    assert losses["gain_kept"] > 0.5
    assert found["method"] == "icarus"
    assert len(found["data_sha256"]["teacher"]) == 64
    assert "by distillation" in (adapter / "README.md").read_text("utf-8")
    assert any("line 7: not JSON" in line for line in told)
    assert any("of the teacher's gain" in line for line in told)


def test_answers_are_the_teachers_and_a_killed_run_goes_on(toy: Toy, teacher: Path) -> None:
    model = with_adapter(load_base(toy.base), teacher)
    tokenizer = Tokenizer(toy.base)
    try:
        renderer = Renderer(tokenizer, own_template(tokenizer.template_source, tokenizer), [], "coder")
        out = toy.folder / "answers.jsonl"
        answer_prompts(prompts(toy), out, teacher=model, renderer=renderer, max_tokens=200, tell=quiet)
        whole = out.read_text("utf-8")
        records = [json.loads(line) for line in whole.splitlines() if line != "{"]
        assert records[-1] == {"prompt": "q", "answer": "kept"}
        sample = renderer.sample(records[0])
        ids = torch.tensor([sample.ids])
        with torch.no_grad():
            logits = model(input_ids=ids, use_cache=False).logits[0]
        # The whole context at once finds the same tokens as one after another, as far as text gives its ids back.
        assert [int(logits[place].argmax()) for place in sample.positions[:3]] == sample.labels[:3]
        lines = whole.splitlines(keepends=True)
        mark = json.dumps({"prompt": "q0", "answer": "was here before"}) + "\n"
        out.write_text(mark + "".join(lines[1:3]) + lines[3][:9], encoding="utf-8")
        answer_prompts(prompts(toy), out, teacher=model, renderer=renderer, max_tokens=200, tell=quiet)
        assert out.read_text("utf-8") == mark + "".join(lines[1:])
    finally:
        tokenizer.close()


def test_teacher_and_student_share_the_bases_weights(toy: Toy, teacher: Path) -> None:
    base = load_base(toy.base)
    other = sharing(base)
    assert all(a is b for a, b in zip(base.parameters(), other.parameters(), strict=True))
    model = with_adapter(base, teacher)
    assert not any(parameter.requires_grad for parameter in model.parameters())
    assert not any("lora" in name for name, _ in base.named_parameters()), "the student's modules were changed"


def test_a_teacher_that_is_none_is_refused(toy: Toy) -> None:
    with pytest.raises(AdapterError, match="holds no adapter_model"):
        train(toy.recipe(teacher=toy.folder), toy.base, quiet)
    with pytest.raises(AdapterError, match="PEFT cannot load it"):
        with_adapter(load_base(toy.base), toy.folder)
    with pytest.raises(IcarusError):
        train(toy.recipe(data=toy.folder / "absent.jsonl"), toy.base, quiet)
