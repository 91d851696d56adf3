"""A joint training that was stopped, moved to other loader workers or spread over processes is the same training.

The run from nothing has all stages: two steps of easy crops, three of the AR path alone, three of vision warm-up. It
saves every second step and logs every third, so that it stops and continues within what one log line averages and
before a change of stage.
"""

from __future__ import annotations

import re
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Crops
from run_helpers import Run, joint_arguments, metrics_without_timings, start_ranks, wait_all
from safetensors.numpy import load_file

from gravity_rl.adapt import build_trainer
from gravity_rl.joint.config import parse_joint_config
from gravity_rl.recorder import RunDirectory
from gravity_rl.resume import complete_checkpoints

pytestmark = pytest.mark.slow

WEIGHTS = Path("model.safetensors")


class Place:
    """A folder in which runs of the same settings on the same data take place."""

    def __init__(self, folder: Path, model: Path, easy: Path, crops: Crops):
        self.folder, self.model, self.easy, self.crops = folder, model, easy, crops

    def argv(self, name: str, **settings: Any) -> list[str]:
        course = {
            "curriculum_data": self.easy,
            "eval_data": self.crops.held_out,
            "curriculum_steps": 2,
            "ar_only_steps": 3,
            "vision_warmup_steps": 3,
            "random_block_phase": "true",
            "gradient_accumulation_steps": 2,
            "logging_steps": 3,
            "save_steps": 2,
            "evaluation_steps": 4,
            "lr_scheduler_type": "cosine",
        }
        return joint_arguments(self.model, self.easy, self.folder / name, **course | settings)

    def launch(self, name: str, event: Any = None, **settings: Any) -> Run:
        return Run(self.argv(name, **settings), self.folder / f"{name}.log", event=event, entry="adapt")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, tiny_checkpoint: Path, glyph_crops: Path, crops: Crops) -> Place:
    return Place(tmp_path_factory.mktemp("joint"), tiny_checkpoint, glyph_crops, crops)


@pytest.fixture(scope="module")
def uninterrupted(place: Place) -> Path:
    """The directory of a run from beginning to end, without loader workers."""
    run = place.launch("uninterrupted")
    assert run.wait() == 0, run.output()
    return place.folder / "uninterrupted"


def assert_same_run(run: Path, expected: Path) -> None:
    assert metrics_without_timings(run) == metrics_without_timings(expected)
    for name in ("final", "checkpoint-6"):
        assert (run / name / WEIGHTS).read_bytes() == (expected / name / WEIGHTS).read_bytes(), name
    for name in ("step_000004.json", "step_000006.json"):
        assert (run / "evaluation" / name).read_bytes() == (expected / "evaluation" / name).read_bytes(), name


def test_stages_follow_one_another(uninterrupted: Path, place: Place) -> None:
    first, held_out, last_held_out, last = metrics_without_timings(uninterrupted)
    assert [line["step"] for line in (first, held_out, last_held_out, last)] == [3, 4, 6, 6]
    assert "glyph_loss" in first and "diffusion_loss" not in first
    assert "glyph_loss" not in last and "diffusion_loss" in last
    assert "heldout/all/tpf" in held_out and "heldout/all/tpf" in last_held_out
    assert last["ar_loss"] < first["ar_loss"]
    assert (uninterrupted / "final" / "block_diffusion.json").is_file()

    folder = place.folder / "rows"
    # The crops after the curriculum do not say which glyphs they show.
    config = parse_joint_config(place.argv("rows", train_data=place.crops.train, vision_warmup_steps=2))
    rows = build_trainer(config, RunDirectory(folder))[0].train_dataset
    assert len(rows) == 6 * 2
    assert ["glyphs" in rows[index] for index in range(12)] == [True] * 4 + [False] * 8
    assert [bool(rows[index]["diffusion"].numel()) for index in range(12)] == [False] * 6 + [True] * 6
    names = [{stage.data[sample]["id"][:4] for sample, _ in stage.plan.row(0)} for stage in rows.stages]
    assert names == [{"easy"}, {"trai"}, {"trai"}]
    assert [len(stage.plan) for stage in rows.stages] == [4, 2, 6]


