"""Log lines while the screen is up."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def held_logs() -> Iterator[None]:
    """Holds what handlers of the root logger would write to a stream, and writes it afterwards: Textual draws on
    stderr, and a log line in between would spoil the screen.
    """
    held: list[tuple[logging.StreamHandler[Any], Any, io.StringIO]] = []
    for handler in logging.getLogger().handlers:
        # A FileHandler is a StreamHandler too, and does no harm.
        if type(handler) is logging.StreamHandler:
            buffer = io.StringIO()
            held.append((handler, handler.setStream(buffer), buffer))
    try:
        yield
    finally:
        for handler, stream, buffer in held:
            handler.setStream(stream)
            stream.write(buffer.getvalue())
            stream.flush()
