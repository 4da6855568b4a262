"""Whom a line is meant for."""

from __future__ import annotations

import pytest

from icarus_local.chat.address import split_address


@pytest.mark.parametrize(
    ("line", "meant"),
    [
        ("hello", ("hello", ())),
        ("@coder do it", ("do it", ("coder",))),
        (" @coder: do\nit ", ("do\nit ", ("coder",))),
        ("@coder, do it", ("do it", ("coder",))),
        ("@coder", ("", ("coder",))),
        ("mail me@coder now", ("mail me@coder now", ())),
        ("@dataclass(frozen=True) is what?", ("@dataclass(frozen=True) is what?", ())),
    ],
)
def test_lines(line: str, meant: tuple[str, tuple[str, ...]]) -> None:
    assert split_address(line) == meant
