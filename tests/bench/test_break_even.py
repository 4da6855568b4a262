"""From how many agents one cache for all is not slower: between measured points, or estimated from one."""

from __future__ import annotations

import pytest

from icarus_local.bench.break_even import estimated_break_even, measured_break_even
from icarus_local.bench.records import Record, Turned
from icarus_local.bench.report import table
from icarus_local.bench.summary import summarise
from tests.bench.reports import case, run

STEP_S, TOKEN_S = 0.05, 0.01
ANSWER, HAND_OVER = 8, 4


def separate(agents: int, busy: float = 1.0) -> Record:
    """Caches of their own: a token takes 50 ms, and each further one of a prompt 10 ms; answers take 0.4 s."""
    encoded = 1 + (agents - 1) * (HAND_OVER + ANSWER) + HAND_OVER
    first = STEP_S + (encoded - 1) * TOKEN_S
    latency = first + (ANSWER - 1) * STEP_S
    turns = tuple(
        Turned(
            agent=0,
            cold=cold,
            latency_s=latency,
            ttft_s=first,
            busy_s=busy * latency,
            encoded=encoded,
            generated=ANSWER,
        )
        for cold in (True, False)
    )
    return Record(turns=turns, kv_bytes=1, kv_used_bytes=1, rss_bytes=None)


def test_the_estimate_is_where_both_take_as_long() -> None:
    # With one agent 0.44 s, and 0.12 s more for each.
    for measured_at in (2, 4, 8):
        assert estimated_break_even(0.43, [separate(measured_at)], measured_at) == 1
        assert estimated_break_even(0.45, [separate(measured_at)], measured_at) == 2
        assert estimated_break_even(0.79, [separate(measured_at)], measured_at) == 4
        assert estimated_break_even(0.81, [separate(measured_at)], measured_at) == 5


def test_nothing_is_estimated_of_one_agent_or_of_answers_that_wait_for_each_other() -> None:
    assert estimated_break_even(1.0, [separate(1)], 1) is None
    assert estimated_break_even(1.0, [separate(3, busy=0.5)], 3) is None


@pytest.mark.parametrize(
    ("points", "agents"),
    [
        # Slower by 0.3 with two, faster by 0.1 with four.
        ([(1, 1.0, 0.5), (2, 1.0, 0.7), (4, 1.0, 1.1)], 3.5),
        ([(2, 1.0, 0.9), (4, 1.0, 1.0)], 4.0),
        ([(1, 1.0, 1.0), (8, 1.0, 4.0)], 1.0),
        # From the last crossing on.
        ([(1, 1.0, 1.2), (2, 1.0, 0.8), (4, 1.0, 1.2)], 3.0),
        ([(1, 1.0, 0.2), (8, 1.0, 0.9)], None),
        ([(8, 1.0, 4.0)], None),
        ([], None),
    ],
)
def test_what_was_measured_is_crossed_by_a_straight_line(
    points: list[tuple[int, float, float]], agents: float | None
) -> None:
    assert measured_break_even(points) == (None if agents is None else pytest.approx(agents))


def test_what_was_measured_is_told_instead_of_the_estimate() -> None:
    theirs = {1: 0.5, 2: 0.7, 4: 1.1}
    one = [run("icarus", case(agents=4), 1.0), run("separate", case(agents=4), theirs[4])]
    alone = summarise(one, case(agents=4))
    assert alone["break_even"]["measured_agents"] is None
    assert "(an estimate from this case alone)" in table(case(agents=4), alone)
    all_cases = [
        run(system, case(agents=n), seconds)
        for n, theirs_s in theirs.items()
        for system, seconds in (("icarus", 1.0), ("separate", theirs_s))
    ]
    # Another context, and a case without separate caches, have no part in it.
    others = [run("icarus", case(agents=8, context=512), 9.0), run("separate", case(agents=8, context=512), 1.0)]
    found = summarise([*all_cases, *others, run("icarus", case(agents=16), 1.0)], case(agents=4))
    assert found["break_even"]["measured_agents"] == pytest.approx(3.5)
    assert found["break_even"]["measured_at"] == [1, 2, 4]
    assert found["break_even"]["estimated_agents"] == alone["break_even"]["estimated_agents"]
    assert "from 4 agents on (measured with 1, 2, 4)" in table(case(agents=4), found)
