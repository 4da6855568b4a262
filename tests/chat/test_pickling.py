"""What crosses between a program and its engine's process arrives as it was sent."""

from __future__ import annotations

import inspect
import pickle
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icarus_local import errors
from icarus_local.chat.events import AgentState, AnswerDone, Event, Said
from icarus_local.chat.requests import Request
from icarus_local.cli.bases import NoBaseError
from icarus_local.errors import IcarusError
from icarus_local.text.sandbox import LimitError

ERRORS = [
    *(kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, IcarusError)),
    LimitError,
    NoBaseError,
]
REQUESTS, EVENTS = get_args(Request), get_args(Event)
# Not a number equals nothing, itself included.
SECONDS = st.floats(allow_nan=False)


def again(value: Any, protocol: int = pickle.DEFAULT_PROTOCOL) -> Any:
    return pickle.loads(pickle.dumps(value, protocol))


def any_of(kind: type) -> st.SearchStrategy[Any]:
    return st.builds(AnswerDone, ttft_s=SECONDS, tok_s=SECONDS) if kind is AnswerDone else st.from_type(kind)


def test_nothing_is_forgotten() -> None:
    """Every class of the modules is in the union that crosses."""
    for union in (REQUESTS, EVENTS):
        module = inspect.getmodule(union[0])
        made = {
            kind for _, kind in inspect.getmembers(module, inspect.isclass) if kind.__module__ == union[0].__module__
        }
        # Those that are parts of others.
        assert made - {AgentState, Said} == set(union)
    assert len(ERRORS) > 10


@pytest.mark.parametrize("kind", [*REQUESTS, *EVENTS], ids=lambda kind: kind.__name__)
@given(data=st.data())
def test_requests_and_events_arrive_equal(kind: type, data: st.DataObject) -> None:
    value = data.draw(any_of(kind))
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        arrived = again(value, protocol)
        assert type(arrived) is kind
        assert arrived == value


@pytest.mark.parametrize("kind", ERRORS, ids=lambda kind: kind.__name__)
@given(what=st.text(), hint=st.text())
def test_errors_arrive_with_both_their_parts(kind: type[IcarusError], what: str, hint: str) -> None:
    for error in (kind(what, hint), kind(what)):
        arrived = again(error)
        assert type(arrived) is kind
        assert (arrived.what, arrived.hint, str(arrived)) == (error.what, error.hint, str(error))
        assert arrived.exit_code == error.exit_code
        assert again(arrived).hint == error.hint
