"""Two quiet lines: who is here and what the one cache holds above, what is going on below."""

from __future__ import annotations

from collections.abc import Sequence

from textual.content import Content
from textual.widgets import Static

from icarus_local.chat.events import AnswerDone
from icarus_local.chat.figures import mib
from icarus_tui.looks import colour, literal


class Status(Static):
    """The agents by name and colour, and the use of the cache that they share."""

    DEFAULT_CSS = """
    Status { background: $panel; padding: 0 1; max-height: 3; }
    """

    def __init__(self, agents: Sequence[str], n_ctx: int) -> None:
        self._agents, self._n_ctx = tuple(agents), n_ctx
        self._cache = f"0/{n_ctx} tokens"
        self._at_once: dict[str, int] = {}
        self._token_bytes = 0.0
        super().__init__(self._content(), markup=False)

    def show(self, done: Sequence[AnswerDone], at_once: bool) -> None:
        """Shows what the cache holds after an answer, or after answers that were given at once."""
        tokens = {each.agent: each.reused + each.encoded + each.generated for each in done}
        self._at_once = tokens if at_once else {}
        last = done[-1]
        if not at_once:
            self._show(tokens[last.agent], last.kv_bytes, len(self._agents), last.kv_bytes_separate)
        elif last.kv_bytes_separate and any(each.generated for each in done):
            # Each has counted what all read. The last to end knows what all take: together, and if nothing were shared.
            self._token_bytes = last.kv_bytes_separate / sum(tokens.values())
            self._show(round(last.kv_bytes / self._token_bytes), last.kv_bytes, len(done), last.kv_bytes_separate)

    def keep(self, agents: Sequence[str]) -> None:
        """Of answers that were given at once only that of `agents` is left, where it is one."""
        tokens = [self._at_once[name] for name in agents if name in self._at_once]
        if len(tokens) == 1:
            n_bytes = round(tokens[0] * self._token_bytes)
            self._show(tokens[0], n_bytes, len(self._agents), n_bytes * len(self._agents))
        self._at_once = {}

    def begin_anew(self) -> None:
        """Nothing has been said."""
        self._at_once = {}
        self._cache = f"0/{self._n_ctx} tokens"
        self.update(self._content())

    def _show(self, tokens: int, n_bytes: int, caches: int, n_bytes_separate: int) -> None:
        separate = f"{caches} separate cache{'' if caches == 1 else 's'}: {mib(n_bytes_separate)}"
        self._cache = f"{min(tokens, self._n_ctx)}/{self._n_ctx} tokens, {mib(n_bytes)}; {separate}"
        self.update(self._content())

    def _content(self) -> Content:
        names = [literal(name, f"bold {colour(index)}") for index, name in enumerate(self._agents)]
        return Content.assemble(Content(" ").join(names), literal("  "), literal(self._cache, "dim"))


class Activity(Static):
    """What the program is doing, or what a key would do next."""

    DEFAULT_CSS = """
    Activity { height: 1; padding: 0 1; color: $text-muted; text-wrap: nowrap; text-overflow: ellipsis; }
    """

    def __init__(self) -> None:
        super().__init__("", markup=False)
        self._text = ""

    def show(self, text: str) -> None:
        """Says `text`, or nothing."""
        if text != self._text:
            self._text = text
            self.update(literal(text))
