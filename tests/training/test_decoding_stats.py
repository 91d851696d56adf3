"""Counts add up: over rows, over rounds, and with what the window policy was told."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest
from decoding_helpers import eos_id, plain, run, use_windows
from hypothesis import given
from hypothesis import strategies as st

from gravity_rl.decoding import CostModel, DecodeStats
from gravity_rl.decoding.stats import BatchStats

ENDS = [60, 90, 120, 37]


@pytest.mark.parametrize("seed", range(4))
def test_identities_whatever_the_windows(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    rng = random.Random(seed)
    windows = rng.choices([0, 1, 2, 3, 5, 8], k=50)
    policy = use_windows(monkeypatch, lambda at, live: windows[at % 50], largest=8)
    decoded = run(
        range(6), "self_spec", eos_token_ids=[eos_id(), *ENDS][: 1 + seed], max_live_rows=rng.choice([None, 2, 4]),
        temperature=rng.choice([0.0, 1.0]),
    )  # fmt: skip
    stats, rows = decoded.stats, decoded.row_stats
    assert stats.rows == DecodeStats.total(rows)
    assert [row.tokens for row in rows] == [len(sequence) for sequence in decoded.sequences]
    assert stats.tokens == sum(len(sequence) for sequence in decoded.sequences)
    for row in [*rows, stats.rows]:
        assert row.draft_forwards == row.verify_forwards == sum(row.accepted)
        assert row.rounds == row.draft_forwards + row.ar_forwards
        assert row.forwards == 2 * row.draft_forwards + row.ar_forwards
        assert row.accepted_drafts <= row.tested <= min(row.drafted, row.accepted_drafts + row.draft_forwards)
        extra = row.tokens - row.accepted_drafts - row.ar_forwards  # of each round: a0 and the verifier's own
        assert row.draft_forwards <= extra <= 2 * row.draft_forwards
    drafted = [(window, live) for window, live in policy.chosen if window]
    assert stats.rounds == len(policy.chosen)
    assert stats.draft_forwards == stats.verify_forwards == len(drafted)
    assert stats.ar_forwards == stats.rounds - len(drafted)
    assert stats.forwards == stats.rounds + len(drafted)
    assert stats.rows.rounds == sum(live for _, live in policy.chosen)
    assert stats.rows.drafted == sum(window * live for window, live in drafted)
    assert stats.accepted == stats.rows.accepted
    assert stats.tpf == stats.rows.tokens / stats.rows.forwards
    assert stats.tokens_per_round == stats.rows.tokens / stats.rows.rounds
    reported = [(window, live) for window, live, _, _ in policy.observed]
    assert reported == policy.chosen
    for window, live, seconds, accepted in policy.observed:
        assert len(accepted) == (live if window else 0)
        assert all(0 <= count <= window for count in accepted)
        assert seconds > 0
    assert sum(seconds for window, _, seconds, _ in policy.observed if window) == pytest.approx(
        stats.seconds["draft_rounds"]
    )
    assert stats.rows.accepted_drafts <= sum(sum(accepted) for _, _, _, accepted in policy.observed)


@pytest.mark.parametrize(("method", "block_size"), [("ar", 1), ("self_spec", 3), ("self_spec", "auto")])
def test_choices_cover_all_rounds(method: str, block_size: Any) -> None:
    stats = run(range(6), method, block_size=block_size, cost_model=CostModel(), max_live_rows=4).stats
    at = 0
    for choice in stats.choices:
        assert choice.first_round == at
        assert choice.rounds > 0
        assert 1 <= choice.live_rows <= 4
        at += choice.rounds
    assert at == stats.rounds
    assert stats.draft_forwards == sum(choice.rounds for choice in stats.choices if choice.block_size)
    if block_size != "auto":
        assert {choice.block_size for choice in stats.choices} == {0 if method == "ar" else block_size}
        assert {choice.reason for choice in stats.choices} == {"fixed"}
    else:
        assert {choice.block_size for choice in stats.choices} <= {0, 2, 4, 8}
        assert "fixed" not in {choice.reason for choice in stats.choices}


def test_stats_of_any_rows_add_up() -> None:
    decoded = run([0, 1, 2, 3, 4], "self_spec", block_size=4)
    lengths = [len(sequence) for sequence in decoded.sequences]
    total = decoded.stats.rows
    assert total.tokens == sum(lengths)
    assert total == DecodeStats.total(decoded.row_stats)
    assert DecodeStats.total([total, DecodeStats()]) == total
    some = DecodeStats.total(decoded.row_stats[row] for row in (1, 3))
    assert some.tokens == lengths[1] + lengths[3]
    assert some.rounds == sum(decoded.row_stats[1].accepted) + sum(decoded.row_stats[3].accepted)
    accepted = sum(k * count for k, count in enumerate(some.accepted))
    assert some.accepted_per_round == accepted / some.rounds
    assert some.accepted_share == accepted / (4 * some.rounds)
    assert some.acceptance == accepted / some.tested
    assert some.rounds + accepted <= some.tokens <= 2 * some.rounds + accepted
    assert some.tpf == some.tokens / (2 * some.rounds)


def test_stats_of_plain_decoding() -> None:
    stats: BatchStats = plain(1.0).stats
    rows = stats.rows
    assert rows.ar_forwards == rows.rounds == rows.tokens == stats.tokens
    assert stats.ar_forwards == stats.rounds == max(len(sequence) for sequence in plain(1.0).sequences)
    assert (rows.draft_forwards, rows.verify_forwards, rows.accepted, rows.drafted, rows.tested) == (0, 0, [], 0, 0)
    assert (stats.tpf, stats.tokens_per_round) == (1.0, 1.0)
    assert math.isnan(rows.accepted_per_round)
    assert math.isnan(rows.accepted_share)
    assert math.isnan(rows.acceptance)
    assert math.isnan(DecodeStats().tpf)


def test_histograms_of_different_windows_add_up() -> None:
    parts = [
        DecodeStats(9, 2, 2, 0, 6, [1, 0, 1], 3), DecodeStats(2, 1, 1, 0, 1, [1], 1), DecodeStats(3, 0, 0, 3, 0, [], 0),
    ]  # fmt: skip
    assert DecodeStats.total(parts) == DecodeStats(14, 3, 3, 3, 7, [2, 0, 1], 4)


@given(
    st.lists(
        st.builds(
            DecodeStats,
            *[st.integers(0, 99)] * 5,
            accepted=st.lists(st.integers(0, 9), max_size=5),
            tested=st.integers(0, 99),
        ),
        max_size=6,
    ),
    st.integers(0, 6),
)
def test_sums_may_be_taken_in_parts(parts: list[DecodeStats], cut: int) -> None:
    whole = DecodeStats.total(parts)
    assert DecodeStats.total([DecodeStats.total(parts[:cut]), DecodeStats.total(parts[cut:])]) == whole
    assert DecodeStats.total(reversed(parts)) == whole
    assert whole.accepted_drafts == sum(part.accepted_drafts for part in parts)
