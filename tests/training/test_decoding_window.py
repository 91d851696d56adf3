"""The choice of the window in simulated decoding: how fast it is, and what is told of it."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from window_simulation import CPU, GPU, LADDER, Simulation, Times, constant, ragged, round_seconds, share, speed

from gravity_rl.decoding.cost import CostModel
from gravity_rl.decoding.decisions import Decisions
from gravity_rl.decoding.window import HYSTERESIS, REACH, AutoWindow, FixedWindow, WindowPolicy, ladder

# ---- how fast it is


@pytest.mark.parametrize("hazard", [0.0, 0.3, 0.5, 0.7, 0.87, 1.0])
@pytest.mark.parametrize(("rows", "calls"), [(1, 16), (4, 6), (28, 2), (56, 1)])
@pytest.mark.parametrize("times", [CPU, GPU], ids=["cpu", "gpu"])
def test_after_three_calls_it_is_as_fast_as_the_best_fixed_window(
    times: Times, rows: int, calls: int, hazard: float
) -> None:
    simulation = Simulation(times, constant(hazard))
    measured = range(3, 3 + calls)
    best = max(
        speed([simulation.decode(FixedWindow(window), ragged(rows, call), call=call) for call in measured])
        for window in LADDER
    )
    cost_model = CostModel()
    results = [
        simulation.decode(AutoWindow(cost_model, LADDER), ragged(rows, call), call=call) for call in range(3 + calls)
    ]
    assert speed(results[3:]) > 0.97 * best


def test_a_ragged_batch_is_decoded_faster_than_with_any_fixed_window() -> None:
    simulation = Simulation(CPU, constant(0.8))
    cost_model = CostModel()
    auto = [simulation.decode(AutoWindow(cost_model, LADDER), ragged(56, call), call=call) for call in range(4)]
    fixed = [speed([simulation.decode(FixedWindow(window), ragged(56, 3), call=3)]) for window in LADDER]
    assert speed(auto[3:]) > 1.03 * max(fixed)


@pytest.mark.parametrize("rows", [14, 28, 56])
@pytest.mark.parametrize("hazard", [0.6, 0.8, 0.9])
def test_short_responses_are_no_trap(rows: int, hazard: float) -> None:
    """Where AR is fastest at first and drafts at the end of a batch, most drafted rounds are the last of their rows."""
    simulation, calls = Simulation(CPU, constant(hazard)), range(20)
    rng = random.Random(rows)
    lengths = [[rng.choice((20, 40, 50, 60)) for _ in range(rows)] for _ in calls]

    def decode(policy: Callable[[], WindowPolicy]) -> float:
        return speed([simulation.decode(policy(), lengths[call], call=call) for call in calls][6:])

    cost_model = CostModel()
    best = max(decode(partial(FixedWindow, window)) for window in LADDER)
    assert decode(lambda: AutoWindow(cost_model, LADDER)) > 0.97 * best


def test_a_drafter_that_knows_only_four_positions_is_hardly_asked_for_more() -> None:
    simulation = Simulation(CPU, lambda position: 0.95 if position <= 4 else 0.0)
    cost_model, calls = CostModel(), range(6)
    policies = [AutoWindow(cost_model, LADDER) for _ in calls]
    auto = [simulation.decode(policies[call], ragged(4, call), call=call) for call in calls]
    best = [simulation.decode(FixedWindow(4), ragged(4, call), call=call) for call in calls]
    assert speed(auto[2:]) > 0.97 * speed(best[2:])
    assert share(policies[-1], [4]) > 0.5 and share(policies[-1], [16]) < 0.05


@pytest.mark.parametrize("slow_rounds", [(), (20,), (20, 10)], ids=["calm", "slow start", "two slow rounds"])
@pytest.mark.parametrize("hazard", [0.0, 0.5, 0.87, 1.0])
@pytest.mark.parametrize("times", [CPU, GPU], ids=["cpu", "gpu"])
def test_the_first_call_is_not_much_slower_even_with_few_rounds(
    times: Times, hazard: float, slow_rounds: Sequence[float]
) -> None:
    simulation = Simulation(times, constant(hazard), stall_share=0)
    calls = range(20)

    def first_calls(policy: Callable[[], WindowPolicy]) -> float:
        return speed([simulation.decode(policy(), [999], call=c, max_rounds=8, slow_rounds=slow_rounds) for c in calls])

    best = max(first_calls(partial(FixedWindow, window)) for window in LADDER)
    assert first_calls(lambda: AutoWindow(CostModel(), LADDER)) > best / 1.25


def test_the_first_round_of_a_call_teaches_nothing_about_times() -> None:
    """It computes noise for many positions and is no trial: else windows that are tried there looked slow for good."""
    cost_model = CostModel()
    for call in range(4):
        Simulation(CPU, constant(0.8)).decode(AutoWindow(cost_model, LADDER), ragged(4, call), call=call)
    for _ in range(20):
        cost_model.call_began -= 10  # the call before was no short one
        before = [cost_model.seconds(window, 4) for window in LADDER]
        policy = AutoWindow(cost_model, LADDER)
        window = policy.choose(4)
        policy.observe(window, 4, 1.25 * round_seconds(CPU, window, 4), [2] * 4)
        assert policy.choices[0].reason == "fastest"
        assert [cost_model.seconds(window, 4) for window in LADDER] == pytest.approx(before, rel=1e-3)
    policy.observe(policy.choose(4), 4, 1.25 * round_seconds(CPU, window, 4), [2] * 4)
    assert [cost_model.seconds(window, 4) for window in LADDER] != pytest.approx(before, rel=2e-3)


def test_a_choice_stands_for_four_rounds_of_about_as_many_rows_and_then_for_eight(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also from one call to the next."""
    cost_model = CostModel()
    Simulation(CPU, constant(0.8)).decode(AutoWindow(cost_model, LADDER), [600] * 28, call=0)
    cost_model.decisions = Decisions()
    thought: list[int] = []
    real = CostModel.tokens_per_second
    monkeypatch.setattr(
        CostModel, "tokens_per_second", lambda self, *args: (thought.append(args[1]), real(self, *args))[1]
    )
    rows = [28, 27, 26, 25, 24, 23, 22, 21, 20, 19, 18, 17, 16, 12, 12, 12, 12, 11, 12, 28, 28]
    for call in range(2):
        policy = AutoWindow(cost_model, LADDER)
        for live_rows in rows[10 * call : 10 * call + 10 + call]:
            window = policy.choose(live_rows)
            policy.observe(window, live_rows, round_seconds(CPU, window, live_rows), [1] * live_rows if window else [])
    assert thought == [28, 24, 16, 12, 12]


