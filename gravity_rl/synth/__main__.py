"""Renders a dataset of crops: ``python -m gravity_rl.synth --out runs/crops --train 2000 --heldout 160``.

Writes ``train.jsonl`` and ``heldout.jsonl`` in the dataset contract, with PNG files beside them.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Sequence
from pathlib import Path

from tqdm import tqdm

from gravity_rl.synth.crops import TASKS, crop_seed, sample_crop
from gravity_rl.synth.knobs import PRESETS, CropKnobs
from gravity_rl.synth.split import Split


def task_counts(total: int, weights: Sequence[float]) -> dict[str, int]:
    """How many crops of each task make ``total``, by largest remainder."""
    shares = [total * weight / sum(weights) for weight in weights]
    counts = [int(share) for share in shares]
    by_remainder = sorted(range(len(TASKS)), key=lambda i: counts[i] - shares[i])
    for i in by_remainder[: total - sum(counts)]:
        counts[i] += 1
    return dict(zip(TASKS, counts, strict=True))


def write_split(folder: Path, split: Split, counts: dict[str, int], seed: int, knobs: CropKnobs) -> Path:
    """Renders the crops of a split into ``folder/<split>`` and writes ``folder/<split>.jsonl``."""
    images = folder / split
    images.mkdir(parents=True, exist_ok=True)
    tasks = [task for task in TASKS for _ in range(counts[task])]
    random.Random(seed).shuffle(tasks)
    path = folder / f"{split}.jsonl"
    with path.open("w", encoding="utf-8") as file:
        for index, task in enumerate(tqdm(tasks, desc=f"Rendering {split} crops", unit="crop")):
            crop = sample_crop(task, split, crop_seed(seed, split, index), knobs)
            name = f"{index:06d}-{task}.png"
            crop.image.save(images / name)
            row = {
                "id": f"{split}-{index:06d}",
                "image": f"{split}/{name}",
                "task": task,
                "reference": crop.reference,
                "source": "synthetic",
            }
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
    return path


def main(argv: Sequence[str] | None = None) -> None:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m gravity_rl.synth", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder to write; created if missing")
    parser.add_argument("--train", type=int, default=2000, help="number of training crops")
    parser.add_argument("--heldout", type=int, default=160, help="number of held-out crops")
    parser.add_argument("--preset", choices=sorted(PRESETS), default="standard", help="look and size of the crops")
    parser.add_argument("--weights", type=float, nargs=3, default=(0.3, 0.5, 0.2), metavar=("TEXT", "TABLE", "FORMULA"),
                        help="shares of the tasks")  # fmt: skip
    parser.add_argument("--seed", type=int, default=0, help="seed of content and appearance")
    args = parser.parse_args(argv)
    if min(args.train, args.heldout, *args.weights) < 0 or sum(args.weights) <= 0:
        parser.error("--train, --heldout and --weights must not be negative, and some weight must be positive")
    splits: tuple[tuple[Split, int], ...] = (("train", args.train), ("heldout", args.heldout))
    for split, total in splits:
        print(write_split(args.out, split, task_counts(total, args.weights), args.seed, PRESETS[args.preset]))


if __name__ == "__main__":
    main()
