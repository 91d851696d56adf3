"""Two processes train like one: same batch, groups across processes, one copy of each file, equal weights."""

from __future__ import annotations

import errno
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow.parquet as pq
import pytest
from conftest import Crops
from run_helpers import Run, arguments, metrics_without_timings, start_ranks, wait_all
from safetensors.numpy import load_file

from gravity_rl import train
from gravity_rl.launcher import missing_processes
from gravity_rl.manifest import read_manifest
from gravity_rl.parsing import ConfigError
from gravity_rl.resume import complete_checkpoints

# Twelve completions a step: three groups of four. Of two processes, the first has one and a half of them.
ONE = {"per_device_train_batch_size": 6}
TWO = {"per_device_train_batch_size": 3}


class Place:
    """A folder in which runs on the same data take place, by one process or by two."""

    def __init__(self, folder: Path, model: Path, crops: Crops):
        self.folder, self.model = folder, model
        self.train, self.held_out = crops.train, crops.held_out

    def argv(self, name: str, **settings: Any) -> list[str]:
        settings = {"max_steps": 4, "eval_data": self.held_out} | settings
        return arguments(self.model, self.train, self.folder / name, **settings)

    def two(self, name: str, **options: Any) -> list[Run]:
        settings = options.pop("settings", {})
        return start_ranks(self.argv(name, **TWO, **settings), self.folder / f"{name}.log", 2, **options)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, tiny_checkpoint: Path, crops: Crops) -> Place:
    return Place(tmp_path_factory.mktemp("processes"), tiny_checkpoint, crops)


@pytest.fixture(scope="module")
def two(place: Place) -> Path:
    """An uninterrupted run of two processes."""
    runs = place.two("two")
    assert wait_all(runs) == [0, 0], runs[0].output() + runs[1].output()
    hashes = [re.findall(r"weights of rank \d of 2: (\w+)", run.output()) for run in runs]
    assert len(hashes[0]) == 1 and hashes[0] == hashes[1]
    return place.folder / "two"


def steps(run: Path) -> list[dict[str, list[Any]]]:
    return [pq.read_table(file).to_pydict() for file in sorted((run / "rollouts").iterdir())]


def test_same_batches_as_one_process(place: Place, two: Path) -> None:
    one = Run(place.argv("one", **ONE), place.folder / "one.log")
    assert one.wait() == 0, one.output()
    for alone, shared in zip(steps(place.folder / "one"), steps(two), strict=True):
        for column in ("step", "id", "task", "prompt_id", "reference"):
            assert alone[column] == shared[column]
        assert shared["prompt_id"] == [0] * 4 + [1] * 4 + [2] * 4
    alone, shared = (
        json.loads((folder / "evaluation" / "before.json").read_text()) for folder in (place.folder / "one", two)
    )
    assert shared["greedy"]["all"]["crops"] == alone["greedy"]["all"]["crops"] == 6
    assert shared["greedy"]["all"]["reward"] == pytest.approx(alone["greedy"]["all"]["reward"], abs=1e-3)


def test_one_copy_of_each_log(two: Path) -> None:
    assert [line["step"] for line in metrics_without_timings(two)] == [1, 2, 3, 4]
    assert [len(rows["id"]) for rows in steps(two)] == [12] * 4
    for rows in steps(two):  # two processes with equal random numbers would repeat each other's completions
        assert rows["completion"][:6] != rows["completion"][6:]
    rng_states = sorted(path.name for path in (two / "checkpoint-4").glob("rng_state*"))
    assert rng_states == ["rng_state_0.pth", "rng_state_1.pth"]
    assert read_manifest(two / "checkpoint-4")["world_size"] == 2


def test_advantages_are_those_of_whole_groups(two: Path) -> None:
    spread = 0.0
    for rows in steps(two):
        rewards = np.array(rows["reward"]).reshape(3, 4)
        mean, std = rewards.mean(axis=1, keepdims=True), rewards.std(axis=1, ddof=1, keepdims=True)
        expected = (rewards - mean) / (std + 1e-4)
        np.testing.assert_allclose(np.array(rows["advantage"]).reshape(3, 4), expected, atol=1e-4)
        spread = max(spread, float(std[1, 0]))
    assert spread > 0.01  # the group that crosses the processes has something to compare


