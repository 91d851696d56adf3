"""Training with reward workers: the same run as without, and what becomes of completions without a reward."""

from __future__ import annotations

import functools
import json
import math
import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml
from run_helpers import metrics_without_timings

from gravity_rl import reward_functions
from gravity_rl.config import RunConfig
from gravity_rl.metrics import Rollout, rollout_metrics
from gravity_rl.parsing import ConfigError
from gravity_rl.recorder import RunDirectory, read_metrics, read_rollouts
from gravity_rl.report import reward_curves
from gravity_rl.rescore import main as rescore_main
from gravity_rl.rescore import rescore
from gravity_rl.reward_functions import RewardError
from gravity_rl.train import build_trainer, main, train
from rewards import score
from rewards.types import ROBUST
from rewards.workers import RewardPool

MakeArgv = Callable[..., list[str]]
MakeConfig = Callable[..., RunConfig]


def length(completions: list[Any], **columns: Any) -> list[float]:
    """A second reward function, which has an opinion on every completion."""
    return [len(completion[0]["content"]) / 100 for completion in completions]


def fail_at_step_two(completions: list[Any], trainer_state: Any, **columns: Any) -> list[float]:
    if trainer_state.global_step == 1:
        raise KeyboardInterrupt
    return [0.5] * len(completions)


def workers_end() -> bool:
    """Whether no worker is left after a moment: a pool that is dropped does not wait for the end of its workers."""
    deadline = time.monotonic() + 30.0
    while workers() and time.monotonic() < deadline:
        time.sleep(0.01)
    return not workers()


def workers() -> list[psutil.Process]:
    """Worker processes of this process that are alive."""
    return [
        child
        for child in psutil.Process().children()
        if child.status() != psutil.STATUS_ZOMBIE and "rewards.workers.process" in " ".join(child.cmdline())
    ]


@pytest.fixture(autouse=True)
def no_worker_is_left():
    yield
    assert workers_end()


