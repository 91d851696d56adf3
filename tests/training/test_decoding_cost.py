"""What is learned of round times and acceptance."""

from __future__ import annotations

import math
import random

import pytest

from gravity_rl.decoding import cost
from gravity_rl.decoding.acceptance import Acceptance
from gravity_rl.decoding.cost import CostModel

# ---- acceptance


def test_hazards_are_estimated_without_bias_from_windows_that_change() -> None:
    """Short windows say nothing about later positions, and accepting all of a window is no rejection."""
    true = [0.9, 0.7, 0.8, 0.85, 0.9, 0.75]
    rng = random.Random(0)
    runs = 60
    sums = [0.0] * len(true)
    for _ in range(runs):
        acceptance = Acceptance()
        for _ in range(100):
            window = rng.choice((2, 4, 6))
            accepted = [next((k for k in range(window) if rng.random() >= true[k]), window) for _ in range(28)]
            acceptance.observe(window, accepted)
        sums = [total + acceptance.hazard(k + 1) for k, total in enumerate(sums)]
    means = [total / runs for total in sums]
    # It leans on the position before where few drafts are tested: position 6 by a sixth of the step.
    assert means[:4] == pytest.approx(true[:4], abs=0.015)
    assert means == pytest.approx(true, abs=0.03)


def test_an_unknown_drafter_is_expected_to_be_decent() -> None:
    assert Acceptance().hazard(1) == Acceptance().hazard(30) == pytest.approx(0.8)


def test_positions_beyond_the_windows_seen_continue_the_last_one() -> None:
    acceptance = Acceptance()
    for _ in range(50):
        acceptance.observe(2, [2] * 8)
    assert acceptance.hazard(20) == acceptance.hazard(2) > 0.98
    expected = [acceptance.committed_drafts(window) for window in (0, 1, 2, 16)]
    first, second = (acceptance.hazard(position) * (1 - 1 / 128) for position in (1, 2))  # 1 in 128 tokens is the last
    assert expected == sorted(expected) and expected[:2] == [0, pytest.approx(first)]
    assert expected[2] == pytest.approx(first * (1 + second))


def test_the_last_rows_of_a_batch_say_nothing_about_all_of_them() -> None:
    cost_model = CostModel()
    for _ in range(20):
        cost_model.observe(2, 28, 0.01, [2] * 28)
        cost_model.observe(8, 3, 0.01, [0] * 3)
    assert cost_model.acceptance(28).hazard(8) > 0.95 and cost_model.acceptance(2).hazard(1) < 0.05
    assert cost_model.acceptance(16).hazard(1) == cost_model.acceptance(31).hazard(1)
    assert cost_model.acceptance(64).hazard(1) == pytest.approx(0.8)  # not seen yet


def test_ends_of_responses_are_no_rejections_but_shorten_what_a_window_is_worth() -> None:
    short, long = Acceptance(), Acceptance()
    for _ in range(100):
        for acceptance, ended in ((short, [True, False]), (long, [])):
            acceptance.observe_ends(sum(ended), 20)
            acceptance.observe(8, [3, 8], ended)
    assert short.hazard(4) > 0.97 and long.hazard(4) < 0.6
    assert short.committed_drafts(8) < sum(short.hazard(1) ** k for k in range(1, 9)) * 0.9


def test_tokens_of_a_round_are_those_before_the_end_of_a_response() -> None:
    """Against a simulation in which every token ends its response with probability e."""
    rng, hazard, end, window = random.Random(0), 0.8, 0.08, 8
    acceptance, drafts, tokens, rounds = Acceptance(), 0, 0, 20_000
    for _ in range(rounds):
        agreed = next((k for k in range(window) if rng.random() >= hazard), window)
        until_end = next((k for k in range(1, agreed + 3) if rng.random() < end), agreed + 3)
        count = min(agreed + 2, until_end)
        committed = min(agreed, count - 1)
        acceptance.observe(window, [committed], [until_end <= agreed + 2])
        acceptance.observe_ends(until_end <= agreed + 2, count)
        drafts, tokens = drafts + committed, tokens + count
    assert acceptance.committed_drafts(window) == pytest.approx(drafts / rounds, rel=0.1)
    assert acceptance.committed_tokens(window) == pytest.approx(tokens / rounds, rel=0.05)