def test_same_completions_give_the_same_weights(place: Place) -> None:
    """With the sampling taken out, gradients of two processes are those of one, up to rounding."""
    one = Run(place.argv("scripted_one", **ONE), place.folder / "scripted_one.log", scripted=True)
    assert one.wait() == 0, one.output()
    runs = place.two("scripted_two", scripted=True)
    assert wait_all(runs) == [0, 0], runs[0].output()
    start = load_file(place.model / "model.safetensors")
    alone, shared = (
        load_file(place.folder / name / "final" / "model.safetensors") for name in ("scripted_one", "scripted_two")
    )
    moved = max(float(np.abs(alone[name] - start[name]).max()) for name in alone)
    assert moved > 1e-3
    for name, weight in alone.items():
        np.testing.assert_allclose(shared[name], weight, atol=moved / 200, err_msg=name)
    for line, other in zip(
        metrics_without_timings(place.folder / "scripted_one"),
        metrics_without_timings(place.folder / "scripted_two"),
        strict=True,
    ):
        for name in ("reward", "loss", "grad_norm", "kl"):
            assert other[name] == pytest.approx(line[name], rel=1e-2, abs=1e-5), name


def test_signal_to_one_process_stops_both_and_resumes_exactly(place: Place, two: Path) -> None:
    runs = place.two("stopped", events={1: ("_calculate_rewards", 2, signal.SIGTERM)})
    assert wait_all(runs) == [143, 143], runs[0].output()
    stopped = place.folder / "stopped"
    assert [path.name for path in complete_checkpoints(stopped)] == ["checkpoint-2", "checkpoint-3"]
    runs = place.two("stopped", settings={"resume_from_checkpoint": "latest"})
    assert wait_all(runs) == [0, 0], runs[0].output()
    assert metrics_without_timings(stopped) == metrics_without_timings(two)
    assert steps(stopped) == steps(two)
    weights = Path("final") / "model.safetensors"
    assert (stopped / weights).read_bytes() == (two / weights).read_bytes()


def test_failed_write_of_one_process_fails_the_save(place: Place) -> None:
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    runs = place.two("full", events={1: ("_save_rng_state", 4, full)})
    assert wait_all(runs) == [2, 2], runs[0].output()
    full_disk = place.folder / "full"
    assert "rank 1 failed, see its message" in runs[0].output()
    assert "No space left on device" in runs[1].output()
    assert all(f"{full_disk / 'checkpoint-2'} is intact" in run.output() for run in runs)
    assert [path.name for path in complete_checkpoints(full_disk)] == ["checkpoint-2"]
    assert not (full_disk / ".staging" / "checkpoint-4").exists()


@pytest.mark.slow
def test_accelerate_launch_on_cpu(place: Place) -> None:
    """``accelerate launch --num_processes 2 --cpu`` starts two processes, which stop when it is killed."""
    script = Path(train.__file__)
    run = place.folder / "launched"
    launcher = Path(sys.executable).with_name("accelerate")
    command = [launcher, "launch", "--num_processes", "2", "--cpu", script]
    with (place.folder / "launched.log").open("w") as log:
        process = subprocess.Popen(
            [*command, *place.argv("launched", **TWO, max_steps=300, save_steps=300)],
            stdout=log, stderr=log, env=os.environ | {"OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        deadline = time.monotonic() + 500  # the packages are imported four times in all
        while not (run / "metrics.jsonl").is_file() and time.monotonic() < deadline and process.poll() is None:
            time.sleep(0.2)
        below = psutil.Process(process.pid).children(recursive=True)
        workers = [child for child in below if not child.children()]
        process.kill()
        process.wait()
    _, alive = psutil.wait_procs(below, timeout=120)
    for survivor in alive:
        survivor.kill()
    output = (place.folder / "launched.log").read_text()
    assert not alive, output
    assert len(workers) == 2
    assert "SIGTERM: the run stops with a checkpoint" in output
    (checkpoint,) = complete_checkpoints(run)
    assert read_manifest(checkpoint)["world_size"] == 2
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert lines[-1]["step"] == read_manifest(checkpoint)["global_step"]


def test_launcher_arguments(tmp_path: Path) -> None:
    config = tmp_path / "two.yaml"
    config.write_text(
        "compute_environment: LOCAL_MACHINE\ndistributed_type: MULTI_CPU\nuse_cpu: true\nnum_processes: 2\n"
        "num_machines: 1\n"
    )
    assert missing_processes(["launch", "--num_processes", "2", "--cpu", "train.py"], gpus=0) == 2
    assert missing_processes(["--num_processes", "2", "train.py", "--num_processes", "5"], gpus=0) == 2
    assert missing_processes(["launch", "--config_file", str(config), "train.py"], gpus=0) == 2
    assert missing_processes(["launch", "--cpu", "train.py"], gpus=0) == 1
    assert missing_processes(["launch", "train.py"], gpus=4) == 1
    with pytest.raises(ConfigError, match=r"asked for 2 processes on 1 machine.*1 GPU"):
        missing_processes(["launch", "--num_processes", "2", "train.py"], gpus=1)
    with pytest.raises(ConfigError, match="on 2 machine"):
        missing_processes(["launch", "--num_machines", "2", "--num_processes", "2", "--cpu", "train.py"], gpus=0)