class Known:
    """A cost model whose predictions a test sets, and of which nothing has to be tried."""

    timed_rounds, rounds, call_began, last_trial, last_ar = 1000, 1000, 0, 0, 0

    def __init__(self) -> None:
        self.decisions = Decisions()
        self.speeds = {0: 1.0, 2: 100.0, 4: 90.0}

    def tokens_per_second(self, windows: Sequence[int], live_rows: int) -> dict[int, float]:
        return dict(self.speeds)

    def settled(self, block_size: int, live_rows: int) -> bool:
        return True

    def choose(self, policy: AutoWindow, live_rows: int, four: float) -> int:
        """The next window where 4 is as fast as this; decisions do not stand."""
        self.speeds[4] = four
        window = policy.choose(live_rows)
        for _ in range(10):
            if self.decisions.standing(live_rows, (0, 2, 4)) is None:
                break
        return window


def test_a_window_stays_unless_another_one_is_worth_more_by_a_few_per_cent() -> None:
    known = Known()
    policy = AutoWindow(known, (0, 2, 4))  # type: ignore[arg-type]
    assert [known.choose(policy, 20, four) for four in (90.0, 102.0, 103.0)] == [2, 2, 4]
    policy = AutoWindow(known, (0, 2, 4))  # type: ignore[arg-type]
    assert [known.choose(policy, 20, four) for four in (98.0, 97.0)] == [4, 2]  # the last call's, at first
    assert AutoWindow(known, (0, 2, 4)).choose(3) == 2  # type: ignore[arg-type]


def test_a_window_that_stands_is_the_one_that_stays() -> None:
    known = Known()
    policy = AutoWindow(known, (0, 2, 4))  # type: ignore[arg-type]
    assert policy.choose(3) == 2  # stands
    assert known.choose(policy, 20, 120.0) == 4
    assert policy.choose(3) == 2
    assert known.choose(policy, 1, 101.0) == 2


# ---- choices