def test_acceptance_fades_while_plain_ar_runs_but_is_not_forgotten() -> None:
    cost_model = CostModel()
    for _ in range(300):
        cost_model.observe(2, 1, 0.1, [0])
    known = cost_model.acceptance(1).hazard(1)
    for _ in range(3000):
        cost_model.observe(0, 1, 0.1, [])
    assert 4 * known < cost_model.acceptance(1).hazard(1) < 0.12


@pytest.mark.parametrize("rows", [1, 4, 28])
def test_rounds_of_a_batch_go_on_until_the_longest_response_has_ended(rows: int) -> None:
    """Time of whole batches by the two expectations, against simulated ones of geometric lengths."""
    rng, hazard, end, shared, by_row = random.Random(0), 0.8, 0.06, 1.0, 0.05
    batches, mean_length = 6000 // rows, 1 / end
    longest_length = mean_length * sum(1 / k for k in range(1, rows + 1))
    predicted, measured = {2: 0.0, 8: 0.0}, {2: 0.0, 8: 0.0}
    for window in predicted:
        acceptance = Acceptance(rows)
        for _ in range(batches):
            live = rows
            while live:
                accepted, before_last, ends = [], [], 0
                for _ in range(live):
                    agreed = next((k for k in range(window) if rng.random() >= hazard), window)
                    count = next((k for k in range(1, agreed + 3) if rng.random() < end), 0)
                    accepted.append(min(agreed, (count or agreed + 2) - 1))
                    before_last.append(0 < count < agreed + 2)
                    ends += count > 0
                acceptance.observe(window, accepted, before_last)
                acceptance.observe_ends(ends, sum(accepted) + 2 * live - sum(before_last))
                measured[window] += (shared + by_row * live) / batches
                live -= ends
            seconds = shared * longest_length / acceptance.tokens_of_longest(window)
            seconds += by_row * rows * mean_length / acceptance.committed_tokens(window)
            predicted[window] += seconds / batches
    assert predicted[2] == pytest.approx(measured[2], rel=0.12)
    assert predicted[2] / predicted[8] == pytest.approx(measured[2] / measured[8], rel=0.06)


@pytest.mark.parametrize("ends", [0, 28])
def test_responses_that_never_end_or_always_do(ends: int) -> None:
    """Also after so many rounds that other counts have decayed to zero."""
    acceptance = Acceptance(28)
    for _ in range(300_000):
        acceptance.observe_ends(ends, 28)
    drafts = acceptance.committed_drafts(4)
    assert drafts == pytest.approx(0 if ends else sum(0.8**k for k in range(1, 5)), abs=1e-6)
    for tokens in (acceptance.committed_tokens(4), acceptance.tokens_of_longest(4)):
        assert tokens == pytest.approx(1 if ends else 2 + drafts, abs=1e-6)


def test_responses_of_one_token_are_not_drafted() -> None:
    for rows in (1, 8):
        cost_model = CostModel()
        for _ in range(400):
            cost_model.observe(8, rows, 0.02, [0] * rows, [True] * rows)
            cost_model.observe(0, rows, 0.01, [], [True] * rows)
        plain, *drafted = cost_model.tokens_per_second((0, 2, 8), rows).values()
        assert all(0 < speed < plain for speed in drafted)


# ---- times


def test_one_measured_window_predicts_itself_and_two_predict_all() -> None:
    cost_model = CostModel()
    for _ in range(2):
        cost_model.observe(16, 1, 0.0066, [9])
    assert cost_model.seconds(16, 1) == pytest.approx(0.0066, rel=0.02)
    cost_model.observe(2, 1, 0.0047, [2])
    per_token = (0.0066 - 0.0047) / 2 / 14
    assert cost_model.seconds(8, 1) == pytest.approx(0.0047 + 2 * 6 * per_token, rel=0.05)
    assert cost_model.seconds(0, 1) == pytest.approx(0.0047 / 2 - 2 * per_token, rel=0.05)
    assert cost_model.seconds(4, 8) == pytest.approx(0.0047 + 2 * (40 - 3) * per_token, rel=0.05)


