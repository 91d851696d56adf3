"""The published ablations of joint training at tiny scale: each variant trained for the same steps from one AR model.

    python -m gravity_rl.tiny --steps crops ar        # what all variants start from
    python benchmarks/joint_ablations.py --steps 1000

Prints a Markdown table of held-out reward (greedy) and committed tokens a round. ``AR only`` has the same budget of
forward tokens and is the yardstick of AR quality; it has no drafter. Runs are kept, and those that are complete are not
repeated.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

VARIANTS: dict[str, list[str]] = {
    "joint (as published)": [],
    "AR only": ["--ar_only_steps", "STEPS"],
    "without the AR loss": ["--ar_loss_weight", "0"],
    "everything masked": ["--mask_schedule", "all"],
    "AR loss on every end token": ["--supervise_every_eos", "true"],
}


def train(name: str, folder: Path, args: argparse.Namespace) -> None:
    """Train a variant, unless its result is there."""
    command = [
        sys.executable, "-m", "accelerate.commands.launch", "-m", "gravity_rl.adapt", "--config", str(args.config),
        "--model_name_or_path", str(args.start), "--output_dir", str(folder), "--max_steps", str(args.steps),
        "--evaluation_steps", "0", "--save_steps", str(args.steps), *VARIANTS[name],
    ]  # fmt: skip
    subprocess.run([part.replace("STEPS", str(args.steps)) for part in command], check=True)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", type=Path, default=Path("configs/adapt_tiny_cpu.yaml"))
    parser.add_argument("--start", type=Path, default=Path("runs/tiny/ar/final"), help="the AR model to start from")
    parser.add_argument("--out", type=Path, default=Path("runs/ablations"), help="folder of the runs")
    parser.add_argument("--steps", type=int, default=1000, help="optimiser steps of each variant")
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS), metavar="NAME")
    args = parser.parse_args()
    tasks = ("text", "table", "formula", "all")
    print("| variant | " + " | ".join(f"reward {task}" for task in tasks) + " | tokens a round | accepted a round |")
    print("|---|" + "---|" * (len(tasks) + 2))
    for name in args.variants:
        folder = args.out / name.replace(" ", "-").replace("(", "").replace(")", "")
        result = folder / "evaluation" / f"step_{args.steps:06d}.json"
        if not result.is_file():
            train(name, folder, args)
        values = json.loads(result.read_text(encoding="utf-8"))
        rewards = " | ".join(f"{values[task]['reward']:.3f}" for task in tasks)
        speed = f"{values['all']['tokens_per_round']:.2f} | {values['all']['accepted_per_round']:.2f}"
        print(f"| {name} | {rewards} | {speed} |", flush=True)


if __name__ == "__main__":
    main()
