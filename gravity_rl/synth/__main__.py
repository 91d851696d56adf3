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

from gravity_rl.synth.crops import TASKS
from gravity_rl.synth.knobs import PRESETS, CropKnobs
from gravity_rl.synth.render import TEACHERS, Renderer
from gravity_rl.synth.split import Split


def task_counts(total: int, weights: Sequence[float]) -> dict[str, int]:
    """How many crops of each task make ``total``, by largest remainder."""
    shares = [total * weight / sum(weights) for weight in weights]
    counts = [int(share) for share in shares]
    by_remainder = sorted(range(len(TASKS)), key=lambda i: counts[i] - shares[i])
    for i in by_remainder[: total - sum(counts)]:
        counts[i] += 1
    return dict(zip(TASKS, counts, strict=True))


def write_split(
    folder: Path,
    split: Split,
    counts: dict[str, int],
    seed: int,
    knobs: CropKnobs,
    *,
    glyph_square: int = 0,
    teacher: str = "exact",
    workers: int = 1,
) -> Path:
    """Renders the crops of a split into ``folder/<split>`` and writes ``folder/<split>.jsonl``.

    ``glyph_square`` and ``teacher`` are those of :class:`Renderer`. The number of worker processes changes nothing
    but the time it takes.
    """
    (folder / split).mkdir(parents=True, exist_ok=True)
    tasks = [task for task in TASKS for _ in range(counts[task])]
    random.Random(seed).shuffle(tasks)
    rows = Renderer(folder, split, seed, knobs, glyph_square, teacher).rows(tasks, workers)
    path = folder / f"{split}.jsonl"
    with path.open("w", encoding="utf-8") as file:
        for row in tqdm(rows, total=len(tasks), desc=f"Rendering {split} crops", unit="crop"):
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
    parser.add_argument("--glyph-square", type=int, default=0, metavar="PIXELS",
                        help="write the column `glyphs` for squares of this side; 0: do not")  # fmt: skip
    parser.add_argument("--teacher", choices=sorted(TEACHERS), default="exact",
                        help="who writes the references of training crops")  # fmt: skip
    parser.add_argument("--workers", type=int, default=1, help="processes that render; the result is the same for any")
    args = parser.parse_args(argv)
    if min(args.train, args.heldout, *args.weights) < 0 or sum(args.weights) <= 0:
        parser.error("--train, --heldout and --weights must not be negative, and some weight must be positive")
    if args.glyph_square < 0 or args.workers < 1:
        parser.error("--glyph-square must not be negative, and --workers must be at least 1")
    splits: tuple[tuple[Split, int], ...] = (("train", args.train), ("heldout", args.heldout))
    for split, total in splits:
        path = write_split(
            args.out,
            split,
            task_counts(total, args.weights),
            args.seed,
            PRESETS[args.preset],
            glyph_square=args.glyph_square,
            teacher=args.teacher,
            workers=args.workers,
        )
        print(path)


if __name__ == "__main__":
    main()
