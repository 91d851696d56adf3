"""A run that was stopped, in whatever way, continues as if it had not been.

The runs take six steps in two epochs of three, save every second step and log every third: they stop and
continue within and between epochs, and in the middle of what one log line averages.
"""

from __future__ import annotations

import json
import shutil
import signal
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from conftest import Crops
from run_helpers import Run, arguments, metrics_without_timings

from gravity_rl.manifest import read_manifest
from gravity_rl.resume import complete_checkpoints

COURSE = {"mixture_size": 6, "shuffle_dataset": "true", "logging_steps": 3}


class Place:
    """A folder in which runs of the same settings on the same data take place."""

    def __init__(self, folder: Path, model: Path, data: Path):
        self.folder, self.model, self.data = folder, model, data

    def launch(self, name: str, event: Any = None, **settings: Any) -> Run:
        argv = arguments(self.model, self.data, self.folder / name, **COURSE, **settings)
        return Run(argv, self.folder / f"{name}.log", event=event)


@pytest.fixture(scope="session")
def place(tmp_path_factory: pytest.TempPathFactory, tiny_checkpoint: Path, crops: Crops) -> Place:
    return Place(tmp_path_factory.mktemp("resume"), tiny_checkpoint, crops.train)


@pytest.fixture(scope="session")
def uninterrupted(place: Place) -> Path:
    """The run directory of a run from beginning to end."""
    run = place.launch("uninterrupted")
    assert run.wait() == 0, run.output()
    return place.folder / "uninterrupted"


def rollouts(run: Path) -> dict[str, Any]:
    return {file.name: pq.read_table(file).to_pydict() for file in sorted((run / "rollouts").iterdir())}


def assert_same_run(run: Path, expected: Path) -> None:
    assert metrics_without_timings(run) == metrics_without_timings(expected)
    assert rollouts(run) == rollouts(expected)
    for name in ("final/model.safetensors", "checkpoint-6/model.safetensors"):
        assert (run / name).read_bytes() == (expected / name).read_bytes(), name


def test_reference_run_learns_and_records_every_step(uninterrupted: Path, place: Place) -> None:
    """What the comparisons below rest on: the weights move and every step draws other completions."""
    assert [line["step"] for line in metrics_without_timings(uninterrupted)] == [3, 6]
    steps = rollouts(uninterrupted).values()
    assert len({json.dumps(rows["completion"]) for rows in steps}) == 6
    order = [row for rows in steps for row in rows["id"][::4]]
    assert order[:6] != order[6:]  # the second epoch is shuffled differently
    assert (uninterrupted / "final/model.safetensors").read_bytes() != (place.model / "model.safetensors").read_bytes()


def test_killed_in_a_step_and_in_a_save(uninterrupted: Path, place: Place) -> None:
    """SIGKILL between generation and backward of step 4, then just before checkpoint-6 gets its name."""
    run = place.launch("killed", event=("_calculate_rewards", 3, signal.SIGKILL))
    assert run.wait() == -signal.SIGKILL
    folder = place.folder / "killed"
    assert [path.name for path in complete_checkpoints(folder)] == ["checkpoint-2"]
    assert metrics_without_timings(folder)[-1]["step"] == 3  # to be forgotten and repeated

    run = place.launch("killed", resume_from_checkpoint="latest", event=("_commit", 6, signal.SIGKILL))
    assert run.wait() == -signal.SIGKILL
    assert (folder / ".staging" / "checkpoint-6" / "model.safetensors").is_file()
    assert [path.name for path in complete_checkpoints(folder)] == ["checkpoint-2", "checkpoint-4"]

    run = place.launch("killed", resume_from_checkpoint=str(folder / "checkpoint-4"))
    assert run.wait() == 0, run.output()
    assert not (folder / ".staging" / "checkpoint-6").exists()
    assert_same_run(folder, uninterrupted)


def test_sigterm_saves_the_step_and_exits(uninterrupted: Path, place: Place) -> None:
    """SIGTERM in the middle of step 3, at which no checkpoint was due, is followed by checkpoint-3."""
    run = place.launch("terminated", event=("_calculate_rewards", 2, signal.SIGTERM))
    assert run.wait() == 143, run.output()
    assert "SIGTERM: the run stops with a checkpoint" in run.output()
    assert "SIGTERM: stopped after step 3 of 6; continue with --resume_from_checkpoint latest" in run.output()
    folder = place.folder / "terminated"
    assert [path.name for path in complete_checkpoints(folder)] == ["checkpoint-2", "checkpoint-3"]
    assert not (folder / "final").exists()

    run = place.launch("terminated", resume_from_checkpoint="true")
    assert run.wait() == 0, run.output()
    assert_same_run(folder, uninterrupted)


def test_sigint_saves_the_step_and_exits(place: Place) -> None:
    run = place.launch("interrupted", event=("_calculate_rewards", 0, signal.SIGINT))
    assert run.wait() == 130, run.output()
    assert [path.name for path in complete_checkpoints(place.folder / "interrupted")] == ["checkpoint-1"]


def test_refusals(uninterrupted: Path, place: Place) -> None:
    """A second run in the same directory, one with other settings, one that goes back."""
    shutil.copytree(uninterrupted, place.folder / "copy")
    before = sorted(path.relative_to(place.folder) for path in (place.folder / "copy").rglob("*"))

    run = place.launch("copy")
    assert run.wait() == 2
    assert "is not empty" in run.output()
    assert "--resume_from_checkpoint latest" in run.output()

    run = place.launch("copy", resume_from_checkpoint="latest", learning_rate=2e-3, num_generations=2)
    assert run.wait() == 2
    assert "learning_rate: 0.001 in the checkpoint, 0.002 now" in run.output()
    assert "num_generations: 4 in the checkpoint, 2 now" in run.output()

    run = place.launch("copy", resume_from_checkpoint=place.folder / "copy" / "checkpoint-2")
    assert run.wait() == 2
    assert "later than checkpoint-2: checkpoint-4, checkpoint-6" in run.output()
    assert "Traceback" not in run.output()
    after = sorted(path.relative_to(place.folder) for path in (place.folder / "copy").rglob("*"))
    assert after == before


def test_settings_that_do_not_decide_the_course_may_change(uninterrupted: Path, place: Place) -> None:
    folder = place.folder / "other_logging"
    shutil.copytree(uninterrupted, folder)
    shutil.rmtree(folder / "checkpoint-6")
    run = place.launch("other_logging", resume_from_checkpoint="latest", save_steps=1, save_total_limit=2)
    assert run.wait() == 0, run.output()
    assert [path.name for path in complete_checkpoints(folder)] == ["checkpoint-5", "checkpoint-6"]
    assert_same_run(folder, uninterrupted)
    assert read_manifest(folder / "checkpoint-6")["global_step"] == 6
