"""The main job on a laptop: renders crops, trains the tiny model on them, and says whether it improved.

``make demo`` runs ``python -m gravity_rl.demo``. Everything is the real thing at a small size: the crops go through
the dataset contract, training through ``accelerate launch gravity_rl/train.py`` with ``configs/tiny_cpu.yaml`` and
self-speculative rollouts, whose saving is measured, and the verdict compares held-out crops before and after. A run
that does not improve exits with status 1.
"""

from __future__ import annotations

import argparse
import json
import shlex
import shutil
import signal
import subprocess
import sys
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import torch

import gravity_rl
from gravity_rl.metrics import ALL_TASKS, format_results
from gravity_rl.report import write_report
from gravity_rl.resources import resource_dir
from gravity_rl.savings import SavingError, measure_saving
from gravity_rl.synth.__main__ import task_counts, write_split
from gravity_rl.synth.knobs import PRESETS

TASK_SHARES = (0.3, 0.5, 0.2)  # text, table, formula
NEXT = """
Try next:
  . .venv/bin/activate                                # where make demo has installed everything
  python -m gravity_rl.demo --shuffle-rewards         # the control: must not improve
  tensorboard --logdir {out}    # every component of the reward, by task
  your own crops: docs/DATA.md, then --dry_run        # checks the data and one whole step
  configs/one_gpu.yaml, configs/gravity_16xh100.yaml  # for a real model"""
HELDOUT_SEED = 1  # the held-out crops are the same for every seed of the demo


@dataclass(frozen=True)
class DemoSize:
    """How much the demo trains, and what has to rise on the held-out crops.

    ``wanted_gain`` is the least rise of the sampled reward; ``greedy_must_rise`` asks the same of the greedy one,
    which moves later.
    """

    train_crops: int
    heldout_crops: int
    steps: int
    wanted_gain: float
    greedy_must_rise: bool


FULL = DemoSize(train_crops=480, heldout_crops=160, steps=60, wanted_gain=0.10, greedy_must_rise=True)
SHORT = DemoSize(train_crops=160, heldout_crops=100, steps=15, wanted_gain=0.05, greedy_must_rise=False)


def render(out: Path, size: DemoSize, seed: int) -> tuple[Path, Path]:
    """Training and held-out crops, in the dataset contract; their content cannot overlap."""
    knobs = PRESETS["tiny"]
    train = write_split(out, "train", task_counts(size.train_crops, TASK_SHARES), seed, knobs)
    heldout = write_split(out, "heldout", task_counts(size.heldout_crops, TASK_SHARES), HELDOUT_SEED, knobs)
    return train, heldout


def training_command(out: Path, train: Path, heldout: Path, size: DemoSize, seed: int) -> list[str]:
    """The command line of the main job.

    One torch thread is enough for so small a model, gives the same result whatever the number of cores, and does not
    suffer from other programs.
    """
    script = Path(gravity_rl.__file__).with_name("train.py")
    return [
        sys.executable, "-m", "accelerate.commands.launch",
        "--num_processes", "1", "--num_machines", "1", "--num_cpu_threads_per_process", "1",
        "--mixed_precision", "no", "--dynamo_backend", "no", "--cpu", str(script),
        "--config", str(resource_dir("configs") / "tiny_cpu.yaml"),
        "--output_dir", str(out), "--train_data", str(train), "--eval_data", str(heldout),
        "--max_steps", str(size.steps), "--seed", str(seed),
    ]  # fmt: skip


def run_to_the_end(command: Sequence[str]) -> int:
    """Runs a command and returns its exit status; whatever ends the wait ends all of its processes, too."""
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    with subprocess.Popen(command) as launcher:
        try:
            return launcher.wait()
        except BaseException:
            # accelerate does not pass signals on to the trainer.
            for process in psutil.Process(launcher.pid).children(recursive=True):
                process.terminate()
            raise


def rise(before: dict[str, Any], after: dict[str, Any], decoding: str, task: str) -> float:
    """Held-out reward after minus before."""
    return after[decoding][task]["reward"] - before[decoding][task]["reward"]


