"""What was decided lately: how long it stands, and what windows are worth with other numbers of rows in mind."""

from __future__ import annotations

import math
from itertools import takewhile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gravity_rl.decoding.decisions import ELSEWHERE, HALF_LIFE_TIME, Decisions

LADDER = (0, 2, 4)
SPEEDS = {0: 1.0, 2: 3.0, 4: 2.0}


def standing_rounds(decisions: Decisions, live_rows: int) -> int:
    return len(list(takewhile(lambda _: decisions.standing(live_rows, LADDER) is not None, range(100))))


def test_a_decision_stands_for_four_rounds_and_if_it_is_made_again_for_eight() -> None:
    decisions = Decisions()
    assert standing_rounds(decisions, 20) == 0
    for window, rounds in ((2, 4), (2, 8), (2, 8), (4, 4), (4, 8)):
        decisions.decide(20, window, SPEEDS, SPEEDS, stands=True)
        assert decisions.last(31) == window
        assert standing_rounds(decisions, 16) == rounds - 1  # the round that it was made for is one of them


def test_a_decision_is_one_for_a_doubling_of_rows_and_a_ladder() -> None:
    decisions = Decisions()
    decisions.decide(20, 2, SPEEDS, SPEEDS, stands=True)
    assert decisions.standing(15, LADDER) is decisions.standing(32, LADDER) is decisions.standing(20, (0, 2)) is None
    assert decisions.last(15) is decisions.last(32) is None
    standing = decisions.standing(31, LADDER)
    assert standing is not None
    assert (standing.block_size, standing.speeds) == (2, SPEEDS)


def test_an_exception_leaves_nothing_that_stands() -> None:
    decisions = Decisions()
    decisions.decide(20, 2, SPEEDS, SPEEDS, stands=True)
    decisions.decide(20, 4, SPEEDS, SPEEDS, stands=False)
    assert standing_rounds(decisions, 20) == 0
    assert decisions.last(20) == 4


def test_a_window_is_worth_something_for_what_it_does_elsewhere() -> None:
    decisions = Decisions()
    decisions.decide(3, 4, {0: 1.0, 2: 1.0, 4: 16.0}, {}, stands=True)
    assert decisions.worth(20, SPEEDS) == SPEEDS  # no time was spent anywhere
    decisions.observe(20, 1.0)
    decisions.observe(3, 1.0)
    earlier = 0.5 ** (1 / HALF_LIFE_TIME)
    part = ELSEWHERE / (1 + earlier)
    worth = decisions.worth(20, SPEEDS)
    assert worth == pytest.approx({0: 1.0, 2: 3.0 ** (1 - part), 4: 2.0 ** (1 - part) * 16.0**part})
    assert max(worth, key=worth.__getitem__) == 4
    for _ in range(200):
        decisions.observe(20, 1.0)
    assert decisions.worth(20, SPEEDS) == pytest.approx(SPEEDS, rel=0.02)
    assert decisions.worth(20, {0: 1.0, 2: 3.0}) == pytest.approx({0: 1.0, 2: 3.0})  # of another ladder
    wider = {0: 1.0, 2: 3.0, 4: 2.0, 8: 1.0}
    assert decisions.worth(20, wider) == pytest.approx(wider)


@given(
    rounds=st.lists(st.tuples(st.integers(1, 300), st.floats(0, 1e300), st.sampled_from(LADDER)), max_size=30),
    speeds=st.lists(st.floats(1e-9, 1e9), min_size=3, max_size=3),
    live_rows=st.integers(1, 300),
)
def test_worth_lies_between_the_speeds(
    rounds: list[tuple[int, float, int]], speeds: list[float], live_rows: int
) -> None:
    decisions = Decisions()
    given_speeds = dict(zip(LADDER, speeds, strict=True))
    for rows, seconds, window in rounds:
        decisions.decide(rows, window, SPEEDS, SPEEDS, stands=True)
        decisions.observe(rows, seconds)
    for window, value in decisions.worth(live_rows, given_speeds).items():
        pair = sorted((given_speeds[window], SPEEDS[window]))
        assert math.isfinite(value) and pair[0] * (1 - 1e-9) <= value <= pair[1] * (1 + 1e-9)
