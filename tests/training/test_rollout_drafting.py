"""Metrics of drafting, and the warning when drafts stop fitting, on counts that are made up."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from gravity_rl.decoding import BatchStats, DecodeStats
from gravity_rl.drafting_metrics import (
    MIN_FIRST_TESTED,
    MIN_TESTED,
    AcceptanceWatch,
    DraftingLog,
    drafting_values,
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


def test_a_fall_under_half_is_said_once_until_it_recovers() -> None:
    watch = AcceptanceWatch({})
    assert watch.check("table", drafts(800, 1000)) is None
    assert watch.starts == {"table": 0.8}
    assert watch.check("table", drafts(400, 1000)) is None  # half is not under half
    assert watch.check("table", drafts(390, 1000)) == (
        "drafting of task 'table': 39% of tested drafts are accepted, less than half of the 80% at the start of the run"
    )
    assert watch.check("table", drafts(300, 1000)) is None
    assert watch.check("table", drafts(800, 1000)) is None  # recovered
    assert watch.check("table", drafts(300, 1000)) is not None


def test_a_fall_is_judged_on_many_drafts() -> None:
    """A single prompt that is hard to draft is no fall."""
    watch = AcceptanceWatch({"text": 0.8})
    part = MIN_TESTED // 4
    assert [watch.check("text", drafts(0, part)) is None for _ in range(5)] == [True, True, True, False, True]
    easy_and_hard = AcceptanceWatch({})
    for accepted in (0.9, 0.7, 0.9, 0.3) * 3:
        assert easy_and_hard.check("text", drafts(round(accepted * part), part)) is None
    assert easy_and_hard.starts == {"text": 0.7}


def test_a_drafter_that_never_worked_is_said_before_the_start_is_known() -> None:
    watch = AcceptanceWatch({})
    assert watch.check("all", drafts(2, MIN_FIRST_TESTED - 1)) is None
    assert watch.check("all", drafts(2, 273)) == (
        "drafting of all tasks: only 1% of the first drafts were accepted: the drafter hardly works"
    )
    assert not watch.starts
    assert [watch.check("all", drafts(0, 400)) for _ in range(6)] == [None] * 6
    assert watch.starts == {"all": 4 / 1200}


@pytest.fixture
def one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gravity_rl.drafting_metrics.gather_object", lambda values: values)


def completions(accepted: int) -> Completions:
    return Completions([[1]], [drafts(accepted, 1000)], batch())


def metrics_of(log: DraftingLog, accepted: int) -> dict[str, Any]:
    return log.metrics(["text"], completions(accepted))


@pytest.mark.usefixtures("one_process")
def test_a_resumed_run_compares_with_the_start_of_the_run(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run = RunDirectory(tmp_path)
    log = DraftingLog(run, drafts=True)
    for step, accepted in enumerate((800, 750), start=1):
        run.append_metrics(step, metrics_of(log, accepted))
    resumed = DraftingLog(run, drafts=True)
    with caplog.at_level(logging.WARNING):
        first = metrics_of(resumed, 725)
        assert not caplog.records
        second = metrics_of(resumed, 390)
    assert first["drafting/text/acceptance_start"] == second["drafting/text/acceptance_start"] == 0.8
    assert first["drafting/text/acceptance"] == pytest.approx(0.725)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    for words in ("all tasks: 39%", "task 'text': 39% of tested drafts are accepted, less than half of the 80%"):
        assert words in caplog.text
    for words in ("wrong mask id", "wrong shift", "drift", "gravity_rl.joint.evaluate", "block_diffusion.json"):
        assert words in caplog.text


@pytest.mark.usefixtures("one_process")
def test_rare_tasks_are_judged_together(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    log = DraftingLog(RunDirectory(tmp_path), drafts=True)
    rows = [drafts(10, 100), drafts(0, 100)]
    with caplog.at_level(logging.WARNING):
        metrics = log.metrics(["text", "table"], Completions([[1], [1]], rows, batch()))
    assert metrics["drafting/all/acceptance"] == 0.05
    assert "drafting of all tasks: only 5% of the first drafts" in caplog.text and "task '" not in caplog.text


@pytest.mark.usefixtures("one_process")
def test_all_names_have_a_prefix_of_their_own(tmp_path: Path) -> None:
    names = metrics_of(DraftingLog(RunDirectory(tmp_path), drafts=True), 800)
    assert {name.split("/")[0] for name in names} == {"drafting", "rollout"}
    assert DraftingLog(RunDirectory(tmp_path), drafts=False).metrics(["text"], Completions([[1]])) == {}
