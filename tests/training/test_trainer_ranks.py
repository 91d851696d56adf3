"""Rewards and records when a group's completions are spread over two processes."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from run_helpers import start_ranks

from gravity_rl.metrics import Rollout, rollout_metrics
from gravity_rl.recorder import read_metrics, read_rollouts

MakeArgv = Callable[..., list[str]]
# Twelve completions a step in three groups of four, of which the first process has one and a half.
TWO = {"per_device_train_batch_size": 3, "gradient_accumulation_steps": 2, "max_steps": 1}


def by_length(completions: list[Any], **columns: Any) -> list[float]:
    return [len(completion[0]["content"]) / 100 for completion in completions]


def nan_on_one_row(completions: list[Any], id: list[str], **columns: Any) -> list[float]:
    return [math.nan if index == len(id) - 1 and len(id) > 1 else 0.5 for index in range(len(id))]


@pytest.mark.slow
def test_task_metrics_cover_both_processes(make_argv: MakeArgv, tmp_path: Path) -> None:
    argv = make_argv(**TWO, shuffle_rewards=True, reward_functions="test_trainer_ranks:by_length")
    runs = start_ranks(argv, tmp_path / "log", 2)
    assert [run.wait() for run in runs] == [0, 0], runs[0].output() + runs[1].output()
    rows = read_rollouts(tmp_path / "run").to_pylist()
    rollouts = [
        Rollout(**row | {"rewards": json.loads(row["rewards"]), "parts": json.loads(row["parts"])}) for row in rows
    ]
    line = read_metrics(tmp_path / "run")[0]
    expected = rollout_metrics(rollouts)
    assert {name: line[name] for name in expected} == pytest.approx(expected)
    for group in ([row for row in rows if row["prompt_id"] == number] for number in range(3)):
        ranked = sorted(row["reward"] for row in group)
        mean = sum(ranked) / len(ranked)
        deviation = (sum((value - mean) ** 2 for value in ranked) / (len(ranked) - 1)) ** 0.5
        advantages = sorted(row["advantage"] for row in group)
        assert advantages == pytest.approx([(v - mean) / (deviation + 1e-4) for v in ranked], abs=1e-4)


@pytest.mark.slow
def test_bad_reward_on_one_process_stops_both(make_argv: MakeArgv, tmp_path: Path) -> None:
    argv = make_argv(**TWO, reward_functions="test_trainer_ranks:nan_on_one_row")
    runs = start_ranks(argv, tmp_path / "log", 2)
    assert [run.wait() for run in runs] == [2, 2], runs[0].output() + runs[1].output()
    rows = read_rollouts(tmp_path / "run").to_pylist()
    assert len(rows) == 12
    assert [index for index, row in enumerate(rows) if row["reward"] is None] == [5, 11]
    assert "2 of 12 rewards of step 1 are no finite numbers" in runs[0].output()
    assert f"for row {rows[5]['id']!r}" in runs[0].output()
