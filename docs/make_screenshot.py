"""Writes docs/chat.svg: the screen after coder and reviewer have answered on the embedded base."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from pathlib import Path

from icarus_local.chat.session import Session
from icarus_local.chat.worker import Worker
from icarus_local.cli.chat import ChatOptions, open_session
from icarus_local.cli.engine_options import EngineOptions
from icarus_tui.app import IcarusApp
from icarus_tui.prompt import Prompt
from icarus_tui.transcript import Transcript

_QUESTION = "Write a function that counts vowels."
_SIZE = (110, 32)
_LIMIT_S = 60


async def _shoot(worker: Worker, target: Path) -> None:
    app = IcarusApp(worker, [], worker.session.engine.n_ctx)
    async with app.run_test(size=_SIZE) as pilot:
        app.query_one(Prompt).insert(_QUESTION)
        await pilot.press("enter")
        for _ in range(10 * _LIMIT_S):
            await pilot.pause(0.1)
            if app.query_one(Transcript).text.count("in one cache") == len(worker.session.agents):
                break
        await pilot.pause(0.3)
        target.write_text(app.export_screenshot(title="icarus-local chat --agents coder,reviewer"), "utf-8")


def main() -> None:
    options = ChatOptions(EngineOptions(), agents="coder,reviewer", save=False)
    with ExitStack() as stack:

        def make_session() -> Session:
            return open_session(options, stack).session

        worker = stack.enter_context(Worker(make_session))
        asyncio.run(_shoot(worker, Path(__file__).with_name("chat.svg")))


if __name__ == "__main__":
    main()