def test_more_tokens_never_cost_less() -> None:
    cost_model = CostModel()
    for window, seconds in ((2, 0.009), (16, 0.001), (8, 0.003)):
        cost_model.observe(window, 4, seconds, [1] * 4)
    line = [cost_model.seconds(window, 4) for window in (3, 5, 12)]  # none of them was measured
    assert line == sorted(line) and line[0] > 0


def test_a_forward_is_never_predicted_to_cost_only_its_tokens() -> None:
    """Two times that no line with a positive start fits, such as with a stall in one of them."""
    cost_model = CostModel()
    for _ in range(3):
        cost_model.observe(2, 4, 0.001, [0] * 4)
        cost_model.observe(8, 4, 0.009, [0] * 4)
    assert cost_model.seconds(0, 4) > 0.35 * cost_model.seconds(1, 4)


def test_a_machine_that_changes_its_speed_makes_no_window_look_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounds with window 2, of which few rows live in the end, while everything takes a third less."""

    def ratio_afterwards() -> float:
        cost_model = CostModel()

        def call(windows: tuple[int, ...], factor: float) -> None:
            for at, rows in enumerate((28, 26, 23, 19, 14, 10, 6, 3, 2, 1)):
                window = windows[at % len(windows)]
                cost_model.observe(window, rows, factor * 2e-3 * (4 + 0.04 * rows * (window + 1)), [window] * rows)

        for _ in range(6):
            call((2, 4, 8), 1.0)
        for _ in range(3):
            call((2,), 0.67)
        return cost_model.seconds(4, 26) / cost_model.seconds(2, 26)

    true = (4 + 0.04 * 26 * 5) / (4 + 0.04 * 26 * 3)
    assert ratio_afterwards() == pytest.approx(true, rel=0.1)
    monkeypatch.setattr(cost, "MOST_LASTING", 0.0)
    assert ratio_afterwards() > 1.2 * true


# ---- arguments


def test_a_stalled_round_does_not_make_its_number_of_rows_count_more() -> None:
    def worth(stall: float) -> dict[int, float]:
        cost_model = CostModel()
        for _ in range(30):
            for live_rows, factor in ((28, 1.0), (1, stall)):
                cost_model.observe(4, live_rows, 0.001 * factor * live_rows, [2] * live_rows)
            stall = 1.0
        cost_model.decisions.decide(1, 4, {0: 1.0, 4: 9.0}, {}, stands=True)
        assert cost_model.timed_rounds == 60
        return cost_model.decisions.worth(28, {0: 1.0, 4: 1.0})

    assert worth(1e6) == pytest.approx(worth(1.0), rel=0.03)  # with the seconds themselves it is 2.3 times as much


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((-1, 1, 0.1, []), "window -1 over 1 rows"),
        ((2, 0, 0.1, []), "window 2 over 0 rows"),
        ((2, 1, -0.1, [0]), "seconds: -0.1"),
        ((2, 1, math.nan, [0]), "seconds: nan"),
        ((2, 1, math.inf, [0]), "seconds: inf"),
        ((2, 2, 0.1, [0]), "accepted: 1 counts for 2 rows"),
        ((0, 2, 0.1, [0, 0]), "accepted: 2 counts for 2 rows and a window of 0"),
        ((2, 1, 0.1, [3]), "accepted: counts from 3 to 3"),
        ((2, 2, 0.1, [-1, 2]), "accepted: counts from -1 to 2"),
    ],
)
def test_impossible_rounds_are_refused(arguments: tuple[int, int, float, list[int]], message: str) -> None:
    cost_model = CostModel()
    with pytest.raises(ValueError, match=message):
        cost_model.observe(*arguments)
    assert not cost_model.rounds
