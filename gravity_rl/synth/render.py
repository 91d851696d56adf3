"""Renders the rows of a dataset: crops to PNG files, in one process or several, and the JSON rows about them."""

from __future__ import annotations

import math
import multiprocessing
import random
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from gravity_rl.synth.crops import crop_seed, sample_crop
from gravity_rl.synth.glyphs import glyph_string
from gravity_rl.synth.knobs import CropKnobs
from gravity_rl.synth.split import Split
from gravity_rl.synth.teacher import exact_teacher, noisy_teacher

TEACHERS = {"exact": exact_teacher, "noisy": noisy_teacher}
_CHUNK = 16  # crops that a worker process renders in one go


@dataclass(frozen=True)
class Renderer:
    """Renders any row of one split; a row depends on these settings, its index and its task alone.

    Attributes:
        folder: of the dataset; images go to its subfolder named like the split, which must exist.
        glyph_square: side in pixels of the squares of the column ``glyphs``; crops are padded to multiples of it.
            0 leaves the column out.
        teacher: who writes the references of training crops; those of held-out crops are always exact.
    """

    folder: Path
    split: Split
    seed: int
    knobs: CropKnobs
    glyph_square: int = 0
    teacher: str = "exact"

    def row(self, index: int, task: str) -> dict[str, str]:
        """Write the image of one row and return the row."""
        seed = crop_seed(self.seed, self.split, index)
        crop = sample_crop(task, self.split, seed, self._padded_knobs())
        name = f"{self.split}/{index:06d}-{task}.png"
        crop.image.save(self.folder / name)
        teacher = TEACHERS[self.teacher] if self.split == "train" else exact_teacher
        row = {
            "id": f"{self.split}-{index:06d}",
            "image": name,
            "task": task,
            "reference": teacher(crop, random.Random(f"{seed}/teacher")),
            "source": "synthetic",
        }
        if self.glyph_square:
            row["glyphs"] = glyph_string(crop.glyphs, *crop.image.size, self.glyph_square)
        return row

    def rows(self, tasks: Sequence[str], workers: int = 1) -> Iterator[dict[str, str]]:
        """One row a task, in order, rendered by ``workers`` processes."""
        if workers == 1:
            yield from map(self.row, range(len(tasks)), tasks)
            return
        # spawn: a fork of a process that runs threads may hang
        with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn")) as pool:
            yield from pool.map(self.row, range(len(tasks)), tasks, chunksize=_CHUNK)

    def _padded_knobs(self) -> CropKnobs:
        if not self.glyph_square:
            return self.knobs
        return replace(self.knobs, size_multiple=math.lcm(self.knobs.size_multiple, self.glyph_square))
