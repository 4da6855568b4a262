"""The catalog and the command line are light, and say what is missing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from icarus_local.errors import IcarusError, ModelFileError
from icarus_models.base import default_cache, load_base
from icarus_models.catalog import agents, bases
from icarus_models.cli import main


def test_agents_and_bases() -> None:
    assert [agent.name for agent in agents()] == ["coder", "reviewer", "math", "tools"]
    for agent in agents():
        assert agent.instruction.count(".") == 1
        assert agent.sampling.temperature == 0
        assert agent.adapter is not None
        assert Path(agent.adapter).is_absolute()
        assert agent.adapter.endswith(".gguf")
    (base,) = bases()
    assert base.path is None or base.path.stat().st_size == 98_362_432


def test_catalog_data_and_evaluation_import_no_torch() -> None:
    code = (
        "import sys, icarus_models.catalog, icarus_models.cli, icarus_models.records, icarus_models.data.build\n"
        "import icarus_models.evaluation.evaluate, icarus_models.evaluation.tasks, icarus_models.evaluation.table\n"
        "import icarus_models.recipe, icarus_models.specialist_runs\n"
        "icarus_models.catalog.agents()\n"
        "assert not {'torch', 'transformers', 'peft'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_a_folder_needs_a_tokenizer(tmp_path: Path) -> None:
    data = tmp_path / "d.jsonl"
    data.write_text("{}", encoding="utf-8")
    arguments = ["run", "--base", str(tmp_path), "--data", str(data), "--agent", "a", "-o", str(tmp_path / "o")]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 1
    assert "--tokenizer-gguf" in result.output
    assert isinstance(CliRunner().invoke(main, ["--debug", *arguments]).exception, IcarusError)


def test_a_base_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=r"config\.json"):
        load_base(tmp_path)
    with pytest.raises(ModelFileError, match="no such file"):
        load_base(tmp_path / "absent")


def test_the_cache_follows_icarus_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ICARUS_HOME", str(tmp_path))
    assert default_cache() == tmp_path / "cache" / "torch"
