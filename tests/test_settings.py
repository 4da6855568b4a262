"""The settings: read whole or refused by key, and changed without losing what else stands in the file."""

from __future__ import annotations

import os
import stat
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from icarus_local.settings import Settings, SettingsError, read_settings, remember, settings_file

DOCS = Path(__file__).parent.parent / "docs" / "settings.md"

WRITTEN = """\
# what I like
[screen]   # looks
theme = "nord"  # blue

[chat]
# twice is enough
rounds = 2
base = '/models/b.gguf'

# my keys
[keys]
stop = "f5, ctrl+x"
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "config" / "settings.toml"


def written(file: Path, text: str = WRITTEN) -> Path:
    file.parent.mkdir(exist_ok=True)
    file.write_text(text, "utf-8", newline="")
    return file


def test_without_a_file_there_are_defaults(file: Path) -> None:
    found = read_settings(file)
    assert found == Settings()
    assert found.chat.base is None
    assert (found.chat.rounds, found.chat.parallel, found.chat.kv_type) == (1, False, "f16")
    assert (found.screen.theme, found.screen.editor, found.screen.thoughts) == ("textual-dark", "", "folded")
    assert not file.parent.exists()


def test_what_is_written_is_read(file: Path) -> None:
    found = read_settings(written(file))
    assert (found.screen.theme, found.chat.rounds, found.chat.base) == ("nord", 2, "/models/b.gguf")
    assert found.keys == {"stop": "f5, ctrl+x"}
    # What a command takes for its defaults.
    assert found.chat.model_dump(exclude_unset=True) == {"rounds": 2, "base": "/models/b.gguf"}


def test_it_is_in_the_folder_of_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ICARUS_HOME", str(tmp_path))
    assert settings_file() == tmp_path / "config" / "settings.toml"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[chat]\nbaze = 'x'", r"\[chat\] has no key 'baze'; there are base, agents, n_ctx"),
        ("[looks]\na = 1", "there is no section or key 'looks'; there are chat, screen, keys"),
        ("[chat]\nkv_type = 'f17'", "chat.kv_type is 'f17', not one of 'f16', 'f32', 'q8_0' or 'q4_0'"),
        ("[chat]\nrounds = 0", "chat.rounds is 0, not a number of 1 or more"),
        ("[chat]\nrounds = 101", "chat.rounds is 101, not a number of 100 or less"),
        ("[chat]\nrounds = '3'", "chat.rounds is '3', not a whole number"),
        ("[chat]\nn_ctx = true", "chat.n_ctx is True, not a whole number"),
        ("[chat]\nparallel = 1", "chat.parallel is 1, not true or false"),
        ("[chat]\nparallel = true\nrounds = 2", "chat: agents that answer at once have no rounds"),
        ("[chat]\nbase = ''", "chat.base is '', not a text of at least one character"),
        ("chat = 3", "chat is 3, not a table"),
        ("[screen]\nthoughts = 'gone'", "screen.thoughts is 'gone', not one of 'folded' or 'shown'"),
        ("[keys]\nstop = 5", "keys.stop is 5, not a text in quotes"),
        ("[keys.stop]\na = 'b'", "keys.stop is {'a': 'b'}, not a text in quotes"),
        ("[chat]\nrounds 3", r"is no TOML: .*line 2"),
        ("a = 1\na = 2\nb = 3", "is no TOML: .*line 2"),
    ],
)
def test_what_is_wrong_is_named_with_its_file_and_key(file: Path, text: str, said: str) -> None:
    written(file, text)
    for act in (lambda: read_settings(file), lambda: remember(file, "screen", "theme", "nord")):
        with pytest.raises(SettingsError, match=said) as error:
            act()
        assert str(file) in str(error.value)
    assert file.read_text() == text


def test_what_is_no_text_or_too_much_is_refused(file: Path) -> None:
    written(file)
    file.write_bytes(b"# \n[chat]\nbase = '\xff'")
    with pytest.raises(SettingsError, match="line 3 is not UTF-8"):
        read_settings(file)
    file.write_bytes(b"#" * (1 << 20) + b"\n")
    with pytest.raises(SettingsError, match="larger than 1024 KiB"):
        read_settings(file)
    file.unlink()
    file.mkdir()
    with pytest.raises(SettingsError, match="cannot be read"):
        read_settings(file)


def test_one_value_is_changed_and_everything_else_stays(file: Path) -> None:
    remember(written(file), "screen", "theme", "gruvbox")
    assert file.read_text() == WRITTEN.replace('"nord"', '"gruvbox"')
    remember(file, "screen", "editor", "vi")
    remember(file, "chat", "rounds", None)
    found = read_settings(file)
    assert (found.screen.theme, found.screen.editor, found.chat.rounds) == ("gruvbox", "vi", 1)
    for comment in ("# what I like", "# looks", "# blue", "# twice is enough", "# my keys"):
        assert comment in file.read_text()


def test_a_file_is_made_where_there_is_none(file: Path) -> None:
    remember(file, "chat", "base", "/models/b.gguf")
    assert read_settings(file).chat.base == "/models/b.gguf"
    remember(file, "chat", "base", None)
    assert read_settings(file) == Settings()
    remember(file, "keys", "stop", None)
    assert [path.name for path in file.parent.iterdir()] == ["settings.toml"]


@pytest.mark.parametrize(
    "text",
    [
        "chat = { rounds = 2 } # in a line\n",
        "chat.rounds = 2\n",
        "[chat]\r\nrounds = 2\r\n# end\r\n",
        '"chat".rounds = 2\n',
    ],
)
def test_however_it_is_written_it_is_changed(file: Path, text: str) -> None:
    remember(written(file, text), "chat", "rounds", 5)
    assert read_settings(file).chat.rounds == 5
    remember(file, "chat", "base", "x.gguf")
    assert read_settings(file).chat.model_dump(exclude_unset=True) == {"rounds": 5, "base": "x.gguf"}
    assert ("#" in text) == ("#" in file.read_text())


@pytest.mark.parametrize(
    ("section", "key", "value", "said"),
    [
        ("chat", "baze", "x", "has no key 'baze'"),
        ("looks", "theme", "x", "no section or key 'looks'"),
        ("chat", "rounds", 0, "1 or more"),
        ("chat", "parallel", True, "no rounds"),
    ],
)
def test_what_could_not_be_read_again_is_not_written(file: Path, section: str, key: str, value: Any, said: str) -> None:
    written(file)
    with pytest.raises(SettingsError, match=said):
        remember(file, section, key, value)
    assert file.read_text() == WRITTEN


@pytest.mark.skipif(os.name == "nt", reason="modes and links of POSIX")
def test_mode_and_link_stay(file: Path, tmp_path: Path) -> None:
    written(file).chmod(0o640)
    link = tmp_path / "link.toml"
    link.symlink_to(file)
    remember(link, "screen", "theme", "dracula")
    assert link.is_symlink()
    assert stat.S_IMODE(file.stat().st_mode) == 0o640
    assert read_settings(file).screen.theme == "dracula"


@pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="the owner of all files may write them")
def test_a_folder_that_cannot_be_written_is_told(file: Path) -> None:
    written(file).parent.chmod(0o500)
    with pytest.raises(SettingsError, match="cannot be written"):
        remember(file, "screen", "theme", "dracula")
    file.parent.chmod(0o700)


def test_a_write_that_fails_leaves_the_file(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(file)

    def full(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(SettingsError, match="cannot be written: No space left"):
        remember(file, "screen", "theme", "dracula")
    assert file.read_text() == WRITTEN
    assert [path.name for path in file.parent.iterdir()] == ["settings.toml"]


changes = st.one_of(
    st.tuples(st.just("chat"), st.just("base"), st.text(min_size=1, max_size=30)),
    st.tuples(st.just("chat"), st.just("rounds"), st.integers(1, 100)),
    st.tuples(st.just("chat"), st.just("n_ctx"), st.none() | st.integers(1, 1 << 40)),
    st.tuples(st.just("screen"), st.sampled_from(["theme", "editor"]), st.text(min_size=1, max_size=30)),
    st.tuples(st.just("keys"), st.text(max_size=10), st.none() | st.text(max_size=10)),
)


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(changes=st.lists(changes, max_size=6))
def test_what_is_remembered_is_read_again_and_comments_survive(file: Path, changes: list[tuple[str, str, Any]]) -> None:
    expected = tomllib.loads(written(file).read_text())
    for section, key, value in changes:
        if isinstance(value, str) and any(0xD800 <= ord(character) < 0xE000 for character in key + value):
            continue
        remember(file, section, key, value)
        if value is None:
            expected[section].pop(key, None)
        else:
            expected[section][key] = value
    assert tomllib.loads(file.read_bytes().decode()) == expected
    read_settings(file)
    for comment in ("# what I like", "# looks", "# blue", "# twice is enough", "# my keys"):
        assert comment in file.read_text()


def test_the_docs_have_every_key_with_its_default() -> None:
    block = DOCS.read_text("utf-8").split("```toml\n")[1].split("```")[0]
    # Keys without a default are commented out.
    shown = tomllib.loads(block.replace("\n# ", "\n"))
    for section in ("chat", "screen"):
        defaults = getattr(Settings(), section).model_dump()
        assert list(shown[section]) == list(defaults)
        assert {key: value for key, value in shown[section].items() if defaults[key] is not None} == {
            key: value for key, value in defaults.items() if value is not None
        }
    Settings.model_validate(shown)
