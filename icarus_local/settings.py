"""The settings: one typed schema of what a person may write into settings.toml, read whole or refused by key."""

from __future__ import annotations

import os
import reprlib
import secrets
import stat
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from icarus_local.chat.requests import MAX_ROUNDS
from icarus_local.errors import IcarusError
from icarus_local.paths import config_dir

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

_MAX_FILE = 1 << 20  # bytes
# By the type of pydantic's error.
_ALLOWED = {
    "int_type": "a whole number",
    "bool_type": "true or false",
    "string_type": "a text in quotes",
    "string_too_short": "a text of at least one character",
    "greater_than_equal": "a number of {ge} or more",
    "less_than_equal": "a number of {le} or less",
    "literal_error": "one of {expected}",
    "dict_type": "a table",
    "model_type": "a table",
}

Value = str | int | bool
"""What a setting may hold."""


class SettingsError(IcarusError):
    """The settings file cannot be read, written or understood."""


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class ChatSettings(_Section):
    """What `icarus-local chat` does without an option; each is the option of that name."""

    base: str | None = Field(default=None, min_length=1, description="a path, or OWNER/NAME/FILE.gguf on the Hub")
    agents: str | None = Field(default=None, min_length=1, description="who takes part, as --agents takes it")
    n_ctx: int | None = Field(default=None, ge=1, description="tokens the cache holds")
    kv_type: Literal["f16", "f32", "q8_0", "q4_0"] = Field(default="f16", description="type of K and V")
    device: str = Field(
        default="auto", min_length=1, description="cpu, auto, or a device that icarus-local doctor names"
    )
    max_tokens: int | None = Field(default=None, ge=1, description="of each answer")
    rounds: int = Field(default=1, ge=1, le=MAX_ROUNDS, description="how often the agents answer in turn")
    parallel: bool = Field(default=False, description="whether they answer at once")

    @model_validator(mode="after")
    def _one_of_both(self) -> Self:
        if self.parallel and self.rounds > 1:
            raise ValueError("agents that answer at once have no rounds: set parallel or rounds")
        return self


class ScreenSettings(_Section):
    """How the screen looks."""

    theme: str = Field(
        default="textual-dark", min_length=1, description="its colours; /theme lists those that there are"
    )
    editor: str = Field(default="", description="the external editor's command; else $VISUAL, then $EDITOR")
    thoughts: Literal["folded", "shown"] = Field(default="folded", description="how a thought is shown at first")


class Settings(_Section):
    """All settings.

    Attributes:
        keys: by the id of what they do, keys separated by commas; the screen knows the ids and the names of keys.
    """

    chat: ChatSettings = ChatSettings()
    screen: ScreenSettings = ScreenSettings()
    keys: dict[str, str] = {}


def settings_file() -> Path:
    """Where the settings are; the file need not exist."""
    return config_dir() / "settings.toml"


def read_settings(file: Path) -> Settings:
    """The settings of a file; the defaults where there is none.

    Raises:
        SettingsError: it cannot be read, is no TOML (in which line), or has a key or value that is none (which).
    """
    return _checked(file, _parsed(file, _text(file)))


def remember(file: Path, section: str, key: str, value: Value | None) -> None:
    """Changes one value and leaves everything else in the file as it is written, comments and order included.

    It is written beside the file and renamed; the file keeps its mode, and a link stays a link.

    Args:
        section, key: names of the schema. value: None removes the key, so that the default holds again.

    Raises:
        SettingsError: there is no such key or it takes no such value; the file is wrong already, or cannot be written.
            It stays as it was.
    """
    from tomlkit.exceptions import TOMLKitError

    text = _text(file)
    content = _parsed(file, text)
    _checked(file, content)
    wanted = {name: value for name, value in content.get(section, {}).items() if name != key}
    if value is not None:
        wanted[key] = value
    whole = {**content, section: wanted}
    _checked(file, whole)
    try:
        changed = _changed(text, section, key, value)
    except TOMLKitError:
        changed = text
    # A file can be written so oddly that not even this library keeps all of it.
    if {section: {}, **_parsed(file, changed)} != whole:
        raise SettingsError(f"{file} is written in a way that only a person can change", f"Set {key} under [{section}]")
    try:
        _write(Path(os.path.realpath(file)), changed)
    except OSError as error:
        raise SettingsError(f"{file} cannot be written: {error.strerror}") from error


def _text(file: Path) -> str:
    try:
        # No more than shows that it is too large: what is there may be a device.
        with file.open("rb") as handle:
            raw = handle.read(_MAX_FILE + 1)
        text = raw.decode("utf-8")
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise SettingsError(f"{file} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise SettingsError(f"{file} is no TOML: line {line} is not UTF-8") from error
    if len(raw) > _MAX_FILE:
        raise SettingsError(f"{file} is larger than {_MAX_FILE >> 10} KiB, which no settings are")
    return text


def _parsed(file: Path, text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"{file} is no TOML: {error}") from error


def _checked(file: Path, content: dict[str, Any]) -> Settings:
    try:
        return Settings.model_validate(content)
    except ValidationError as error:
        raise SettingsError(f"{file}: {_in_words(error.errors()[0])}") from error


def _in_words(error: ErrorDetails) -> str:
    *section, key = [str(part) for part in error["loc"]]
    if error["type"] == "extra_forbidden":
        known = _keys(section[0]) if section else list(Settings.model_fields)
        where = f"[{section[0]}] has no key" if section else "there is no section or key"
        return f"{where} {key!r}; there are {', '.join(known)}"
    name = ".".join([*section, key])
    allowed = _ALLOWED.get(error["type"], "").format(**error.get("ctx", {}))
    return (
        f"{name} is {reprlib.repr(error['input'])}, not {allowed}"
        if allowed
        else f"{name}: {error['msg'].removeprefix('Value error, ')}"
    )


def _keys(section: str) -> list[str]:
    schema = Settings.model_fields[section].annotation
    return list(schema.model_fields) if isinstance(schema, type) and issubclass(schema, BaseModel) else []


def _changed(text: str, section: str, key: str, value: Value | None) -> str:
    import tomlkit

    document = tomlkit.parse(text)
    if section not in document and value is not None:
        document[section] = tomlkit.table()
    table: Any = document.get(section, {})
    if value is not None:
        table[key] = value
    elif key in table:
        del table[key]
    return document.as_string()


def _write(target: Path, text: str) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    mode = stat.S_IMODE(target.stat().st_mode) if target.exists() else None
    beside = target.with_name(f".settings-{secrets.token_hex(8)}.part")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
    try:
        with open(os.open(beside, flags, 0o666 if mode is None else 0o600), "wb") as file:
            file.write(text.encode("utf-8"))
            file.flush()
            os.fsync(file.fileno())
        if mode is not None:
            beside.chmod(mode)
        beside.replace(target)
    finally:
        beside.unlink(missing_ok=True)
