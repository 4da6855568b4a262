"""Records: what is supervised, and what is left out and named."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icarus_local.chat.agents import Agent
from icarus_local.errors import IcarusError
from icarus_local.text.template import FALLBACK_SOURCE, ChatTemplate
from icarus_models.records import Renderer, dated_template, named, read_samples

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


BAD = {
    "{": "not JSON",
    "[" * 100_000: "nested too deeply",
    "[]": "not a JSON object",
    '{"messages": []}': "neither a list",
    '{"messages": "x"}': "neither a list",
    '{"messages": [{"content": "x"}]}': "role None",
    '{"messages": [{"role": "tool", "content": "x"}]}': "role 'tool'",
    '{"messages": [{"role": "system", "content": "x"}]}': "role 'system'",
    '{"prompt": "q", "answer": "  "}': "assistant without content",
    '{"prompt": "q"}': "must end with an answer",
    '{"prompt": "q", "answer": 3}': "assistant without content",
    '{"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a", "weight": 0.25}]}': "0.25",
    '{"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a", "weight": "0"}]}': "'0'",
    '{"prompt": "q", "answer": "long %s"}' % ("x" * 500): "over 400",
    '{"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "agent": "x", "content": "a"}]}': "no ans",
}


def test_bad_lines_are_named_by_number_with_the_reason(tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl"
    path.write_text("\n".join([*BAD, "", json.dumps(TWO)]), encoding="utf-8")
    loaded = read_samples(path, renderer("coder"), 400)
    assert [number for number, _ in loaded.left_out] == list(range(1, len(BAD) + 1))
    for (_, reason), part in zip(loaded.left_out, BAD.values(), strict=True):
        assert part in reason
    assert len(loaded.samples) == 1
    assert named(loaded.left_out).startswith(f"{len(BAD)} lines left out: line 1: not JSON")


@given(st.text())
def test_no_line_is_lost_or_fatal(line: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "data.jsonl"
        path.write_bytes(line.encode("utf-8", "replace") + b"\n" + json.dumps(TWO).encode())
        loaded = read_samples(path, renderer("coder"), 1000)
    text = line.encode("utf-8", "replace").decode().replace("\r", "\n")
    assert len(loaded.left_out) == sum(bool(part.strip()) for part in text.split("\n"))


def test_prompt_and_answer_are_a_record() -> None:
    pair = {"prompt": "q", "answer": "yes"}
    long = {"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "yes"}]}
    assert renderer("coder").sample(pair) == renderer("coder").sample(long)


def test_a_prompt_is_what_training_saw_before_the_answer() -> None:
    for speaker, before in (("coder", 1), ("reviewer", 2)):
        sample = renderer(speaker).sample(TWO)
        prompt = renderer(speaker).prompt(TWO["messages"][:before])
        assert prompt == sample.ids[: sample.positions[0] + 1]


def test_a_template_without_the_role_is_named(tmp_path: Path) -> None:
    tokenizer: Any = Bytes()
    source = (
        "{% for m in messages %}{% if m.role != 'user' and m.role != 'system' %}"
        "{{ raise_exception('no ' + m.role) }}{% endif %}<|im_start|>{{ m.content }}<|im_end|>{% endfor %}"
    )
    path = tmp_path / "data.jsonl"
    path.write_text(json.dumps(TWO), encoding="utf-8")
    with pytest.raises(IcarusError, match="no assistant"):
        read_samples(path, Renderer(tokenizer, ChatTemplate(source, tokenizer), [], "reviewer"), 1000)


def test_nothing_left_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl"
    path.write_text(json.dumps(TWO), encoding="utf-8")
    with pytest.raises(IcarusError, match=r"nothing to train on: 1 line left out: line 1: .* over 10"):
        read_samples(path, renderer("coder"), 10)
    path.write_text("\n", encoding="utf-8")
    with pytest.raises(IcarusError, match="nothing to train on"):
        read_samples(path, renderer("coder"), 10)
    path.write_bytes(b"\xff\n")
    with pytest.raises(IcarusError, match="cannot be read"):
        read_samples(path, renderer("coder"), 10)


def test_a_date_in_the_template_is_no_reason_for_other_ids() -> None:
    tokenizer: Any = Bytes()
    tokenizer.template_source = "{{ strftime_now('%d %b %Y') }}" + FALLBACK_SOURCE
    assert text(dated_template(tokenizer).render([{"role": "user", "content": "q"}])).startswith("26 Jul 2024<user")


def test_samples_are_told_apart(tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl"
    path.write_text(json.dumps(TWO), encoding="utf-8")
    found = {read_samples(path, renderer(speaker), 1000).sha256 for speaker in ("coder", "coder", "reviewer")}
    assert len(found) == 2