@pytest.fixture
def scorer(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Have the workers of runs use a scoring function of slow_reward.py."""

    def choose(name: str) -> None:
        pool = functools.partial(RewardPool, scorer=f"slow_reward:{name}")
        monkeypatch.setattr(reward_functions, "RewardPool", pool)

    return choose


def test_same_run_with_workers_as_without(make_config: MakeConfig, tmp_path: Path) -> None:
    runs = {}
    for count in (0, 2):
        config = make_config(output_dir=tmp_path / str(count), reward_workers=count, max_steps=3, profile="robust")
        assert train(config) == 0
        runs[count] = read_rollouts(tmp_path / str(count)).to_pylist()
    assert runs[0] == runs[2]
    lines = metrics_without_timings(tmp_path / "2")
    assert [line.pop("rewards/unscored") for line in lines] == [0.0] * 3
    assert lines == metrics_without_timings(tmp_path / "0")
    assert not (tmp_path / "2" / "slow_samples.jsonl").exists()


def test_profile_reaches_workers_and_rescoring(make_config: MakeConfig, tmp_path: Path) -> None:
    config = make_config(reward_workers=1, profile="robust", max_steps=1)
    train(config)
    assert yaml.safe_load((tmp_path / "run" / "config.yaml").read_text(encoding="utf-8"))["profile"] == "robust"
    rows = read_rollouts(tmp_path / "run").to_pylist()
    for row in rows:
        expected = score(row["task"], row["completion"], row["reference"], ROBUST)
        assert json.loads(row["rewards"])["ocr"] == pytest.approx(expected.value, abs=1e-7)
        assert json.loads(row["parts"]).keys() == expected.parts.keys()
    assert rescore(tmp_path / "run") == (len(rows), [])


def test_completions_without_a_reward_are_left_out(
    make_config: MakeConfig, scorer: Callable[[str], None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Half of a group or all of it, beside a second function that rewards them: no advantage, and no crash."""
    scorer("score_some")
    config = make_config(
        reward_workers=2,
        reward_timeout=0.5,
        reward_functions=["ocr", f"{__name__}:length"],
        scale_rewards="none",
        log_completions=True,
        report_to="tensorboard",
    )
    assert train(config) == 0
    run = tmp_path / "run"
    rows = read_rollouts(run).to_pylist()
    unscored = [row for row in rows if len(row["completion"]) % 2 == 0]
    assert 0 < len(unscored) < len(rows)
    groups = defaultdict(list)
    for row in rows:
        rewards = json.loads(row["rewards"])
        assert rewards["length"] == pytest.approx(len(row["completion"]) / 100)
        if row in unscored:
            assert (rewards["ocr"], row["reward"], row["advantage"], json.loads(row["parts"])) == (None, None, 0.0, {})
        else:
            groups[row["step"], row["prompt_id"]].append(row)
    for group in groups.values():
        mean = statistics.fmean(row["reward"] for row in group)
        assert [row["advantage"] for row in group] == pytest.approx([row["reward"] - mean for row in group], abs=1e-5)
    for line in read_metrics(run):
        of_step = [row for row in rows if row["step"] == line["step"]]
        scored = [row["reward"] for row in of_step if row["reward"] is not None]
        assert line["rewards/unscored"] == len(of_step) - len(scored)
        assert line["reward"] == pytest.approx(statistics.fmean(scored), abs=1e-6)
    saved = [json.loads(line) for line in (run / "slow_samples.jsonl").read_text(encoding="ascii").splitlines()]
    assert {row["prediction"] for row in saved} == {row["completion"] for row in unscored}
    assert rescore(run) == (len(rows) - len(unscored), [])
    assert rescore_main([str(run)]) == 0
    assert "<svg" in reward_curves(read_metrics(run))
    RunDirectory(run).drop_after(1)
    assert [line["step"] for line in read_metrics(run)] == [1]


def test_a_step_without_any_reward(make_config: MakeConfig, scorer: Callable[[str], None], tmp_path: Path) -> None:
    scorer("score")
    config = make_config(
        reward_workers=2, reward_timeout=0.3, max_steps=3, text_weight=0, table_weight=1, formula_weight=0
    )
    assert train(config) == 0
    lines = read_metrics(tmp_path / "run")
    assert [line["rewards/unscored"] for line in lines] == [8.0] * 3
    assert all(line["reward"] is None and line["rewards/ocr/mean"] is None for line in lines)
    assert all(math.isfinite(line["loss"]) and math.isfinite(line["grad_norm"]) for line in lines)
    assert "rewards/table/mean" not in lines[0] and lines[0]["table/zero_variance_groups"] == 1.0
    assert {row["advantage"] for row in read_rollouts(tmp_path / "run").to_pylist()} == {0.0}
    assert rescore(tmp_path / "run") == (0, [])


def test_metrics_of_a_task_of_which_a_part_has_a_reward() -> None:
    def rollout(prompt_id: int, reward: float | None) -> Rollout:
        return Rollout(
            step=1, id="a", source="s", task="text", prompt_id=prompt_id, completion="", reference="", reward=reward,
            rewards={"ocr": reward}, parts={} if reward is None else {"gate": 1.0}, length=10,
        )  # fmt: skip

    rollouts = [rollout(0, 0.5), rollout(0, None), rollout(1, 0.0), rollout(1, 1.0), rollout(2, None)]
    assert rollout_metrics(rollouts) == {
        "rewards/text/mean": 0.5,
        "rewards/text/std": pytest.approx(math.sqrt(1 / 6)),
        "text/length": 10.0,
        "text/truncated": 0.0,
        "text/zero_variance_groups": pytest.approx(2 / 3),
        "text/gate": 1.0,
        "text/gated": 0.0,
    }


def test_workers_end_with_an_interrupted_run(make_config: MakeConfig) -> None:
    config = make_config(reward_workers=2, reward_functions=["ocr", f"{__name__}:fail_at_step_two"])
    with pytest.raises(KeyboardInterrupt):
        train(config)
    assert not workers()


def test_workers_end_with_an_error_before_training(make_argv: MakeArgv, tmp_path: Path) -> None:
    assert main(make_argv(reward_workers=1, train_data=tmp_path / "missing.jsonl")) == 2
    assert workers_end()


def test_dry_run_uses_workers_and_leaves_nothing(make_argv: MakeArgv, tmp_path: Path) -> None:
    assert main(make_argv(reward_workers=1, dry_run=True)) == 0
    assert not workers()
    assert not (tmp_path / "run").exists()


def test_closed_trainer_has_no_workers(make_config: MakeConfig) -> None:
    config = make_config(reward_workers=2)
    trainer, _ = build_trainer(config, RunDirectory(Path(config.training.output_dir)))
    assert len(workers()) == 2
    trainer.close()
    assert not workers()


def test_workers_that_do_not_come_up_are_a_user_error(
    make_argv: MakeArgv, scorer: Callable[[str], None], capsys: pytest.CaptureFixture[str]
) -> None:
    scorer("no_such_function")
    assert main(make_argv(reward_workers=2)) == 2
    assert "error: reward_workers: 2: a reward worker cannot import" in capsys.readouterr().err


def test_worker_deaths_leave_completions_out(
    make_config: MakeConfig, scorer: Callable[[str], None], tmp_path: Path
) -> None:
    scorer("die")
    assert train(make_config(reward_workers=2, max_steps=1)) == 0
    assert read_metrics(tmp_path / "run")[0]["rewards/unscored"] == 8.0
    saved = (tmp_path / "run" / "slow_samples.jsonl").read_text(encoding="ascii").splitlines()
    assert {json.loads(line)["outcome"] for line in saved} == {"death"}


def test_none_of_a_users_function_still_stops_the_run(make_config: MakeConfig) -> None:
    config = make_config(reward_workers=1, reward_functions=["ocr", "test_trainer:none_for_formulas"], max_steps=3)
    with pytest.raises(RewardError, match="reward function 'none_for_formulas' returned nan"):
        train(config)


def test_refused_reference_names_the_sample(make_config: MakeConfig) -> None:
    config = make_config(reward_workers=1)
    ocr = reward_functions.load_reward_functions(config.training, config.rewards)[0]
    with pytest.raises(ValueError, match="sample 1: "):
        ocr(completions=["a", "a"], task=["text", "table"], reference=["a", "a & b"])
    ocr.close()
    with pytest.raises(RewardError, match="reward function 'ocr': the pool is closed"):
        ocr(completions=["a"], task=["text"], reference=["a"])
    with pytest.raises(ConfigError, match="reward_timeout"):
        make_config(reward_timeout=5.0)
