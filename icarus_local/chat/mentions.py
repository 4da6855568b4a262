"""Files that a question names by `@PATH`."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from icarus_local.chat.files import TextFile, read_text_file

MENTION = re.compile(r"(?<!\S)@(?:\"(?P<quoted>[^\"\n]+)\"|(?P<word>[^\s\"]+))")
"""What names a file where there is one."""

_ENDS = ".,:;!?)]}'"


def files_mentioned(text: str) -> list[Path]:
    """The files that a question names, each once; what names no file stays text.

    A sentence's punctuation behind a name belongs to it only where such a file is there.
    """
    return list(dict.fromkeys(_files(text)))


def read_mentioned(text: str) -> list[TextFile]:
    """The same, read.

    Raises:
        RequestError: one cannot be read as text.
    """
    return [read_text_file(path) for path in files_mentioned(text)]


def _files(text: str) -> Iterator[Path]:
    for match in MENTION.finditer(text):
        name = match["quoted"] or match["word"]
        for known in (name, name.rstrip(_ENDS)):
            path = os.path.expanduser(known)
            if known and os.path.isfile(path):
                yield Path(path)
                break
