"""The choice of the window, in simulated decoding with measured round times: no model, no clock.

Simulated seconds are exact; what the policy is told of them is noisy and has stalls. Whether a draft is right depends
on its row and position only, so that all policies decode the same responses and can be compared closely.
"""

from __future__ import annotations

import math
import random
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gravity_rl.decoding.cost import CostModel
from gravity_rl.decoding.window import AutoWindow, FixedWindow, WindowPolicy, ladder

Hazard = Callable[[int], float]

LADDER = ladder(16)
WIDTHS = (1, 3, 5, 9, 17)  # positions of a row in a forward
#: Milliseconds of a forward by live rows and width: a tiny model on one CPU thread, and a GPU that is nearly flat.
CPU = {
    1: (2.0, 2.2, 2.5, 2.6, 3.0),
    4: (2.3, 3.0, 3.2, 3.8, 4.2),
    28: (3.5, 5.4, 6.2, 8.8, 14.5),
    56: (4.2, 8.4, 10.6, 15.9, 27.0),
}
GPU = {1: (8.0, 8.1, 8.15, 8.2, 8.3), 8: (8.0, 8.1, 8.15, 8.2, 8.3), 64: (8.3, 8.6, 9.0, 9.4, 10.2)}
Times = Mapping[int, tuple[float, ...]]


def interpolate(xs: Sequence[int], ys: Sequence[float], x: float) -> float:
    i = min(max(bisect_right(xs, x) - 1, 0), len(xs) - 2)
    return ys[i] + (ys[i + 1] - ys[i]) * (x - xs[i]) / (xs[i + 1] - xs[i])


def round_seconds(times: Times, block_size: int, live_rows: int) -> float:
    by_rows = [interpolate(WIDTHS, forward, block_size + 1) for forward in times.values()]
    forward = interpolate(list(times), by_rows, live_rows)
    return (2 * forward + 0.3 + 0.01 * live_rows if block_size else forward + 0.25) / 1e3


def constant(hazard: float) -> Hazard:
    return lambda position: hazard


def ragged(rows: int, call: int) -> list[int]:
    """Lengths of responses, with a long tail."""
    rng = random.Random(f"{rows} {call}")
    return [max(4, min(1500, int(rng.lognormvariate(math.log(150), 0.8)))) for _ in range(rows)]


class Simulation:
    """A model: its round times, its drafter, and noise in what is observed of them."""

    def __init__(self, times: Times, hazard: Hazard, *, stall_share: float = 1 / 300, seed: int = 0):
        self.times, self.hazard, self.stall_share = times, hazard, stall_share
        self.noise = random.Random(seed)

    def observed(self, seconds: float) -> float:
        stalled = self.noise.random() < self.stall_share
        return seconds * math.exp(self.noise.gauss(0, 0.05)) * (self.noise.choice((3, 100, 10_000)) if stalled else 1)

    def decode(
        self,
        policy: WindowPolicy,
        lengths: Sequence[int],
        *,
        call: int = 0,
        max_rounds: int | None = None,
        slow_rounds: Sequence[float] = (),
    ) -> tuple[float, int]:
        """Seconds and tokens. ``slow_rounds``: factors on the observed times of the first rounds."""
        drafts = random.Random(call)
        draws = [[drafts.random() for _ in range(length + 32)] for length in lengths]
        written = [0] * len(lengths)
        live = list(range(len(lengths)))
        total, rounds = 0.0, 0
        while live and rounds != max_rounds:
            block_size = policy.choose(len(live))
            seconds = round_seconds(self.times, block_size, len(live))
            accepted = [self.agreed(draws[row], written[row], block_size) for row in live] if block_size else []
            ended = []
            for at, (row, count) in enumerate(zip(live, accepted or [-1] * len(live), strict=True)):
                room = lengths[row] - written[row]
                written[row] += count + 2
                ended.append(written[row] >= lengths[row])
                if accepted:
                    accepted[at] = min(count, max(room - 1, 0))
            slow = slow_rounds[rounds] if rounds < len(slow_rounds) else 1
            policy.observe(block_size, len(live), self.observed(seconds) * slow, accepted, ended)
            total += seconds
            rounds += 1
            live = [row for row in live if written[row] < lengths[row]]
        return total, sum(map(min, written, lengths))

    def agreed(self, draws: list[float], start: int, block_size: int) -> int:
        count = 0
        while count < block_size and draws[start + count] < self.hazard(count + 1):
            count += 1
        return count


def speed(results: Sequence[tuple[float, int]]) -> float:
    return sum(tokens for _, tokens in results) / sum(seconds for seconds, _ in results)


def windows_by_round(policy: WindowPolicy) -> list[int]:
    return [choice.block_size for choice in policy.choices for _ in range(choice.rounds)]


