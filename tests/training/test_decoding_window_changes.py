"""How the choice of the window follows a drafter, a machine or calls that change, in simulated decoding."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
from window_simulation import CPU, GPU, LADDER, Simulation, constant, round_seconds, share, speed, windows_by_round

from gravity_rl.decoding.cost import CostModel
from gravity_rl.decoding.window import AutoWindow, FixedWindow, WindowPolicy


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
