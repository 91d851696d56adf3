"""Bad input and bad luck, through the entry point: a clear message, status 2, and nothing lost."""

from __future__ import annotations

import json
import math
import resource
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import Crops
from transformers import AutoModelForImageTextToText

from gravity_rl.recorder import read_metrics, read_rollouts
from gravity_rl.resume import complete_checkpoints
from gravity_rl.train import main

MakeArgv = Callable[..., list[str]]
Capture = pytest.CaptureFixture[str]


def write_rows(crops: Crops, folder: Path, change: Callable[[list[dict[str, Any]]], Any]) -> Path:
    """A copy of the training crops whose rows `change` has changed."""
    shutil.copytree(crops.train.parent, folder)
    rows = [json.loads(line) for line in crops.train.read_text(encoding="utf-8").splitlines()]
    change(rows)
    file = folder / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return file


def assert_refused(argv: list[str], capsys: Capture, *words: str) -> None:
    assert main(argv) == 2
    _, separator, message = capsys.readouterr().err.partition("error: ")
    assert separator
    for part in words:
        assert part in message


def test_all_bad_rows_are_reported_together(make_argv: MakeArgv, crops: Crops, tmp_path: Path, capsys: Capture) -> None:
    folder = tmp_path / "data"

    def damage(rows: list[dict[str, Any]]) -> None:
        rows[0]["task"] = "chart"
        rows[2]["image"] = "nowhere.png"
        rows[4]["image"] = "broken.png"
        rows[7]["reference"] = " "
        del rows[8]["reference"]

    file = write_rows(crops, folder, damage)
    content = (folder / "train4.png").read_bytes()
    (folder / "broken.png").write_bytes(content[: len(content) // 2])
    assert_refused(
        make_argv(train_data=file),
        capsys,
        "5 problems",
        f"{file}:1: task: unknown task, expected text, table or formula ('chart')",
        f"{file}:3: image: ",
        "nowhere.png",
        f"{file}:5: image: ",
        f"{file}:8: reference: empty for a table",
        f"{file}:9: reference: missing",
    )
    assert not (tmp_path / "run" / "config.yaml").exists()


def test_nothing_left_after_filtering(make_argv: MakeArgv, crops: Crops, tmp_path: Path, capsys: Capture) -> None:
    file = write_rows(crops, tmp_path / "data", lambda rows: [row.update(task="chart") for row in rows])
    assert_refused(make_argv(train_data=file, on_bad_rows="drop"), capsys, "no usable rows left")


def test_empty_file(make_argv: MakeArgv, crops: Crops, tmp_path: Path, capsys: Capture) -> None:
    file = write_rows(crops, tmp_path / "data", lambda rows: rows.clear())
    assert_refused(make_argv(train_data=file), capsys, str(file))


def test_batch_sizes_that_do_not_divide(make_argv: MakeArgv, capsys: Capture) -> None:
    assert_refused(
        make_argv(per_device_train_batch_size=3, gradient_accumulation_steps=3),
        capsys,
        "3 (per_device_train_batch_size) x 3 (gradient_accumulation_steps) x 1 (processes) = 9 completions",
        "no multiple of num_generations 4",
        "per_device_train_batch_size 4; gradient_accumulation_steps 4; num_generations 3 or 9",
    )


def test_checkpoint_without_image_processor(
    make_argv: MakeArgv, tiny_checkpoint: Path, tmp_path: Path, capsys: Capture
) -> None:
    checkpoint = tmp_path / "text_only"
    shutil.copytree(tiny_checkpoint, checkpoint)
    (checkpoint / "processor_config.json").unlink()
    assert_refused(make_argv(model_name_or_path=checkpoint), capsys, str(checkpoint), "image processor")


def nan_at_step_two(completions: list[Any], trainer_state: Any, **columns: Any) -> list[float]:
    rewards = [float(len(completion[0]["content"])) for completion in completions]
    if trainer_state.global_step == 1:
        rewards[5] = math.nan
    return rewards


def test_reward_that_is_not_a_number(make_argv: MakeArgv, tmp_path: Path, capsys: Capture) -> None:
    """The run stops, names row and step, and keeps everything up to then, the step's rollouts included."""
    argv = make_argv(reward_functions=f"{__name__}:nan_at_step_two", save_steps=1)
    assert_refused(argv, capsys, "'nan_at_step_two' returned nan", "of step 2", "step_000002.parquet")
    run = tmp_path / "run"
    assert [line["step"] for line in read_metrics(run)] == [1]
    assert read_rollouts(run)["step"].to_pylist() == [1] * 8 + [2] * 8
    assert [path.name for path in complete_checkpoints(run)] == ["checkpoint-1"]


def fill_disk_at_step_two(completions: list[Any], trainer_state: Any, **columns: Any) -> list[float]:
    if trainer_state.global_step == 1:
        hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    return [float(len(completion[0]["content"])) for completion in completions]


def test_full_disk_while_saving(make_argv: MakeArgv, tmp_path: Path, capsys: Capture) -> None:
    """No file can grow beyond 100 kB when checkpoint-2 is written; checkpoint-1 stays loadable."""
    settings = {"reward_functions": f"{__name__}:fill_disk_at_step_two", "save_steps": 1, "max_steps": 3}
    run = tmp_path / "run"
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        assert_refused(
            make_argv(**settings),
            capsys,
            f"could not write {run / 'checkpoint-2'}",
            f"{run / 'checkpoint-1'} is intact; continue with --resume_from_checkpoint latest",
        )
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert [path.name for path in run.glob("checkpoint-*")] == ["checkpoint-1"]
    assert not list((run / ".staging").iterdir())
    AutoModelForImageTextToText.from_pretrained(run / "checkpoint-1")
    assert_refused(make_argv(**settings), capsys, "is not empty", "--resume_from_checkpoint latest")


@pytest.mark.parametrize("dry_run", [False, True])
@pytest.mark.parametrize("name", ["file", "file/below", "n" * 300])
def test_output_dir_that_cannot_be(
    name: str, dry_run: bool, make_argv: MakeArgv, tmp_path: Path, capsys: Capture
) -> None:
    (tmp_path / "file").touch()
    assert_refused(make_argv(output_dir=tmp_path / name, dry_run=dry_run), capsys, "output_dir: cannot create", name)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_one_command_line_launches_and_relaunches(
    make_argv: MakeArgv, crops: Crops, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The first launch dies in the evaluation before the first step, the second one trains."""
    argv = make_argv(eval_data=crops.held_out, resume_from_checkpoint="latest")

    def die(*args: Any, **kwargs: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("gravity_rl.train.evaluate", die)
        main(argv)
    run = tmp_path / "run"
    assert (run / "config.yaml").is_file()
    with caplog.at_level("INFO"):
        assert main(argv) == 0
    assert f"no checkpoint in {run} yet: the run starts from the beginning" in caplog.text
    assert [line["step"] for line in read_metrics(run)] == [1, 2]
    assert len(json.loads((run / "environment.json").read_text())) == 2


def test_reference_that_the_reward_refuses_is_found_before_training(
    make_argv: MakeArgv, crops: Crops, tmp_path: Path, capsys: Capture
) -> None:
    def damage(rows: list[dict[str, Any]]) -> None:
        next(row for row in rows if row["task"] == "table")["reference"] = "a & b"

    file = write_rows(crops, tmp_path / "data", damage)
    assert_refused(make_argv(train_data=file), capsys, "1 problem", "refused by the reward", "holds no table")
    assert not (tmp_path / "run" / "rollouts").exists()
