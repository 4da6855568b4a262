"""Log lines are kept from the terminal, the last ones are there to be read, and nothing in them is obeyed."""

from __future__ import annotations

import io
import logging
import threading
import time
from collections.abc import Iterator

import pytest

from icarus_tui.logs import LogBuffer, LogsScreen, held_logs
from tests.tui.alone import SIZES, alone, driven

ENGINE = logging.getLogger("icarus_local.chat.process")


@pytest.fixture
def stderr() -> Iterator[io.StringIO]:
    """A root logger as the command sets it up, and what it wrote."""
    stream, root = io.StringIO(), logging.getLogger()
    handlers, level = root.handlers[:], root.level
    root.handlers[:] = [logging.StreamHandler(stream)]
    root.setLevel(logging.CRITICAL)
    yield stream
    root.handlers[:] = handlers
    root.setLevel(level)


def log(buffer: LogBuffer, text: str, level: int = logging.INFO, name: str = "icarus_local.x") -> None:
    buffer.handle(logging.makeLogRecord({"name": name, "levelno": level, "msg": text}))


def kept(buffer: LogBuffer) -> list[str]:
    return [line.text for line in buffer.lines()]


def test_lines_of_the_engine_are_kept_and_nothing_is_written(stderr: io.StringIO) -> None:
    handler = logging.getLogger().handlers[0]
    with held_logs() as buffer:
        ENGINE.debug("engine's process: %s", "llama_model_load: a line")
        logging.getLogger("icarus_local.ggml.log").warning("from C")
        logging.getLogger("markdown_it").debug("thousands of these")
        logging.getLogger("httpx").warning("a warning of others")
        assert kept(buffer) == ["engine's process: llama_model_load: a line", "from C", "a warning of others"]
        assert stderr.getvalue() == ""
    assert stderr.getvalue() == ""
    assert handler in logging.getLogger().handlers
    ENGINE.warning("after it")
    assert logging.getLogger().level == logging.CRITICAL
    assert not ENGINE.isEnabledFor(logging.ERROR)
    assert stderr.getvalue() == ""


def test_what_would_have_been_written_is_written_afterwards(stderr: io.StringIO) -> None:
    logging.getLogger().setLevel(logging.INFO)
    logging.getLogger().handlers[0].setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))

    def screen() -> None:
        with held_logs():
            ENGINE.debug("too little")
            ENGINE.info("%d lines", 2)
            try:
                raise ValueError("a fault")
            except ValueError:
                ENGINE.exception("it failed")
            assert stderr.getvalue() == ""
            raise KeyError("the screen failed")

    with pytest.raises(KeyError):
        screen()
    written = stderr.getvalue()
    assert written.startswith("INFO icarus_local.chat.process: 2 lines\nERROR icarus_local.chat.process: it failed\n")
    assert written.endswith("ValueError: a fault\n")
    assert "too little" not in written


def test_a_file_gets_what_it_got(stderr: io.StringIO, tmp_path: object) -> None:
    file = logging.FileHandler(f"{tmp_path}/log")
    logging.getLogger().addHandler(file)
    logging.getLogger().setLevel(logging.WARNING)
    with held_logs():
        ENGINE.debug("too little")
        ENGINE.warning("at once")
        with open(f"{tmp_path}/log") as lines:
            assert lines.read() == "at once\n"
    file.close()
    assert file.level == logging.NOTSET


def test_records_of_many_threads_are_all_counted_and_the_last_are_kept() -> None:
    buffer = LogBuffer(100)
    threads = [
        threading.Thread(target=lambda n=n: [log(buffer, f"{n}:{i}") for i in range(500)])  # type: ignore[misc]
        for n in range(4)
    ]
    for thread in threads:
        thread.start()
    seen = 0
    while any(thread.is_alive() for thread in threads):
        lines = buffer.lines(seen)
        assert len(lines) <= 100
        assert [line.number for line in lines] == [lines[0].number + i for i in range(len(lines))] if lines else True
        seen = lines[-1].number if lines else seen
    for thread in threads:
        thread.join()
    assert buffer.lines()[-1].number == 2000
    assert len(buffer.lines()) == 100
    assert buffer.lines(1990) == buffer.lines()[-10:]
    assert buffer.lines(2000) == []


def test_a_record_that_cannot_be_put_together_is_kept_as_such(capsys: pytest.CaptureFixture[str]) -> None:
    buffer = LogBuffer()
    buffer.handle(logging.makeLogRecord({"name": "x", "levelno": 30, "msg": "%d of %d", "args": ("one",)}))
    log(buffer, "x" * 30_000)
    assert "'%d of %d' with ('one',): not enough arguments" in kept(buffer)[0] or "%d format" in kept(buffer)[0]
    assert kept(buffer)[1].endswith("x… (30000 characters)")
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("size", SIZES)
@driven
async def test_lines_are_shown_as_they_are_followed_and_filtered(size: tuple[int, int]) -> None:
    buffer = LogBuffer()
    log(buffer, "quiet", logging.DEBUG)
    log(buffer, "\x1b[2J[bold]\ud800 世界 שלום", logging.WARNING)
    async with alone(LogsScreen(buffer), size) as s:
        await s.shows("quiet", "[2J[bold]")
        assert "\x1b" not in s.text
        assert {"Back", "Level"} <= s.footer
        log(buffer, "and one more", logging.ERROR)
        await s.shows("one more", "debug and above, 3 lines")
        await s.press("l", "l")
        await s.shows("warning and above, 2 lines")
        assert "quiet" not in s.text
        await s.press("l", "l")
        await s.shows("debug and above, 3 lines", "quiet")
        await s.press("escape")
        await s.until(lambda: s.app.screen is not s.screen)


@driven
async def test_what_is_read_stays_where_it_is_and_the_end_is_followed() -> None:
    buffer = LogBuffer()
    for n in range(200):
        log(buffer, f"line {n}.")
    async with alone(LogsScreen(buffer), (60, 20)) as s:
        await s.shows("line 199.")
        log(buffer, "line 200.")
        await s.shows("line 200.")
        await s.press("home")
        await s.shows("line 0.", "End follows")
        log(buffer, "line 201.")
        await s.shows("202 lines")
        assert "line 0." in s.text
        await s.press("end")
        await s.shows("line 201.")
        log(buffer, "line 202.")
        await s.shows("line 202.")


@driven
async def test_long_lines_are_wrapped_and_wrapped_anew() -> None:
    buffer = LogBuffer()
    log(buffer, "a" * 100 + "z")
    async with alone(LogsScreen(buffer), (40, 10)) as s:
        await s.until(lambda: "a" * 100 + "z" in "".join(row.strip() for row in s.rows))
        await s.pilot.resize_terminal(200, 10)
        await s.until(lambda: "a" * 100 + "z" in s.text)


@driven
async def test_a_full_log_opens_at_once() -> None:
    buffer = LogBuffer()
    for n in range(6_000):
        log(buffer, f"engine's process: llama_model_loader: - kv {n:3}: a key of an ordinary length str = value")
    start = time.monotonic()
    async with alone(LogsScreen(buffer)) as s:
        await s.shows("5999: a key")
        assert time.monotonic() - start < 3
