"""Records: what is supervised, what is refused, and the order of a run's batches."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, ClassVar

import pytest

from icarus_local.chat.agents import Agent
from icarus_local.errors import IcarusError
from icarus_local.text.template import FALLBACK_SOURCE, ChatTemplate
from icarus_models.records import Renderer, plan_batches, read_samples

CODER = Agent(name="coder", instruction="Reply as coder.")
REVIEWER = Agent(name="reviewer", instruction="Reply as reviewer.")
END = 257


class Bytes:
    """A tokenizer whose ids are bytes; 256 and 257 are the control tokens of ChatML."""

    controls: ClassVar[dict[str, int]] = {"<|im_start|>": 256, "<|im_end|>": END}
    user_defined: ClassVar[list[str]] = []
    bos, eos = None, END

    def encode(self, text: str) -> list[int]:
        return list(text.encode())

    def token_text(self, token: int | None) -> str:
        return ""


def renderer(speaker: str) -> Renderer:
    tokenizer: Any = Bytes()
    return Renderer(tokenizer, ChatTemplate(FALLBACK_SOURCE, tokenizer), [CODER, REVIEWER], speaker)


def text(ids: list[int]) -> str:
    return "".join({256: "<", END: ">"}.get(token, chr(token)) for token in ids)


TWO = {
    "messages": [
        {"role": "user", "content": "q"},
        {"role": "assistant", "agent": "coder", "content": "answer"},
        {"role": "assistant", "agent": "reviewer", "content": "review"},
    ]
}


@pytest.mark.parametrize(("speaker", "learned"), [("coder", "answer>"), ("reviewer", "review>")])
def test_only_the_agents_own_answer_is_supervised(speaker: str, learned: str) -> None:
    sample = renderer(speaker).sample(TWO)
    assert text(sample.labels) == learned
    for position, label in zip(sample.positions[:-1], sample.labels[:-1], strict=True):
        assert sample.ids[position + 1] == label
    assert text(sample.ids[: sample.positions[0] + 1]).endswith("<assistant\n")
    assert len(sample.ids) == sample.positions[-1] + 1  # nothing after the last row is read


def test_the_instruction_stands_at_the_agents_turn() -> None:
    shown = text(renderer("reviewer").sample(TWO).ids)
    assert "<user\nq\n\nReply as coder.>" in shown
    assert "answer>\n<user\nReply as reviewer.>" in shown


def test_weight_zero_is_context() -> None:
    record = json.loads(json.dumps(TWO))
    record["messages"][1]["weight"] = 0
    with pytest.raises(ValueError, match="no answer of coder"):
        renderer("coder").sample(record)


def test_a_record_without_agents_is_the_speakers() -> None:
    record = {"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "yes"}]}
    assert text(renderer("poet").sample(record).labels) == "yes>"


def test_control_tokens_in_data_stay_text() -> None:
    record = {"messages": [{"role": "user", "content": "<|im_end|>"}, {"role": "assistant", "content": "<|im_end|>"}]}
    sample = renderer("coder").sample(record)
    assert sample.labels.count(END) == 1
    assert sample.ids.count(END) == 2


def test_bad_lines_are_counted_and_named(tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl"
    bad = ["{", "[]", '{"messages": []}', '{"messages": [{"role": "tool", "content": "x"}]}', '{"messages": "x"}']
    path.write_text("\n".join([*bad, "", json.dumps(TWO)]), encoding="utf-8")
    loaded = read_samples(path, renderer("coder"), 1000)
    assert [number for number, _ in loaded.bad] == [1, 2, 3, 4, 5]
    assert len(loaded.samples) == 1


def test_nothing_left_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl"
    path.write_text(json.dumps(TWO), encoding="utf-8")
    with pytest.raises(IcarusError, match="1 over 10 tokens"):
        read_samples(path, renderer("coder"), 10)
    path.write_bytes(b"\xff\n")
    with pytest.raises(IcarusError, match="cannot be read"):
        read_samples(path, renderer("coder"), 10)


def test_the_plan_is_seeded_and_sees_every_sample_once_an_epoch() -> None:
    lengths = [(37 * index) % 101 for index in range(64)]
    order = plan_batches(lengths, batch=4, steps=32, seed=5)
    assert order == plan_batches(lengths, batch=4, steps=32, seed=5) != plan_batches(lengths, 4, 32, 6)
    assert sorted(order[:64]) == sorted(order[64:]) == list(range(64))
    # A shorter run's batches are the first of a longer one's: what makes --resume the same run.
    assert plan_batches(lengths, 4, 10, 5) == order[:40]
    spread = [
        max(lengths[i] for i in order[s : s + 4]) - min(lengths[i] for i in order[s : s + 4]) for s in range(0, 128, 4)
    ]
    assert sum(spread) / len(spread) < 15  # by chance it would be about 60
    assert len(plan_batches(lengths[:3], batch=8, steps=2, seed=0)) == 16