def test_killed_run_goes_on_across_a_change_of_stage(uninterrupted: Path, place: Place) -> None:
    """SIGKILL in step 4, the first with corrupted streams; continued from checkpoint-2 by two loader workers."""
    run = place.launch("killed", event=("training_step", 3, signal.SIGKILL))
    assert run.wait() == -signal.SIGKILL
    folder = place.folder / "killed"
    assert [path.name for path in complete_checkpoints(folder)] == ["checkpoint-2"]
    assert metrics_without_timings(folder)[-1]["step"] == 3  # to be forgotten and repeated

    run = place.launch("killed", resume_from_checkpoint="latest", dataloader_num_workers=2)
    assert run.wait() == 0, run.output()
    assert_same_run(folder, uninterrupted)


def test_sigterm_saves_the_step_and_exits(uninterrupted: Path, place: Place) -> None:
    """SIGTERM in step 5 of a run with one loader worker; no checkpoint was due."""
    run = place.launch("terminated", event=("training_step", 4, signal.SIGTERM), dataloader_num_workers=1)
    assert run.wait() == 143, run.output()
    assert "SIGTERM: stopped after step 5 of 6; continue with --resume_from_checkpoint latest" in run.output()
    folder = place.folder / "terminated"
    assert [path.name for path in complete_checkpoints(folder)] == ["checkpoint-2", "checkpoint-4", "checkpoint-5"]
    assert not (folder / "final").exists()

    run = place.launch("terminated", resume_from_checkpoint="latest")
    assert run.wait() == 0, run.output()
    assert_same_run(folder, uninterrupted)


def test_other_settings_are_refused(uninterrupted: Path, place: Place) -> None:
    run = place.launch("uninterrupted", resume_from_checkpoint="latest", ar_only_steps=2, block_size=6)
    assert run.wait() == 2
    assert "ar_only_steps: 3 in the checkpoint, 2 now" in run.output()
    assert "block_size: 4 in the checkpoint, 6 now" in run.output()
    assert "Traceback" not in run.output()
    run = place.launch("uninterrupted")
    assert run.wait() == 2
    assert "is not empty" in run.output()


def test_two_processes_train_like_one(uninterrupted: Path, place: Place) -> None:
    """Each row of a step goes to one of them: sums over rows are those of one process, weights up to rounding."""
    argv = place.argv("two", gradient_accumulation_steps=1)
    runs = start_ranks(argv, place.folder / "two.log", 2, entry="adapt")
    assert wait_all(runs) == [0, 0], runs[0].output() + runs[1].output()
    hashes = [re.findall(r"weights of rank \d of 2: (\w+)", run.output()) for run in runs]
    assert len(hashes[0]) == 1 and hashes[0] == hashes[1]
    assert "skipped" in runs[0].output() and "0 skipped" not in runs[1].output()
    folder = place.folder / "two"
    shared, alone = metrics_without_timings(folder), metrics_without_timings(uninterrupted)
    for line, other in zip(shared, alone, strict=True):
        assert line.keys() == other.keys()
        for name in ("samples_per_row", "packing_efficiency", "learning_rate", "heldout/all/crops"):
            assert line.get(name) == other.get(name), name
        for name in {"loss", "ar_loss", "diffusion_loss", "glyph_loss", "ar_accuracy", "grad_norm"} & line.keys():
            assert line[name] == pytest.approx(other[name], rel=2e-2), name
    start = load_file(place.model / WEIGHTS)
    weights, expected = (load_file(path / "final" / WEIGHTS) for path in (folder, uninterrupted))
    moved = max(float(np.abs(expected[name] - start[name]).max()) for name in expected)
    assert moved > 1e-2
    for name, weight in expected.items():
        np.testing.assert_allclose(weights[name], weight, atol=moved / 50, err_msg=name)
