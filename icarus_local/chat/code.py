"""The code blocks of answers, and saving one of them, or any text, as a file."""

from __future__ import annotations

import os
import re
import secrets
import stat
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from icarus_local.chat.files import one_line
from icarus_local.errors import RequestError

# What models write behind the fence, by the suffix that such a file has.
_LANGUAGES = {
    "bat": "bat batch cmd",
    "c": "c h",
    "cpp": "cpp c++ cc cxx hpp",
    "cs": "cs c# csharp",
    "css": "css",
    "csv": "csv",
    "diff": "diff patch",
    "go": "go golang",
    "html": "html htm",
    "ini": "ini cfg",
    "java": "java",
    "js": "js javascript mjs node",
    "json": "json",
    "jsx": "jsx",
    "kt": "kt kotlin",
    "lua": "lua",
    "md": "md markdown",
    "php": "php",
    "pl": "pl perl",
    "ps1": "ps1 powershell pwsh",
    "py": "py python python3",
    "r": "r",
    "rb": "rb ruby",
    "rs": "rs rust",
    "sh": "sh bash shell zsh",
    "sql": "sql",
    "swift": "swift",
    "tex": "tex latex",
    "toml": "toml",
    "ts": "ts typescript",
    "tsx": "tsx",
    "xml": "xml svg",
    "yaml": "yaml yml",
}
_SUFFIXES = {language: suffix for suffix, languages in _LANGUAGES.items() for language in languages.split()}
_LANGUAGE = re.compile(r"\w[\w+#.-]*")


@dataclass(frozen=True, slots=True)
class CodeBlock:
    """A fenced block.

    Attributes:
        language: the first word behind the fence in lower case, or "". text: with its last line end, if it has one.
    """

    language: str
    text: str

    @property
    def suggested_name(self) -> str:
        """A file name of the program's own; nothing that a model wrote gets into it."""
        return f"code.{_SUFFIXES.get(self.language, 'txt')}"


def code_blocks(answer: str) -> list[CodeBlock]:
    """The fenced blocks of an answer in order, those in lists and quotes too; the last one may be unclosed.

    As CommonMark has it, line ends become `\\n` and NUL the replacement character.
    """
    from markdown_it import MarkdownIt

    parser = MarkdownIt("commonmark").disable(["inline", "text_join"], ignoreInvalid=True)
    return [CodeBlock(_language(token.info), token.content) for token in parser.parse(answer) if token.type == "fence"]


def save_code(block: CodeBlock, path: Path, overwrite: bool = False) -> None:
    """`save_text` of a block."""
    save_text(block.text, path, overwrite)


def save_text(text: str, path: Path, overwrite: bool = False) -> None:
    """Writes text as UTF-8 with a final line end.

    It is written beside its place and renamed. A file that is overwritten keeps its mode; a link stays, and the file
    that it leads to is overwritten. `path` is taken as it is: no `~`, no pattern.

    Raises:
        RequestError: the file exists and `overwrite` is False, even if it appeared meanwhile; its folder is missing; it
            is a folder or no regular file; it cannot be written. What was there before stays.
    """
    data = text.encode("utf-8", "replace")
    if data and not data.endswith(b"\n"):
        data += b"\n"
    shown = one_line(str(path))
    try:
        target = Path(os.path.realpath(path)) if overwrite else path
        mode = _mode_to_keep(target, shown, overwrite)
        _write(data, target, mode, overwrite)
    except FileExistsError as error:
        raise _exists(shown) from error
    except (OSError, ValueError) as error:  # ValueError: a path that no system takes
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise RequestError(f"{shown} cannot be written: {reason}", "Give another place") from error


def _mode_to_keep(target: Path, shown: str, overwrite: bool) -> int | None:
    """The permissions of the file that goes, None where there is none; refuses what may not go."""
    if target.is_dir():
        raise RequestError(f"{shown} is a folder", "Give the name of a file in it")
    if not target.parent.is_dir():
        raise RequestError(f"there is no folder {one_line(str(target.parent))}", "Make it, or give another place")
    try:
        status = target.lstat()
    except FileNotFoundError:
        return None
    if not overwrite:
        raise _exists(shown)
    if not stat.S_ISREG(status.st_mode):
        raise RequestError(f"{shown} is no regular file", "Give another name")
    if not os.access(target, os.W_OK):  # renaming would replace it all the same
        raise RequestError(f"{shown} cannot be written: it is read-only", "Give another name, or make it writable")
    return stat.S_IMODE(status.st_mode)


def _write(data: bytes, target: Path, mode: int | None, overwrite: bool) -> None:
    beside = target.with_name(f".icarus-{secrets.token_hex(8)}.part")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
    try:
        with open(os.open(beside, flags, 0o666 if mode is None else 0o600), "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        if mode is not None:
            beside.chmod(mode)
        if overwrite:
            beside.replace(target)
        else:
            _name_new(beside, target)
    finally:
        beside.unlink(missing_ok=True)


def _name_new(beside: Path, target: Path) -> None:
    """Gives a file a name that is free; raises FileExistsError where it is taken, be it since a moment ago."""
    try:
        os.link(beside, target)
    except FileExistsError:
        raise
    except (OSError, NotImplementedError):  # no hard links on this file system: hold the name with an empty file
        os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        try:
            beside.replace(target)
        except OSError:
            with suppress(OSError):
                target.unlink()
            raise


def _exists(shown: str) -> RequestError:
    return RequestError(f"{shown} exists already", "Give another name, or say that it is to be overwritten")


def _language(info: str) -> str:
    match = _LANGUAGE.search(info)
    return match[0].lower() if match else ""
