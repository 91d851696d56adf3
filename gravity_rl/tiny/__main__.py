"""Rebuilds the shipped tiny checkpoints from nothing: ``python -m gravity_rl.tiny --out runs/tiny``.

Four steps, each of which can be run alone with ``--steps``: ``crops`` renders the training crops and builds the
untrained model; ``ar`` teaches it to read (vision warm-up, easy crops first, AR path only); ``joint`` gives it its
drafter (``OUT/joint/final`` is ``shipped:tiny-reader``); ``noisy`` goes on with the labels of the noisy teacher
(``OUT/noisy/final`` is ``shipped:tiny``, the start of the demo). The last three are runs of ``gravity_rl/adapt.py``.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gravity_rl.resources import resource_dir
from gravity_rl.synth.__main__ import main as render
from gravity_rl.tiny.build import build_tiny

TASK_SHARES = ("0.34", "0.36", "0.30")  # text, table, formula


@dataclass(frozen=True)
class CropSet:
    """A folder of rendered crops."""

    name: str
    preset: str
    train: int
    heldout: int
    seed: int
    teacher: str = "exact"


CROP_SETS = (
    CropSet("crops", "tiny", 40_000, 160, 1),
    CropSet("easy-crops", "tiny-easy", 12_000, 0, 2),
    CropSet("noisy-crops", "tiny", 8_000, 0, 3, "noisy"),
)


@dataclass(frozen=True)
class JointRun:
    """A run of ``gravity_rl/adapt.py``: its configuration, and the folder of OUT that it starts from."""

    name: str
    config: str
    start: str


RUNS = (
    JointRun("ar", "adapt_tiny_nothing.yaml", "untrained"),
    JointRun("joint", "adapt_tiny_cpu.yaml", "ar/final"),
    JointRun("noisy", "adapt_tiny_noisy.yaml", "joint/final"),
)
STEPS = ("crops", *(run.name for run in RUNS))


def render_crops(out: Path, workers: int) -> None:
    """Render all crop sets and save the untrained model."""
    for crops in CROP_SETS:
        render([
            "--out", str(out / crops.name), "--preset", crops.preset, "--train", str(crops.train),
            "--heldout", str(crops.heldout), "--seed", str(crops.seed), "--teacher", crops.teacher,
            "--weights", *TASK_SHARES, "--glyph-square", "16", "--workers", str(workers),
        ])  # fmt: skip
    model, processor = build_tiny()
    model.save_pretrained(out / "untrained")
    processor.save_pretrained(out / "untrained")


def command(run: JointRun, out: Path, overrides: Sequence[str] = ()) -> list[str]:
    """The command line of a run."""
    data = {"ar": "crops", "joint": "crops", "noisy": "noisy-crops"}[run.name]
    easy = ["--curriculum_data", str(out / "easy-crops" / "train.jsonl")] if run.name == "ar" else []
    return [
        sys.executable, "-m", "accelerate.commands.launch", "-m", "gravity_rl.adapt",
        "--config", str(resource_dir("configs") / run.config),
        "--model_name_or_path", str(out / run.start), "--output_dir", str(out / run.name),
        "--train_data", str(out / data / "train.jsonl"), "--eval_data", str(out / "crops" / "heldout.jsonl"),
        *easy, *overrides,
    ]  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    """Command line; returns the exit status of the first step that failed, else 0."""
    parser = argparse.ArgumentParser(prog="python -m gravity_rl.tiny", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("runs/tiny"), help="folder to write")
    parser.add_argument("--steps", nargs="+", choices=STEPS, default=list(STEPS), help="which steps to take")
    parser.add_argument("--workers", type=int, default=2, help="processes that render")
    args = parser.parse_args(argv)
    if "crops" in args.steps:
        render_crops(args.out, args.workers)
    for run in RUNS:
        if run.name in args.steps:
            status = subprocess.run(command(run, args.out)).returncode
            if status:
                return status
    return 0


if __name__ == "__main__":
    sys.exit(main())
