"""Writes docs/chat.svg: the screen after coder and reviewer have answered on the embedded base."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path

from icarus_local.chat.process import EngineProcess
from icarus_local.chat.reply import Chat
from icarus_local.cli.engine_options import EngineOptions
from icarus_local.cli.opening import SessionOptions, open_session
from icarus_tui.app import IcarusApp
from icarus_tui.prompt import Prompt
from icarus_tui.transcript import Transcript

_QUESTION = "Write a function that counts vowels."
_SIZE = (110, 32)
_LIMIT_S = 60


async def _shoot(chat: Chat, target: Path) -> None:
    app = IcarusApp(chat)
    async with app.run_test(size=_SIZE) as pilot:
        app.query_one(Prompt).insert(_QUESTION)
        await pilot.press("enter")
        for _ in range(10 * _LIMIT_S):
            await pilot.pause(0.1)
            if app.query_one(Transcript).text.count("in one cache") == len(chat.opened.agents):
                break
        await pilot.pause(0.3)
        target.write_text(app.export_screenshot(title="icarus-local chat --agents coder,reviewer"), "utf-8")


def main() -> None:
    options = SessionOptions(EngineOptions(), agents="coder,reviewer", save=False)
    with EngineProcess(partial(open_session, options)) as chat:
        asyncio.run(_shoot(chat, Path(__file__).with_name("chat.svg")))


if __name__ == "__main__":
    main()
