"""Is idle over and over until it is killed: `python -m tests.chat.idle_killed BASE FOLDER ID` (tests.kills)."""

from __future__ import annotations

import itertools
import sys
import time
from pathlib import Path

from icarus_local.chat.keeper import Keeper
from icarus_local.chat.session import Session
from icarus_local.chat.store import Store
from icarus_local.engine.engine import Engine
from icarus_local.text.template import ChatTemplate
from icarus_local.text.tokenizer import Tokenizer
from tests.chat.chats import make_roster
from tests.kills import serve


def main() -> None:
    """Goes on with a conversation and writes its state, by turns as it is and with 200 tokens more."""
    base, folder, id_ = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
    with Engine(base, n_ctx=1024, kv_type="f32", n_threads=1, device="cpu") as engine:
        tokenizer = Tokenizer(base)
        assert tokenizer.template_source is not None
        template = ChatTemplate(tokenizer.template_source, tokenizer)
        session = Session(engine, tokenizer, template, make_roster([], engine))
        Keeper(Store(folder), session, tokenizer, id_).close()
        shorter, longer = engine.cells.fork(session.sequence), engine.cells.fork(session.sequence)
        engine.forward(encode=[(longer, [9] * 200)])

        def work() -> None:
            keeper = Keeper(Store(folder), session, tokenizer, id_)
            session.cached.reuse(engine.cells.tokens(session.sequence).tolist())  # all of it counts
            for session.cached.sequence in itertools.cycle([longer, shorter]):
                keeper.idle()
                time.sleep(0.001)

        serve(work)


if __name__ == "__main__":
    main()
