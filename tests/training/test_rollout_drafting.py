"""Metrics of drafting, and the warning when drafts stop fitting, on counts that are made up."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from gravity_rl.decoding import BatchStats, DecodeStats
from gravity_rl.drafting_metrics import (
    MIN_TESTED,
    AcceptanceWatch,
    DraftingLog,
    drafting_values,
    drafts_of_a_window,
    forward_values,
    sum_by_task,
)
from gravity_rl.recorder import RunDirectory
from gravity_rl.rollout import Completions


def drafts(accepted: int, tested: int) -> DecodeStats:
    """A row of which `accepted` of `tested` drafts were committed, in one round."""
    histogram = [0] * accepted + [1]
    return DecodeStats(
        tokens=accepted + 2, draft_forwards=1, verify_forwards=1, drafted=tested, accepted=histogram, tested=tested
    )


def batch(forwards: int = 4, seconds: float = 1.0) -> BatchStats:
    return BatchStats(
        rows=DecodeStats(tokens=12),
        rounds=forwards // 2,
        draft_forwards=forwards // 2,
        verify_forwards=forwards // 2,
        ar_forwards=0,
        prefills=1,
        prefill_forwards=1,
        seconds={"prefill": seconds, "rows": 0.5},
        choices=[],
        memory=0,
    )


def test_values_of_known_counts() -> None:
    stats = DecodeStats(
        tokens=21, draft_forwards=3, verify_forwards=3, ar_forwards=2, drafted=24, accepted=[0, 1, 0, 2], tested=9
    )
    assert drafting_values(stats) == pytest.approx(
        {"tokens_per_round": 21 / 5, "accepted_share": 7 / 24, "acceptance": 7 / 9, "window": 8.0, "ar_share": 2 / 5}
    )
    assert drafting_values(DecodeStats(tokens=4, ar_forwards=4)) == {"tokens_per_round": 1.0, "ar_share": 1.0}
    assert drafting_values(DecodeStats()) == {}


def test_forwards_are_those_of_all_processes_and_seconds_those_of_the_slowest() -> None:
    assert forward_values([batch(4, 1.0), batch(8, 3.0)]) == {
        "forwards": 12.0,
        "tokens_per_forward": 2.0,
        "prefills": 2.0,
        "seconds/prefill": 3.0,
        "seconds/rows": 0.5,
    }


def test_rows_are_summed_by_task() -> None:
    sums = sum_by_task(["text", "table", "text"], [drafts(1, 2), drafts(3, 4), drafts(0, 1)])
    assert list(sums) == ["table", "text"]
    assert (sums["text"].accepted_drafts, sums["text"].tested) == (1, 3)


@pytest.mark.parametrize(("acceptance", "window"), [(0.5, 1), (0.7, 16), (0.0, 8), (1.0, 8)])
def test_accepted_drafts_of_a_full_window(acceptance: float, window: int) -> None:
    if acceptance < 1:
        expected = acceptance * (1 - acceptance**window) / (1 - acceptance)
    else:
        expected = window
    assert drafts_of_a_window(acceptance, window) == pytest.approx(expected)


def test_a_fall_under_half_is_said_once_until_it_recovers() -> None:
    watch = AcceptanceWatch(16, {})
    assert watch.check("table", drafts(160, 200)) is None  # the start: 0.8, 3.9 drafts a window
    assert watch.starts == {"table": 0.8}
    assert watch.check("table", drafts(140, 200)) is None  # 0.7, 2.3 drafts
    warning = watch.check("table", drafts(120, 200))  # 0.6, 1.5 drafts
    assert warning is not None
    assert "task 'table'" in warning and "1.50 accepted ones, less than half of the 3.89" in warning
    for words in ("wrong mask id", "wrong shift", "drift", "gravity_rl.joint.evaluate", "block_diffusion.json"):
        assert words in warning
    assert watch.check("table", drafts(100, 200)) is None
    assert watch.check("table", drafts(160, 200)) is None  # recovered
    assert watch.check("table", drafts(100, 200)) is not None


def test_few_drafts_are_pooled_before_they_are_judged() -> None:
    watch = AcceptanceWatch(16, {"text": 0.8})
    few = MIN_TESTED // 4
    assert [watch.check("text", drafts(0, few)) is None for _ in range(5)] == [True, True, True, False, True]
    assert watch.check("formula", drafts(0, few)) is None
    assert "formula" not in watch.starts


def test_a_drafter_that_never_worked_is_said_at_the_first_step() -> None:
    watch = AcceptanceWatch(16, {})
    warning = watch.check("table", drafts(4, 400))
    assert warning is not None and "only 1% of the first drafts were accepted" in warning
    assert "block_diffusion.json" in warning
    assert watch.check("table", drafts(0, 400)) is None


@pytest.fixture
def one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gravity_rl.drafting_metrics.gather_object", lambda values: values)


def completions(accepted: int) -> Completions:
    return Completions([[1]], [drafts(accepted, 200)], batch())


def metrics_of(log: DraftingLog, accepted: int) -> dict[str, Any]:
    return log.metrics(["text"], completions(accepted))


@pytest.mark.usefixtures("one_process")
def test_a_resumed_run_compares_with_the_start_of_the_run(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run = RunDirectory(tmp_path)
    log = DraftingLog(run, 16)
    for step, accepted in enumerate((160, 150), start=1):
        run.append_metrics(step, metrics_of(log, accepted))
    resumed = DraftingLog(run, 16)
    with caplog.at_level(logging.WARNING):
        first = metrics_of(resumed, 145)
        assert not caplog.records
        second = metrics_of(resumed, 100)
    assert first["drafting/text/acceptance_start"] == second["drafting/text/acceptance_start"] == 0.8
    assert first["drafting/text/acceptance"] == pytest.approx(0.725)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "1.00 accepted ones, less than half of the 3.89" in caplog.text


@pytest.mark.usefixtures("one_process")
def test_all_names_have_a_prefix_of_their_own(tmp_path: Path) -> None:
    names = metrics_of(DraftingLog(RunDirectory(tmp_path), 16), 160)
    assert {name.split("/")[0] for name in names} == {"drafting", "rollout"}
    assert DraftingLog(RunDirectory(tmp_path), None).metrics(["text"], Completions([[1]])) == {}
