"""Two quiet lines: who is here and what the one cache holds above, what is going on below."""

from __future__ import annotations

from collections.abc import Sequence

from textual.content import Content
from textual.widgets import Static

from icarus_local.chat.events import AnswerDone
from icarus_tui.looks import colour, literal


class Status(Static):
    """The agents by name and colour, and the use of the cache that they share."""

    DEFAULT_CSS = """
    Status { background: $panel; padding: 0 1; max-height: 3; }
    """

    def __init__(self, agents: Sequence[str], n_ctx: int) -> None:
        self._agents, self._n_ctx = tuple(agents), n_ctx
        self._cache = f"0/{n_ctx} tokens"
        super().__init__(self._content(), markup=False)

    def show(self, done: AnswerDone) -> None:
        """Shows what the cache holds after an answer."""
        tokens = min(done.reused + done.encoded + done.generated, self._n_ctx)
        one, separate = done.kv_bytes / 2**20, done.kv_bytes_separate / 2**20
        self._cache = (
            f"{tokens}/{self._n_ctx} tokens, {one:.1f} MiB; {len(self._agents)} separate caches: {separate:.1f} MiB"
        )
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
