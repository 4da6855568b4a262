"""`icarus-train loss` gives what the run itself measured, each method by its own function."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from icarus_local.errors import AdapterError
from icarus_models.cli import main
from icarus_models.measured_loss import measured_loss
from icarus_models.training import train

from .conftest import Toy


def quiet(line: str) -> None:
    pass


@pytest.mark.parametrize("method", ["icarus", "lora"])
def test_on_held_out_records_it_is_the_held_out_loss(toy: Toy, method: str) -> None:
    adapter = train(toy.recipe(method=method), toy.base, quiet)
    losses = json.loads((adapter / "icarus_run.json").read_text("utf-8"))["losses"]
    found = measured_loss(adapter, toy.data, toy.base, agents_file=None, max_tokens=256, tell=quiet)
    assert (found.agent, found.method) == ("coder", method)
    assert found.base == pytest.approx(losses["heldout_base"], rel=1e-5)
    assert found.adapter == pytest.approx(losses["heldout_trained"], rel=1e-5)
    assert found.adapter < found.base


def test_the_command_tells_both(toy: Toy) -> None:
    adapter = train(toy.recipe(max_steps=1), toy.base, quiet)
    given = ["--adapter", str(adapter), "--data", str(toy.data), "--base", str(toy.base)]
    result = CliRunner().invoke(main, ["loss", *given])
    assert result.exit_code == 0, result.output
    assert "icarus coder" in result.output
    assert "nats a supervised token" in result.output


def test_a_folder_of_others_is_refused(toy: Toy) -> None:
    with pytest.raises(AdapterError, match="does not say how it was trained"):
        measured_loss(toy.folder, toy.data, toy.base, agents_file=None, max_tokens=256, tell=quiet)
