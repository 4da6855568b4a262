"""Bases that a person may choose from, and what the screen that shows them needs done."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class BaseChoice:
    """A base that is here, or could be.

    Attributes:
        name: as it is shown. base: what `--base` takes for it. n_bytes: of its file, None where that is not known.
        detail: what it is, or why it cannot be used. usable: whether it can be chosen.
    """

    name: str
    base: str
    n_bytes: int | None
    detail: str
    usable: bool = True


class Pulling(Protocol):
    """A file on its way from the Hub."""

    def progress(self) -> tuple[int, int | None]:
        """How many bytes are here and how many it has, None where that is not known."""

    def wait(self) -> str:
        """Waits for its end, and gives what `--base` takes for it.

        Raises:
            IcarusError: it did not come. CancelledError: it was stopped.
        """

    def stop(self) -> None:
        """Stops it, from any thread; what has arrived is kept."""


class Places(Protocol):
    """Where bases come from. All of it may take long, and is done in threads."""

    def embedded(self) -> Sequence[BaseChoice]:
        """Those that Python packages bring; not usable where the package is missing."""

    def find(self) -> Iterator[BaseChoice]:
        """Those that lie in the usual places, as they are found."""

    def offers(self) -> Sequence[BaseChoice]:
        """Those that could be fetched."""

    def size(self, offer: BaseChoice) -> int | None:
        """Bytes of what could be fetched, None where the Hub does not say.

        Raises:
            IcarusError: the Hub could not be asked, in words.
        """

    def pull(self, offer: BaseChoice) -> Pulling:
        """Begins to fetch a file, or goes on with it."""

    def remember(self, base: str) -> None:
        """Makes it the base of every start from now on.

        Raises:
            IcarusError: that could not be written.
        """
