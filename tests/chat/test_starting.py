"""Opening a conversation as it is watched: it says how far it is, and stops at once wherever it is."""

from __future__ import annotations

import logging
import sys
import threading
import time
from functools import partial
from pathlib import Path

import pytest

from icarus_local.chat.agents import Agent
from icarus_local.chat.process import EngineProcess
from icarus_local.chat.requests import Ask
from icarus_local.chat.starting import Opening
from icarus_local.cli.engine_options import EngineOptions
from icarus_local.cli.opening import SessionOptions, open_session
from icarus_local.engine.content import content_id
from icarus_local.engine.engine import Engine
from icarus_local.errors import AdapterError, CancelledError, EngineDiedError
from tests.chat import openers
from tests.chat.chats import done
from tests.gguf_files import quantised
from tests.tiny import Tiny, tiny_llama

LIMIT_S = 1.0  # within which a stop must be seen

Told = list[tuple[str, float | None]]


def watched() -> tuple[Opening, Told]:
    told: Told = []
    return Opening(lambda text, fraction: told.append((text, fraction))), told


def test_progress_comes_in_order_and_stderr_goes_to_the_log(
    tiny: Tiny, agents: list[Agent], capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    opening, told = watched()
    opener = partial(openers.told, tiny.path, agents)
    with caplog.at_level(logging.DEBUG), EngineProcess(opener, opening) as chat:
        assert told == [("reading base.gguf", 0.25)]
        # Once it is open, a stop of the opening stops nothing.
        opening.cancel()
        assert len(done(chat.submit(Ask("hello", ("a",))))) == 1
        assert chat.opened.engine == 0
    assert capfd.readouterr() == ("", "")
    assert any("a line of a library" in text for _, _, text in caplog.record_tuples)
    # Where nobody watches, it is shown where people look.
    with EngineProcess(opener):
        pass
    assert capfd.readouterr() == ("", "a line of a library\n")


def test_it_stops_at_once_while_it_loads(tiny: Tiny, agents: list[Agent]) -> None:
    loading = threading.Event()

    def tell(text: str, fraction: float | None) -> None:
        if text == "agent a":
            loading.set()

    opening, stopped = Opening(tell), []

    def stop() -> None:
        assert loading.wait(60)
        stopped.append(time.perf_counter())
        opening.cancel()
        opening.cancel()

    thread = threading.Thread(target=stop)
    thread.start()
    with pytest.raises(CancelledError, match="loading was stopped"):
        EngineProcess(partial(openers.slow, tiny.path, agents), opening)
    assert time.perf_counter() - stopped[0] < LIMIT_S
    thread.join()


def test_stopped_before_it_begins_it_opens_nothing(tiny: Tiny, agents: list[Agent]) -> None:
    opening, told = watched()
    opening.cancel()
    with pytest.raises(CancelledError):
        EngineProcess(partial(openers.told, tiny.path, agents), opening)
    assert told == []


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_what_was_stopped_leaves_no_process(tiny: Tiny, agents: list[Agent], monkeypatch: pytest.MonkeyPatch) -> None:
    opening, _ = watched()
    pids: list[int] = []
    begin = Opening.stopped_by

    def note(self: Opening, stop: object) -> object:
        pids.append(stop.__self__.pid)  # type: ignore[attr-defined]
        self.cancel()
        return begin(self, stop)  # type: ignore[arg-type]

    monkeypatch.setattr(Opening, "stopped_by", note)
    with pytest.raises(CancelledError):
        EngineProcess(partial(openers.slow, tiny.path, agents), opening)
    assert not Path(f"/proc/{pids[0]}").exists()


def test_what_goes_wrong_while_it_opens_is_told_as_it_is() -> None:
    opening, _ = watched()
    with pytest.raises(AdapterError, match=r"no such adapter\. Give another"):
        EngineProcess(openers.refuse, opening)
    with pytest.raises(EngineDiedError, match="ended unexpectedly"):
        EngineProcess(openers.die, opening)


def test_a_screen_that_fails_to_show_it_ends_the_opening(tiny: Tiny, agents: list[Agent]) -> None:
    def tell(text: str, fraction: float | None) -> None:
        raise RuntimeError("no screen")

    with pytest.raises(RuntimeError, match="no screen"):
        EngineProcess(partial(openers.slow, tiny.path, agents), Opening(tell))


def test_a_chat_says_what_it_reads(
    tiny: Tiny, agents: list[Agent], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The base, where it is copied with how much of it; the agents; and the conversation that goes on."""
    monkeypatch.setenv("ICARUS_HOME", str(tmp_path))
    engine = EngineOptions(str(tiny.path), device="cpu", threads=1, repack=True)
    options = SessionOptions(engine, f"mine={agents[0].adapter}, base", max_tokens=5)
    opening, told = watched()
    with EngineProcess(partial(open_session, options), opening) as chat:
        assert chat.opened.agents == ("mine", "base")
        assert [agent.given for agent in chat.opened.roster] == [f"mine={agents[0].adapter}", "base"]
        list(chat.submit(Ask("hello")))
    assert told[0] == ("reading tiny.gguf", None)
    assert told[-2:] == [("agent mine", None), ("agent base", None)]
    # Resumed; the file is known by now.
    resumed = SessionOptions(engine, "base", resume="")
    opening, told = watched()
    with EngineProcess(partial(open_session, resumed), opening) as chat:
        assert len(chat.opened.before) == 3
        assert chat.opened.cache.tokens > 20
        assert chat.opened.cache.caches == 1
    assert told[-2:] == [("agent base", None), ("restoring the conversation", None)]
    # A file that nobody has read yet.
    for file in (tmp_path / "cache").glob("*"):
        file.unlink()
    opening, told = watched()
    with EngineProcess(partial(open_session, resumed), opening):
        pass
    fractions = [fraction for text, fraction in told if text == "checking tiny.gguf"]
    assert fractions[-1] == 1.0
    assert fractions == sorted(fractions, key=float)


def test_a_content_id_is_the_same_whoever_watches(tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: Told = []
    ids = []
    for name in ("one", "two"):
        monkeypatch.setenv("ICARUS_HOME", str(tmp_path / name))
        ids.append(content_id(tiny.path, None if name == "one" else lambda *of: told.append(of)))
    assert ids[0] == ids[1]
    assert len(told) > 5


def test_weights_that_are_copied_are_counted_in_bytes(tmp_path: Path) -> None:
    base = tiny_llama(tmp_path, hidden=256, n_ff=256)
    told: Told = []
    with Engine(quantised(base.path, tmp_path / "q4_0.gguf", "Q4_0"), repack=True, report=lambda *of: told.append(of)):
        pass
    assert told[0] == ("reading q4_0.gguf", None)
    fractions = [fraction for _, fraction in told[1:] if fraction is not None]
    if not fractions:
        pytest.skip("this CPU has no kernels for repacked Q4_0")
    assert len(fractions) == len(told) - 1
    assert fractions == sorted(fractions)
    assert fractions[-1] == 1.0


def test_where_nobody_was_named_those_who_do_not_fit_the_base_take_no_part(tiny: Tiny, tmp_path: Path) -> None:
    engine = EngineOptions(str(tiny.path), n_ctx=256)
    with EngineProcess(partial(open_session, SessionOptions(engine, None, save=False))) as chat:
        assert chat.opened.agents == ("base",)
        told = " ".join(chat.opened.notices)
        assert "coder takes no part: " in told
        assert "reviewer takes no part: " in told
        assert "the base itself answers" in told
    # Somebody who was named is missed.
    with pytest.raises(AdapterError, match="agent coder"):
        EngineProcess(partial(open_session, SessionOptions(engine, "coder", save=False)))
