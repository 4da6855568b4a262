"""The step benchmark: both methods are measured, and what it reports is what it measured."""

from __future__ import annotations

from click.testing import CliRunner

from icarus_models import step_bench
from icarus_models.cli import main
from icarus_models.step_bench import Setting, measure

from .conftest import Toy


def test_both_methods_are_measured(toy: Toy) -> None:
    told: list[str] = []
    found = measure(Setting(toy.base, batch=2, length=16, share=0.5, rank=4, repeats=2), told.append)
    assert set(found.seconds) == set(found.peak) == {"lora", "icarus"}
    assert all(value > 0 for value in found.seconds.values())
    assert 0 < found.encoder < found.seconds["icarus"]
    assert all(1 << 26 < value < 1 << 36 for value in found.peak.values())
    assert len(told) == 2


def test_half_of_the_tokens_are_supervised() -> None:
    batch = step_bench._batch(Setting(None, 3, 20, 0.5, 4, 1), 100)  # type: ignore[arg-type]
    assert batch["input_ids"].shape == (3, 20)
    assert batch["labels"].shape == (3, 10)
    assert batch["positions"][0].tolist() == list(range(10, 20))
    assert (batch["labels"][:, :-1] == batch["input_ids"][:, 11:]).all()


def test_the_command_prints_the_ratio(toy: Toy, monkeypatch: object) -> None:
    given = ["--base", str(toy.base), "--batch", "1", "--length", "8", "--rank", "2", "--repeats", "1"]
    result = CliRunner().invoke(main, ["bench", *given])
    assert result.exit_code == 0, result.output
    assert "times the time" in result.output
    assert "MiB at most" in result.output