def share(policy: WindowPolicy, windows: Sequence[int]) -> float:
    """Share of rounds with any of these windows."""
    chosen = windows_by_round(policy)
    return sum(map(chosen.count, windows)) / len(chosen)


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


def test_a_choice_stands_for_four_rounds_of_about_as_many_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    cost_model = CostModel()
    Simulation(CPU, constant(0.8)).decode(AutoWindow(cost_model, LADDER), [600] * 28, call=0)
    thought: list[int] = []
    real = CostModel.tokens_per_second
    monkeypatch.setattr(
        CostModel, "tokens_per_second", lambda self, *args: (thought.append(args[1]), real(self, *args))[1]
    )
    policy = AutoWindow(cost_model, LADDER)
    for live_rows in (28, 28, 27, 26, 26, 25, 12, 12, 12, 12, 12):
        window = policy.choose(live_rows)
        policy.observe(window, live_rows, round_seconds(CPU, window, live_rows), [1] * live_rows if window else [])
    assert thought == [28, 28, 25, 12, 12]  # the first round is an exception


# ---- how it follows changes


@pytest.mark.parametrize("rows", [1, 28])
def test_it_follows_a_drafter_that_gets_bad_and_good_again(rows: int) -> None:
    cost_model = CostModel()
    in_ar = []
    for hazard in (0.95, 0.0, 0.95):
        simulation = Simulation(CPU, constant(hazard))
        for call in range(2):
            policy = AutoWindow(cost_model, LADDER)
            simulation.decode(policy, [1500] * rows, call=call, max_rounds=800)
        in_ar.append(share(policy, [0]))
    assert in_ar[0] < 0.02 and in_ar[1] > 0.8 and in_ar[2] < 0.02


def test_a_probe_finds_out_soon_that_drafting_is_worth_it_again() -> None:
    cost_model = CostModel()
    Simulation(CPU, constant(0.0)).decode(AutoWindow(cost_model, LADDER), [1500], max_rounds=1000)
    policy = AutoWindow(cost_model, LADDER)
    Simulation(CPU, constant(0.95)).decode(policy, [1500], max_rounds=200)
    reasons = [choice.reason for choice in policy.choices]
    assert "probe" in reasons or "trial" in reasons
    assert 0 not in windows_by_round(policy)[170:]


def test_probes_cost_less_than_two_percent_of_ar() -> None:
    cost_model = CostModel()
    simulation = Simulation(CPU, constant(0.0), stall_share=0)
    simulation.decode(AutoWindow(cost_model, LADDER), [3000] * 56, max_rounds=1000)
    policy = AutoWindow(cost_model, LADDER)
    seconds, tokens = simulation.decode(policy, [3000] * 56, max_rounds=1500)
    assert any(choice.reason == "probe" and choice.block_size == 2 for choice in policy.choices)
    assert seconds < 1.02 * tokens / 56 * round_seconds(CPU, 0, 56)


@pytest.mark.parametrize("window", [0, 8, 16])
def test_one_stall_does_not_change_the_choice(window: int) -> None:
    """Whichever window the stall hits, the next choices are those without it."""

    def windows_after(factor: float) -> list[int]:
        cost_model = CostModel()
        for call in range(6):
            Simulation(CPU, constant(0.87), stall_share=0).decode(AutoWindow(cost_model, LADDER), [200] * 4, call=call)
        seconds = round_seconds(CPU, window, 4)
        cost_model.observe(window, 4, seconds * factor, [8] * 4 if window else [])
        policy = AutoWindow(cost_model, LADDER)
        Simulation(CPU, constant(0.87), stall_share=0, seed=1).decode(policy, [999] * 4, call=9, max_rounds=60)
        return windows_by_round(policy)

    assert windows_after(100.0) == windows_after(1.0)


