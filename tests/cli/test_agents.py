"""Where agents come from, and which wins: catalog, the user's folder, a file, the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from icarus_local.chat.agents import Agent
from icarus_local.chat.roster import Roster
from icarus_local.cli.agents import choose_agent, known_agents, locate_adapter
from icarus_local.cli.main import main
from icarus_local.engine.engine import Engine
from icarus_local.errors import AdapterError, RequestError
from tests.agents import add_agents, convert
from tests.tiny import Tiny


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ICARUS_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def agents_file(path: Path, *names: str, instruction: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    tables = [f'[[agents]]\nname = "{name}"\ninstruction = "{instruction}"\n' for name in names]
    path.write_text("".join(tables), "utf-8")
    return path


def test_what_is_nearer_to_the_command_line_wins(home: Path, tmp_path: Path) -> None:
    own = agents_file(home / "config" / "agents" / "mine.toml", "coder", "poet", instruction="Mine.")
    given = agents_file(tmp_path / "given.toml", "poet", instruction="Given.")
    known = known_agents(given)
    assert {name: found.source for name, found in known.items()} == {
        "base": "the base model",
        "coder": str(own),
        **dict.fromkeys(("reviewer", "math", "tools"), "the catalog"),
        "poet": str(given),
    }
    assert known["poet"].agent.instruction == "Given."
    poet = choose_agent("poet=x.gguf", 9, given)
    assert (poet.adapter, poet.instruction, poet.max_tokens) == ("x.gguf", "Given.", 9)
    with pytest.raises(RequestError, match="Known are base, coder, reviewer"):
        choose_agent("nobody")
    with pytest.raises(RequestError, match="base is the base model itself"):
        choose_agent("base=x.gguf")


def test_the_command_lists_them(home: Path, tmp_path: Path) -> None:
    given = agents_file(tmp_path / "given.toml", "poet", instruction="Rhyme.")
    shown = CliRunner().invoke(main, ["agents", "--agents-file", str(given)])
    assert shown.exit_code == 0, shown.output
    assert "poet      no adapter" in shown.output
    assert "Rhyme." in shown.output
    assert "coder.gguf  (the catalog)" in shown.output
    listed = json.loads(CliRunner().invoke(main, ["agents", "--json"]).output)
    assert [agent["name"] for agent in listed] == ["base", "coder", "reviewer", "math", "tools"]
    broken = tmp_path / "broken.toml"
    broken.write_text("[[agents]]\nname = 1")
    failed = CliRunner().invoke(main, ["agents", "--agents-file", str(broken)])
    assert failed.exit_code == 1
    assert "key name" in failed.output


def test_an_adapter_is_a_path_or_one_of_the_catalog(tmp_path: Path) -> None:
    (tmp_path / "own.gguf").touch()
    assert locate_adapter(str(tmp_path / "own.gguf")) == tmp_path / "own.gguf"
    assert locate_adapter("coder").name == "coder.gguf"
    for name in ("nobody", "a/b.gguf", "/a/b/c.gguf"):
        with pytest.raises(AdapterError, match=f"there is no adapter {name}"):
            locate_adapter(name)


def test_each_base_has_the_adapter_that_is_named_for_it(tiny: Tiny, tmp_path: Path) -> None:
    file = convert(add_agents(tiny.model, {"A": 0.3}), "A", tiny.path, tmp_path)
    with Engine(tiny.path, n_ctx=256, device="cpu") as engine:
        family = engine.base.family_id
        fits = Agent(name="a", adapter="none.gguf", adapters={family[:16]: str(file), "0" * 12: "none.gguf"})
        ready = Roster(engine, lambda _: fits, locate_adapter, "", "").add("a")
        assert ready.adapter_id is not None
        assert ready.change_on_disk() == ""
        file.touch()
        assert "has changed or gone since it was loaded: a speaks as it was" in ready.change_on_disk()
        lacks = Agent(name="b", adapters={"0" * 12: str(file)})
        with pytest.raises(
            AdapterError, match=r"no adapter for this base.*icarus-train run --agent b.*instruction-only"
        ):
            Roster(engine, lambda _: lacks, locate_adapter, "", "").add("b")
        spoken = Roster(engine, lambda _: lacks, locate_adapter, "", "", instruction_only=True).add("b")
        assert spoken.adapter_id is None
        assert "speaks as the base" in spoken.notices[0]