def shortfalls(before: dict[str, Any], after: dict[str, Any], size: DemoSize) -> list[str]:
    """What did not improve as it should, in words; empty if everything did."""
    gains = {
        (decoding, task): rise(before, after, decoding, task)
        for decoding in (("sampled", "greedy") if size.greedy_must_rise else ("sampled",))
        for task in (ALL_TASKS, "table")
    }
    wanted = dict.fromkeys(gains, 0.0) | {("sampled", ALL_TASKS): size.wanted_gain}
    return [
        f"{decoding} reward ({task}) changed by {gains[decoding, task]:+.3f}, wanted {_threshold(least)}"
        for (decoding, task), least in wanted.items()
        if not (gains[decoding, task] >= least and gains[decoding, task] > 0)
    ]


def _threshold(least: float) -> str:
    return f"at least {least:+.2f}" if least > 0 else "a rise"


def verdict(out: Path, size: DemoSize, *, control: bool) -> int:
    """Prints the result of a finished run; returns the exit status."""
    before, after = (
        json.loads((out / "evaluation" / f"{name}.json").read_text(encoding="utf-8")) for name in ("before", "after")
    )
    page = write_report(out)
    print(f"\n{format_results({'before': before, 'after': after})}\n")
    print(f"Rollouts, metrics, checkpoints and the final model: {out}")
    print(f"Reward curves and crops before and after: {page}")
    gain = rise(before, after, "sampled", ALL_TASKS)
    if control:
        learned = gain >= size.wanted_gain
        print(f"Control with shuffled rewards: sampled reward changed by {gain:+.3f}.")
        if learned:
            print("FAILED: rewards that say nothing must not improve the model.", file=sys.stderr)
        return int(learned)
    missed = shortfalls(before, after, size)
    if missed:
        print("FAILED: the model did not improve as it should:", *missed, sep="\n  ", file=sys.stderr)
        return 1
    aside = "" if size.greedy_must_rise else " (too few steps to judge greedy decoding)"
    greedy = rise(before, after, "greedy", ALL_TASKS)
    print(f"The model improved: sampled {gain:+.3f}, greedy {greedy:+.3f}{aside}.")
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """Command line; returns the exit status."""
    warnings.filterwarnings("ignore", category=FutureWarning, module="transformers")  # the version is pinned
    parser = argparse.ArgumentParser(prog="python -m gravity_rl.demo", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("runs/demo"), help="run directory; an older demo is replaced")
    parser.add_argument("--seed", type=int, default=0, help="seed of training crops, rollouts and order")
    parser.add_argument("--short", action="store_true", help="a fraction of the steps, for automated checks")
    parser.add_argument("--shuffle-rewards", action="store_true", help="control: permute rewards within each group")
    args = parser.parse_args(argv)
    size = SHORT if args.short else FULL
    data = args.out.with_name(args.out.name + "-crops")
    for folder in (args.out, data):
        if folder.exists() and not _is_demo_output(folder):
            parser.error(f"{folder} exists and was not written by the demo; choose another --out")
        shutil.rmtree(folder, ignore_errors=True)
    train, heldout = render(data, size, args.seed)
    command = training_command(args.out, train, heldout, size, args.seed)
    if args.shuffle_rewards:
        command += ["--shuffle_rewards", "true"]
    print(f"\n$ {shlex.join(command)}\n", flush=True)
    status = run_to_the_end(command)
    if status:
        print(f"FAILED: training ended with status {status}", file=sys.stderr)
        return status
    status = verdict(args.out, size, control=args.shuffle_rewards)
    torch.set_num_threads(1)  # as in training, and for the same reasons
    try:
        print(f"\n{measure_saving(args.out, heldout)}")
    except SavingError as error:
        print(f"FAILED: {error}", file=sys.stderr)
        return 1
    print(NEXT.format(out=args.out))
    return status


def _is_demo_output(folder: Path) -> bool:
    """Whether a folder looks like something the demo wrote, and may be replaced."""
    return folder.is_dir() and (
        not any(folder.iterdir()) or (folder / "heldout.jsonl").is_file() or (folder / "config.yaml").is_file()
    )


if __name__ == "__main__":
    sys.exit(main())
