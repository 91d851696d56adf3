"""The run directory: what is written, what survives a resumption, and re-scoring."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from transformers import DefaultFlowCallback, TrainerCallback, TrainerControl, TrainerState
from transformers.trainer_callback import CallbackHandler

from gravity_rl.config import RunConfig
from gravity_rl.environment import describe_environment
from gravity_rl.metrics import Rollout
from gravity_rl.parsing import ConfigError
from gravity_rl.recorder import (
    ROLLOUT_SCHEMA,
    RunDirectory,
    gist,
    read_metrics,
    read_rollouts,
    write_json,
)
from gravity_rl.rescore import main, rescore
from rewards import score


def rollout(step: int, completion: str = "abc", reward: float | None = None) -> Rollout:
    exact = score("text", completion, "abd")
    value = exact.value if reward is None else reward
    return Rollout(
        step=step, id="row", source="s", task="text", prompt_id=0, completion=completion, reference="abd",
        reward=value, rewards={"ocr": value}, parts=exact.parts, advantage=0.0, length=4,
    )  # fmt: skip


def test_rollouts_read_back_in_order_and_typed(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    for step in (10, 2, 1):
        run.write_rollouts([rollout(step), rollout(step, "abd")])
    table = read_rollouts(tmp_path)
    assert table.schema == ROLLOUT_SCHEMA
    assert table["step"].to_pylist() == [1, 1, 2, 2, 10, 10]
    assert {path.name for path in run.rollouts.iterdir()} == {
        "step_000001.parquet",
        "step_000002.parquet",
        "step_000010.parquet",
    }


def test_generations_of_one_step_have_files_of_their_own(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    for step, number, completion in ((2, 1, "d"), (1, 10, "c"), (1, 2, "b"), (1, 0, "a"), (2, 0, "x"), (2, 1, "e")):
        run.write_rollouts([rollout(step, completion)], number)
    assert read_rollouts(tmp_path)["completion"].to_pylist() == ["a", "b", "c", "x", "e"]
    assert {path.name for path in run.rollouts.iterdir()} == {
        "step_000001.parquet", "step_000001_2.parquet", "step_000001_10.parquet", "step_000002.parquet",
        "step_000002_1.parquet",
    }  # fmt: skip
    run.drop_after(1)
    assert read_rollouts(tmp_path)["completion"].to_pylist() == ["a", "b", "c"]


def test_only_the_main_process_writes(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path / "run", is_main=False)
    run.write_rollouts([rollout(1)])
    assert not (tmp_path / "run").exists()


def test_values_that_json_cannot_hold_become_null(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    run.append_metrics(1, {"loss": math.nan, "grad_norm": math.inf, "kl": 0.5})
    run.append_metrics(2, {"loss": 1.0})
    assert read_metrics(tmp_path) == [
        {"step": 1, "loss": None, "grad_norm": None, "kl": 0.5},
        {"step": 2, "loss": 1.0},
    ]
    run.write_rollouts([rollout(1, reward=math.nan)])
    row = pq.read_table(run.rollouts / "step_000001.parquet").to_pylist()[0]
    assert json.loads(row["rewards"]) == {"ocr": None}
    write_json(tmp_path / "x.json", {"a": [math.nan, (1, 2)]})
    assert json.loads((tmp_path / "x.json").read_text()) == {"a": [None, [1, 2]]}


def test_resuming_forgets_what_came_after_the_checkpoint(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    for step in (1, 2, 3, 4):
        run.append_metrics(step, {"loss": float(step)})
        run.write_rollouts([rollout(step)])
    with run.metrics_file.open("a") as stream:
        stream.write('{"step": 5, "lo')  # a kill in the middle of a write
    run.drop_after(2)
    assert [line["step"] for line in read_metrics(tmp_path)] == [1, 2]
    assert read_rollouts(tmp_path)["step"].to_pylist() == [1, 2]
    run.append_metrics(3, {"loss": 3.0})
    assert [line["step"] for line in read_metrics(tmp_path)] == [1, 2, 3]


def test_every_launch_is_added_to_the_environment(tmp_path: Path, make_config: Callable[..., RunConfig]) -> None:
    run = RunDirectory(tmp_path)
    for _ in range(2):
        run.start(make_config(), num_processes=1, device="cpu")
    launches = json.loads((tmp_path / "environment.json").read_text())
    assert len(launches) == 2
    assert launches[0]["packages"]["trl"].startswith("1.")
    assert launches[0]["num_processes"] == 1


def test_tokens_are_not_written_to_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["train.py", "--hub_token", "secret", "--hub-token=secret", "--seed", "1"])
    assert describe_environment()["command"] == [
        "train.py", "--hub_token", "***", "--hub-token=***", "--seed", "1",
    ]  # fmt: skip


def test_rescore_finds_a_changed_reward(
    tmp_path: Path, make_config: Callable[..., RunConfig], capsys: pytest.CaptureFixture[str]
) -> None:
    run = RunDirectory(tmp_path)
    run.start(make_config(), num_processes=1, device="cpu")
    run.write_rollouts([rollout(1, "abd"), rollout(1, "x")])
    assert rescore(tmp_path) == (2, [])
    assert main([str(tmp_path)]) == 0
    run.write_rollouts([rollout(2, "abd", reward=0.25)])
    total, mismatches = rescore(tmp_path)
    assert total == 3
    assert [(m.step, m.recorded, m.recomputed) for m in mismatches] == [(2, 0.25, 1.0)]
    assert main([str(tmp_path)]) == 1
    assert "2 of 3 recorded rewards are reproduced exactly" in capsys.readouterr().out


def test_rescore_uses_the_constants_of_the_run(tmp_path: Path, make_config: Callable[..., RunConfig]) -> None:
    run = RunDirectory(tmp_path)
    run.start(make_config(gate_run_free=0, gate_run_span=2), num_processes=1, device="cpu")
    run.write_rollouts([rollout(1, "aaab")])
    assert len(rescore(tmp_path)[1]) == 1


def test_rescore_without_a_run_is_a_clear_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path)]) == 2
    assert "cannot read the configuration file" in capsys.readouterr().err


def test_gist_names_the_tasks_that_were_trained() -> None:
    line = gist({"reward": 0.5, "rewards/table/mean": 0.25, "completions/clipped_ratio": 0.1, "kl": None})
    assert line == "reward 0.500 (table 0.250)  truncated 10%"


class FakeTrainer:
    """As much of a trainer as ``RunDirectory.attach`` touches."""

    def __init__(self) -> None:
        self.args = SimpleNamespace(report_to=[])
        self.handler = CallbackHandler([DefaultFlowCallback()], None, None, None, None)
        self.add_callback, self.remove_callback = self.handler.add_callback, self.handler.remove_callback

    def log(self, step: int, logs: dict[str, float]) -> None:
        state = TrainerState(global_step=step, max_steps=2)
        self.handler.on_log(self.args, state, TrainerControl(), logs)  # type: ignore[arg-type]


class Bar(TrainerCallback):
    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        print("bar", state.global_step)


def test_progress_is_shown_by_gist_or_by_the_printer_given(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level("INFO")
    for name, printer in (("gist", None), ("bar", Bar())):
        trainer, run = FakeTrainer(), RunDirectory(tmp_path / name)
        run.path.mkdir()
        run.attach(trainer, printer)  # type: ignore[arg-type]
        trainer.log(1, {"reward": 0.5})
        trainer.log(2, {"train_runtime": 1.0})
        assert read_metrics(run.path) == [{"step": 1, "reward": 0.5}]
    assert [record.getMessage() for record in caplog.records] == ["step 1/2  reward 0.500 ()"]
    assert capsys.readouterr().out == "bar 1\nbar 2\n"


@pytest.mark.parametrize("line", ["{", "[1]", '{"loss": 1}', '{"step": "1"}', "\udcff"])
def test_broken_line_of_metrics_is_named(line: str, tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    run.append_metrics(1, {"loss": 1.0})
    with run.metrics_file.open("a", errors="surrogateescape") as stream:
        stream.write(line + "\n")
    with pytest.raises(ConfigError, match=r"metrics\.jsonl:2: "):
        run.drop_after(1)


@pytest.mark.parametrize("content", ["{", "{}"])
def test_broken_environment_is_named(content: str, tmp_path: Path, make_config: Callable[..., RunConfig]) -> None:
    (tmp_path / "environment.json").write_text(content)
    with pytest.raises(ConfigError, match=r"environment\.json"):
        RunDirectory(tmp_path).start(make_config(), num_processes=1, device="cpu")


def test_stray_files_beside_rollouts_are_ignored(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    run.write_rollouts([rollout(1)])
    (run.rollouts / "step_abc.parquet").write_text("x")
    run.drop_after(0)
    assert [file.name for file in run.rollouts.iterdir()] == ["step_abc.parquet"]


def truncate(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-20])


def drop_column(file: Path) -> None:
    pq.write_table(pq.read_table(file).drop_columns("reference"), file)


def set_column(name: str, value: object) -> Callable[[Path], None]:
    def change(file: Path) -> None:
        table = pq.read_table(file)
        pq.write_table(table.set_column(table.column_names.index(name), name, pa.array([value])), file)

    return change


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (truncate, "cannot be read"),
        (drop_column, "no column 'reference'"),
        (set_column("rewards", "{"), "rewards is not JSON"),
        (set_column("completion", None), "completion is null"),
        (set_column("task", "chart"), "unknown task 'chart'"),
        (set_column("step", "one"), "wrong type"),
    ],
)
@pytest.mark.parametrize(("number", "name"), [(0, "step_000001.parquet"), (1, "step_000001_1.parquet")])
def test_rescore_names_a_damaged_file(
    number: int,
    name: str,
    damage: Callable[[Path], None],
    words: str,
    tmp_path: Path,
    make_config: Callable[..., RunConfig],
    capsys: pytest.CaptureFixture[str],
) -> None:
    run = RunDirectory(tmp_path)
    run.start(make_config(), num_processes=1, device="cpu")
    run.write_rollouts([rollout(2)])
    damage(run.write_rollouts([rollout(1)], number))
    assert main([str(tmp_path)]) == 2
    (message,) = capsys.readouterr().err.splitlines()
    assert name in message
    assert words in message