@pytest.mark.parametrize(("rows", "hazard", "rounds"), [(56, 0.5, 1), (28, 0.3, 1), (28, 0.5, 3)])
def test_calls_of_few_rounds_are_learned_from(rows: int, hazard: float, rounds: int) -> None:
    """Where all rounds are first rounds, they are timed."""

    def decode(policy: Callable[[], WindowPolicy], calls: int) -> float:
        simulation = Simulation(CPU, constant(hazard))
        results = [simulation.decode(policy(), [200] * rows, call=call, max_rounds=rounds) for call in range(calls)]
        return speed(results[calls // 2 :])

    cost_model = CostModel()
    best = max(decode(partial(FixedWindow, window), 8) for window in LADDER)
    assert decode(lambda: AutoWindow(cost_model, LADDER), 60) > 0.93 * best


@pytest.mark.parametrize("rounds", [3, 4, 6])
def test_calls_of_few_rounds_try_windows(rounds: int) -> None:
    times = dict.fromkeys((1, 8), (8.0, 9.0, 10.0, 8.5, 13.0))  # 8 drafts take far less than the line says
    cost_model = CostModel()
    for turn in range(40):
        for window in (2, 4, 16):
            cost_model.observe(
                window, 1, round_seconds(times, window, 1), [turn % (window + 1) if turn % 2 else window]
            )
    policies = []
    for call in range(100):
        policies.append(AutoWindow(cost_model, LADDER))
        Simulation(times, constant(0.85), seed=call).decode(policies[-1], [2000], call=call, max_rounds=rounds)
    late = [window for policy in policies[50:] for window in windows_by_round(policy)]
    assert late.count(8) > 0.9 * len(late)


def test_a_slow_spell_of_the_machine_is_forgotten() -> None:
    cost_model = CostModel()
    for call in range(4):
        Simulation(GPU, constant(0.9)).decode(AutoWindow(cost_model, LADDER), [400], call=call)
    slow = dict.fromkeys((1, 8), (8.0, 8.5, 9.0, 20.0, 60.0))
    Simulation(slow, constant(0.9)).decode(AutoWindow(cost_model, LADDER), [9999], max_rounds=300)
    policy = AutoWindow(cost_model, LADDER)
    Simulation(GPU, constant(0.9)).decode(policy, [99_999], max_rounds=4000)
    assert windows_by_round(policy)[-1000:].count(16) > 900


def test_ar_is_tried_now_and_then_even_if_it_seems_slow() -> None:
    """Its time is the one that drafted rounds say least about."""
    cost_model = CostModel()
    for _ in range(40):
        cost_model.observe(2, 56, round_seconds(CPU, 2, 56), [2, 1, 2, 0] * 14)
        cost_model.observe(4, 56, round_seconds(CPU, 4, 56), [4, 1, 2, 0] * 14)
    policy = AutoWindow(cost_model, LADDER)
    Simulation(CPU, constant(0.7)).decode(policy, [9999] * 56, max_rounds=1000)
    tried = windows_by_round(policy).index(0)
    assert tried < 300 and windows_by_round(policy)[500:].count(0) > 480


def test_improved_late_positions_are_noticed() -> None:
    for rows, seed in ((1, 1), (2, 0)):
        cost_model = CostModel()
        bad = Simulation(CPU, lambda position: 0.9 if position <= 2 else 0.05, seed=seed)
        bad.decode(AutoWindow(cost_model, LADDER), [9000] * rows, call=seed, max_rounds=600)
        policy = AutoWindow(cost_model, LADDER)
        Simulation(CPU, constant(0.95), seed=seed).decode(policy, [40_000] * rows, call=9 + seed, max_rounds=1000)
        assert share(policy, [8, 16]) > 0.6


def test_a_machine_that_stays_slower_for_large_windows_is_noticed() -> None:
    cost_model = CostModel()
    for call in range(4):
        policy = AutoWindow(cost_model, LADDER)
        Simulation(GPU, constant(0.9)).decode(policy, [400], call=call)
    assert share(policy, [16]) > 0.9
    slow = dict.fromkeys((1, 8), (8.0, 8.5, 9.0, 20.0, 60.0))
    policy = AutoWindow(cost_model, LADDER)
    Simulation(slow, constant(0.9)).decode(policy, [9999], max_rounds=300)
    assert policy.choices[-1].block_size == 4
    assert share(policy, [8, 16]) < 0.2


@pytest.mark.parametrize(("draft_seconds", "rounds"), [(2e-3, 128), (4e-3, 200)])
def test_a_probe_is_due_after_128_steps_or_when_it_takes_two_percent_of_them(draft_seconds: float, rounds: int) -> None:
    cost_model = CostModel()
    none = [0] * 8
    for _ in range(5):
        cost_model.observe(0, 8, 1e-3, [])
        cost_model.observe(8, 8, draft_seconds, none)
    for step in range(1, 220):
        cost_model.observe(0, 8, 1e-3, [])
        if abs(step - rounds) > 2:  # nearer, rounding decides
            assert cost_model.probe_due(8, 8) == (step > rounds), step
    cost_model.observe(8, 8, draft_seconds, [8] * 8)
    assert cost_model.probe_due(8, 8)  # better than expected: once more
    cost_model.observe(8, 8, draft_seconds, none)
    assert not cost_model.probe_due(8, 8)


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
    for choice, following in zip(policy.choices, policy.choices[1:], strict=False):
        assert following.first_round == choice.first_round + choice.rounds
        assert (choice.block_size, choice.reason) != (following.block_size, following.reason)
    trial = next(choice for choice in policy.choices if choice.reason == "trial")
    assert trial.tokens_per_second[trial.block_size] >= 0.87 * max(trial.tokens_per_second.values())
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
    assert choice.reason == "fixed" and choice.tokens_per_second == {}


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