def test_choices_are_run_length_coded_with_reasons() -> None:
    cost_model = CostModel()
    policy = AutoWindow(cost_model, LADDER)
    Simulation(CPU, constant(0.87)).decode(policy, ragged(28, 0))
    first, second, *_ = policy.choices
    assert (first.first_round, first.rounds, first.live_rows, first.reason) == (0, 1, 28, "start")
    assert first.tokens_per_second == {}
    assert second.reason == "fastest" and set(second.tokens_per_second) == set(LADDER)
    assert max(second.tokens_per_second, key=second.tokens_per_second.__getitem__) == second.block_size
    for choice in policy.choices[1:]:
        if choice.reason == "fastest":
            assert choice.worth[choice.block_size] * (1 + HYSTERESIS) >= max(choice.worth.values())
    for choice, following in zip(policy.choices, policy.choices[1:], strict=False):
        assert following.first_round == choice.first_round + choice.rounds
        assert (choice.block_size, choice.reason) != (following.block_size, following.reason)
    trial = next(choice for choice in policy.choices if choice.reason == "trial")
    assert trial.worth[trial.block_size] >= (1 - REACH) / (1 + HYSTERESIS) * max(trial.worth.values())
    again = AutoWindow(cost_model, LADDER)
    again.choose(28)
    assert again.choices[0].reason != "start"


def test_long_calls_leave_few_records() -> None:
    policy = AutoWindow(CostModel(), LADDER)
    Simulation(CPU, constant(0.7)).decode(policy, [99_999], max_rounds=8448)
    assert sum(choice.rounds for choice in policy.choices) == 8448
    assert len(policy.choices) < 500


def test_a_fixed_window_is_one_record() -> None:
    policy = FixedWindow(8)
    for live_rows in (3, 3, 2, 1):
        assert policy.choose(live_rows) == 8
        policy.observe(8, live_rows, 0.1, [1] * live_rows)
    (choice,) = policy.choices
    assert (choice.first_round, choice.rounds, choice.live_rows, choice.block_size) == (0, 4, 3, 8)
    assert choice.reason == "fixed" and choice.tokens_per_second == choice.worth == {}


def test_nothing_chosen_leaves_no_record() -> None:
    assert AutoWindow(CostModel(), LADDER).choices == [] == FixedWindow(0).choices


@pytest.mark.parametrize(
    ("max_block", "windows"),
    [(0, (0,)), (1, (0, 1)), (2, (0, 2)), (5, (0, 2, 4, 5)), (16, (0, 2, 4, 8, 16)), (32, (0, 2, 4, 8, 16, 32))],
)
def test_ladder(max_block: int, windows: tuple[int, ...]) -> None:
    assert ladder(max_block) == windows


def test_a_ladder_of_plain_ar_only() -> None:
    policy = AutoWindow(CostModel(), (0,))
    Simulation(CPU, constant(0.9)).decode(policy, [400] * 2)
    assert {choice.block_size for choice in policy.choices} == {0}


@pytest.mark.parametrize("windows", [(), (2, 4), (0, 4, 2), (0, 2, 2), (0, -1)])
def test_ladders_that_do_not_ascend_from_ar_are_refused(windows: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"ladder: .* does not ascend from 0"):
        AutoWindow(CostModel(), windows)


def test_negative_windows_are_refused() -> None:
    with pytest.raises(ValueError, match="block_size: -1 is negative"):
        FixedWindow(-1)
    with pytest.raises(ValueError, match="max_block: -1 is negative"):
        ladder(-1)


@settings(max_examples=150, deadline=None)
@given(
    max_block=st.integers(0, 40),
    rounds=st.lists(
        st.tuples(
            st.integers(1, 200),
            st.one_of(st.sampled_from([0.0, 5e-324, 1e-9, 1e300]), st.floats(0, 1e6)),
            st.floats(0, 1),
            st.booleans(),
        ),
        max_size=60,
    ),
)
def test_whatever_is_observed_a_window_of_the_ladder_is_chosen(
    max_block: int, rounds: list[tuple[int, float, float, bool]]
) -> None:
    cost_model = CostModel()
    policy = AutoWindow(cost_model, ladder(max_block))
    for live_rows, seconds, accepted, obedient in rounds:
        window = policy.choose(live_rows)
        assert window in ladder(max_block)
        window = window if obedient else max_block
        policy.observe(window, live_rows, seconds, [round(accepted * window)] * live_rows if window else [])
        speeds = cost_model.tokens_per_second(ladder(max_block), live_rows)
        assert tuple(speeds) == ladder(max_block)
        assert all(0 < speed < math.inf for speed in speeds.values())
        assert all(0 < cost_model.seconds(block_size, live_rows) < math.inf for block_size in ladder(max_block))
