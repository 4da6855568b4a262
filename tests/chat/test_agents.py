"""Agents as a person writes them: what a file may say, and what it is told when it says something else."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from icarus_local.chat.agents import Agent, read_agents_file
from icarus_local.errors import RequestError

FAMILY, OTHER = "ab" * 32, "cd" * 32


def write(folder: Path, text: str) -> Path:
    path = folder / "agents.toml"
    path.write_text(text, "utf-8")
    return path


def test_an_agent_has_what_its_table_says(tmp_path: Path) -> None:
    (tmp_path / "sql.gguf").touch()
    path = write(
        tmp_path,
        f"""
        [[agents]]
        name = "sql"
        adapter = "sql.gguf"
        instruction = "Reply with SQL."
        max_tokens = 50
        stop = [";"]
        sampling = {{ temperature = 0.3, seed = 7 }}

        [agents.adapters]
        "{FAMILY[:12]}" = "OWNER/NAME/other.gguf"

        [[agents]]
        name = "quiet"
        """,
    )
    sql, quiet = read_agents_file(path)
    assert sql.adapter == str(tmp_path / "sql.gguf")
    assert sql.adapter_for(FAMILY) == "OWNER/NAME/other.gguf"
    assert sql.adapter_for(OTHER) == sql.adapter
    assert (sql.instruction, sql.max_tokens, sql.stop) == ("Reply with SQL.", 50, (";",))
    assert (sql.sampling.temperature, sql.sampling.seed) == (0.3, 7)
    assert quiet.is_base
    assert not sql.is_base
    assert Agent(name="x", adapters={FAMILY: "a.gguf"}).adapter_for(OTHER) is None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[[agents]\nname = 1", ["is no TOML", "line 1"]),
        ("", ["holds no [[agents]]"]),
        ("agents = 3", ["holds no [[agents]]"]),
        ("agents = [1]", ["holds no [[agents]]"]),
        ('[[agent]]\nname = "a"', ["knows nothing of agent"]),
        ("[[agents]]\nadapter = 'x'", ["without a name", "key name"]),
        ("[[agents]]\nname = 'two words'", ["agent two words", "key name"]),
        ("[[agents]]\nname = 'base'", ["is the base model itself"]),
        ("[[agents]]\nname = 'a'\ncolour = 'red'", ["agent a", "key colour"]),
        ("[[agents]]\nname = 'a'\nsampling = { temperature = 99 }", ["key sampling.temperature", "10"]),
        ("[[agents]]\nname = 'a'\nstop = ['']", ["key stop.0"]),
        ("[[agents]]\nname = 'a'\nadapter = 3", ["key adapter"]),
        ("[[agents]]\nname = 'a'\n[agents.adapters]\nshort = 'x'", ["family id is 12 to 64"]),
        ("[[agents]]\nname = 'a'\n[[agents]]\nname = 'a'", ["names the agent a twice"]),
    ],
)
def test_a_wrong_file_is_told_which_key_and_why(tmp_path: Path, text: str, words: list[str]) -> None:
    path = write(tmp_path, text)
    with pytest.raises(RequestError) as caught:
        read_agents_file(path)
    for word in [str(path), *words]:
        assert word in str(caught.value)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="cannot be read"):
        read_agents_file(tmp_path / "none.toml")
    with pytest.raises(RequestError, match="cannot be read"):
        read_agents_file(tmp_path)
    (tmp_path / "latin.toml").write_bytes(b"# caf\xe9")
    with pytest.raises(RequestError, match="is no TOML"):
        read_agents_file(tmp_path / "latin.toml")
    (tmp_path / "large.toml").write_bytes(b"#" * (2 << 20))
    with pytest.raises(RequestError, match="at most 1024 are read"):
        read_agents_file(tmp_path / "large.toml")


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.text(alphabet=st.sampled_from("[]agents=\"name\n.12{},'#"), max_size=60))
def test_any_text_is_agents_or_one_clear_error(tmp_path: Path, text: str) -> None:
    try:
        agents = read_agents_file(write(tmp_path, text))
    except RequestError:
        return
    assert all(isinstance(agent, Agent) for agent in agents)
