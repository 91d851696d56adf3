"""Samples whole crops: content of a split, drawn and degraded, with the reference a model should write."""

from __future__ import annotations

import hashlib
import random
from dataclasses import dataclass

from PIL import Image

from gravity_rl.synth.draw import Glyph, degrade, draw_formula, draw_table, draw_text
from gravity_rl.synth.formula import sample_formula
from gravity_rl.synth.knobs import CropKnobs
from gravity_rl.synth.split import Split, draw_from_split
from gravity_rl.synth.table import row_units, sample_table
from gravity_rl.synth.text import sample_text

TASKS = ("text", "table", "formula")


@dataclass(frozen=True)
class Crop:
    """A grey-level image, its reference, the units of content it holds and where its glyphs are."""

    task: str
    reference: str
    image: Image.Image
    units: tuple[str, ...]
    glyphs: tuple[Glyph, ...]


def crop_seed(seed: int, split: Split, index: int) -> int:
    """A seed of its own for every crop, the same on every platform."""
    digest = hashlib.blake2b(f"{seed}/{split}/{index}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big")


def sample_crop(task: str, split: Split, seed: int, knobs: CropKnobs) -> Crop:
    """One crop; a pure function of its arguments.

    Raises:
        ValueError: ``task`` is not ``text``, ``table`` or ``formula``.
    """
    rng = random.Random(seed)
    if task == "text":
        lines = sample_text(rng, knobs, split)
        reference, units, drawing = "\n".join(lines), lines, draw_text(lines, rng, knobs)
    elif task == "table":
        table = sample_table(rng, knobs, split)
        reference, units, drawing = table.html(), row_units(table), draw_table(table, rng, knobs)
    elif task == "formula":
        reference = draw_from_split(
            split, lambda: sample_formula(rng, terms=knobs.formula_terms, depth=knobs.formula_depth)
        )
        units, drawing = [reference], draw_formula(reference, rng, knobs)
    else:
        raise ValueError(f"task: expected one of {', '.join(TASKS)}, got {task!r}")
    drawing = degrade(drawing, rng, knobs)
    return Crop(task, reference, drawing.image, tuple(units), drawing.glyphs)
