"""Text files that people put into the conversation: which ones a line names, what they hold, how it is said."""

from __future__ import annotations

import codecs
import glob
import os
import re
import shlex
import stat
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath

from icarus_local.chat.figures import printable
from icarus_local.errors import RequestError

MAX_FILE_BYTES = 1 << 20
MAX_MATCHES = 256  # of one pattern: `**` in the wrong folder would go through a whole disk

_WINDOWS = sys.platform == "win32"
FILE_MESSAGE = re.compile(r"File (.*):")
"""How `TextFile.message` begins; the group is the name."""

_UNSAID = re.compile(r"[\n\t\ud800-\udfff]")
_MAGIC = re.compile(r"[*?\[]")
_OTHER_ENCODINGS = (
    (codecs.BOM_UTF32_LE, "UTF-32"),  # begins as UTF-16's does
    (codecs.BOM_UTF32_BE, "UTF-32"),
    (codecs.BOM_UTF16_LE, "UTF-16"),
    (codecs.BOM_UTF16_BE, "UTF-16"),
)


@dataclass(frozen=True, slots=True)
class TextFile:
    """What one file held when it was read.

    Attributes:
        name: one printable line. text: without BOM, its lines ended by `\\n`. n_bytes: the file's size.
    """

    name: str
    text: str
    n_bytes: int

    @property
    def message(self) -> str:
        """What the conversation says: the name, and the text in a fence that no line of it can close."""
        longest = max(map(len, re.findall("`+", self.text)), default=0)
        fence = "`" * max(3, longest + 1)
        suffix = PurePath(self.name).suffix[1:]
        info = suffix if suffix.isascii() and suffix.isalnum() else ""
        end = "" if not self.text or self.text.endswith("\n") else "\n"
        return f"File {self.name}:\n\n{fence}{info}\n{self.text}{end}{fence}"


def read_text_file(path: Path) -> TextFile:
    """Reads a text file; never waits for one that is a pipe or a device.

    Raises:
        RequestError: missing, no regular file, unreadable, above MAX_FILE_BYTES, empty, or not UTF-8 text.
    """
    name = _name(path)
    try:
        raw = _read(path, name)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise RequestError(f"there is no file {name}", "Check its name and folder") from error
    except (OSError, ValueError) as error:  # ValueError: a path that no system takes
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise RequestError(f"the file {name} cannot be read: {reason}", "Give a file that you may read") from error
    text = _decode(raw, name)
    if not text:
        raise RequestError(f"the file {name} is empty", "Give a file with text in it")
    return TextFile(name, text.replace("\r\n", "\n").replace("\r", "\n"), len(raw))


def expand(paths: Sequence[str]) -> list[Path]:
    """The files that paths and patterns (`*`, `?`, `[…]`, `**`) name, each once; a pattern's are sorted.

    A path that exists is never read as a pattern. A pattern leaves out folders, and hidden files as a shell does.

    Raises:
        RequestError: a pattern matches no file, or more than MAX_MATCHES.
    """
    found: dict[str, Path] = {}
    for path in map(_expand_home, paths):
        literal = os.path.lexists(path) or not _MAGIC.search(path)
        for each in [path] if literal else _matches(path):
            found.setdefault(_identity(each), Path(each))
    return list(found.values())


def split_paths(rest: str) -> list[str]:
    """The words of a line as a POSIX shell splits them; on Windows a backslash is a character like others.

    Raises:
        RequestError: a quote is not closed, or nothing follows the last backslash.
    """
    lexer = shlex.shlex(rest, posix=True, punctuation_chars=False)
    lexer.whitespace_split = True
    lexer.commenters = ""
    if _WINDOWS:
        lexer.escape = ""
    try:
        return list(lexer)
    except ValueError as error:
        if "escaped" in str(error):
            raise RequestError("nothing follows the last \\", "Write \\\\ for a backslash") from error
        raise RequestError("a quote is not closed", "Close it, or write \" around a name with a '") from error


def one_line(name: str) -> str:
    """A name as it can be shown and said: it may hold line ends, escape sequences and bytes that are no UTF-8."""
    return printable(_UNSAID.sub("�", name))


def _expand_home(path: str) -> str:
    try:
        return os.path.expanduser(path)
    except ValueError:  # a user's name that no system takes
        return path


def _identity(path: str) -> str:
    try:
        return os.path.abspath(path)
    except OSError:  # the current folder is gone
        return path


def _matches(pattern: str) -> list[str]:
    found: list[str] = []
    try:
        for match in glob.iglob(pattern, recursive=True):
            if not os.path.isdir(match):
                found.append(match)
            if len(found) > MAX_MATCHES:
                raise RequestError(
                    f"{one_line(pattern)} matches more than {MAX_MATCHES} files", "Give a narrower pattern"
                )
    except (OSError, ValueError):  # a path that no system takes
        found = []
    if not found:
        raise RequestError(f"{one_line(pattern)} matches no file", "Check the pattern and its folder")
    return sorted(found)


def _read(path: Path, name: str) -> bytes:
    _check(path.stat(), name)  # before opening: opening alone sets some devices going, and waits for a pipe's writer
    flags = os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0)
    handle = os.open(path, flags)
    try:
        _check(os.fstat(handle), name)  # another file may have the name by now
        with open(handle, "rb", closefd=False) as file:
            raw = file.read(MAX_FILE_BYTES + 1) or b""
    finally:
        os.close(handle)
    if len(raw) > MAX_FILE_BYTES:  # it grew, or is of a kind that tells no size, as in /proc
        raise _too_large(name, "more")
    return raw


def _check(status: os.stat_result, name: str) -> None:
    if stat.S_ISDIR(status.st_mode):
        raise RequestError(f"{name} is a folder", f"Name files in it, such as {os.path.join(name, '*')}")
    if not stat.S_ISREG(status.st_mode):
        raise RequestError(f"{name} is no regular file but a pipe, device or socket", "Give a text file")
    if status.st_size > MAX_FILE_BYTES:
        raise _too_large(name, f"{status.st_size / (1 << 20):.2f} MiB ({status.st_size} bytes)")


def _too_large(name: str, size: str) -> RequestError:
    what = f"the file {name} is too large: at most {MAX_FILE_BYTES >> 20} MiB is read, and it has {size}"
    return RequestError(what, "Give a part of it")


def _decode(raw: bytes, name: str) -> str:
    for bom, encoding in _OTHER_ENCODINGS:
        if raw.startswith(bom):
            raise RequestError(f"the file {name} is {encoding}; only UTF-8 is read", "Convert it to UTF-8")
    n_bom = len(codecs.BOM_UTF8) if raw.startswith(codecs.BOM_UTF8) else 0
    zero = raw.find(b"\0")
    if zero >= 0:
        raise RequestError(f"the file {name} is binary: byte {zero} is NUL", "Give a text file")
    try:
        return raw[n_bom:].decode("utf-8")
    except UnicodeDecodeError as error:
        at = error.start + n_bom
        raise RequestError(
            f"the file {name} is not UTF-8 text: byte {at} is 0x{raw[at]:02x}",
            "Give a text file, or convert it to UTF-8",
        ) from error


def _name(path: Path) -> str:
    """As given if relative; else below the current folder or `~`, where it is."""
    if not path.is_absolute():
        return one_line(str(path))
    for base, prefix in ((Path.cwd, ""), (Path.home, "~")):
        try:
            return one_line(str(Path(prefix, path.relative_to(base()))))
        except (ValueError, OSError, RuntimeError):  # not below it; the folder is gone; nobody's home
            continue
    return one_line(str(path))
