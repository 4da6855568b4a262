"""What drafts gain where an agent repeats what the conversation holds: the same answer with and without them."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass

from icarus_local.chat.events import AnswerDone
from icarus_local.chat.session import Session
from icarus_local.errors import IcarusError

_FILE = """\
def read_table(path):
    rows = []
    with open(path) as handle:
        for line in handle:
            line = line.strip()
            if not line or line.startswith("#"):
                continue
            rows.append(line.split(","))
    return rows


def column_sums(rows):
    totals = [0] * len(rows[0])
    for row in rows:
        for index, value in enumerate(row):
            totals[index] += int(value)
    return totals
"""
EDIT_THIS_FILE = f"Rename the function read_table to load_table in this file and write the whole file:\n\n{_FILE}"


@dataclass(frozen=True)
class DraftReport:
    """Medians over the repeats.

    Attributes:
        exact: whether drafts change no bit of an answer here, so that the texts had to be the same.
        plain_tok_s, drafted_tok_s: tokens per second after the first. gain: their ratio.
        generated: tokens of the answer. drafted, accepted: tokens guessed ahead, and those of them that were said.
    """

    exact: bool
    plain_tok_s: float
    drafted_tok_s: float
    gain: float
    generated: int
    drafted: int
    accepted: int


def measure(make: Callable[[bool], Session], agent: str, repeats: int, question: str = EDIT_THIS_FILE) -> DraftReport:
    """Asks `agent` in a new session with drafts and one without, in turn.

    Raises:
        IcarusError: the two answers differ where they must not, or are too short to measure.
    """
    answers: dict[bool, list[AnswerDone]] = {False: [], True: []}
    for _ in range(repeats):
        for drafts in answers:
            session = make(drafts)
            events = list(session.ask(question, [agent]))
            answers[drafts] += [event for event in events if isinstance(event, AnswerDone)]
            session.engine.cells.drop(session.sequence)
    exact = session.engine.verifies_exactly
    if exact and len({answer.text for both in answers.values() for answer in both}) != 1:
        raise IcarusError("the answer with drafts is not the answer without", "Please report this machine")
    plain, drafted = (statistics.median(answer.tok_s for answer in both) for both in answers.values())
    last = answers[True][-1]
    if not plain:
        raise IcarusError(f"@{agent} answered in {last.generated} tokens: too few to measure")
    return DraftReport(exact, plain, drafted, drafted / plain, last.generated, last.drafted, last.accepted)
