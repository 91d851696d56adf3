"""Keeps training and held-out content apart by construction.

Every unit of content (a text line, a table row, a formula) belongs to exactly one split, decided by a hash of the
unit itself. Samplers redraw a unit until it belongs to their split, so no line, row or formula of a held-out crop
can occur in any training crop, whatever the seeds.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Literal, get_args

Split = Literal["train", "heldout"]
SPLITS: tuple[Split, ...] = get_args(Split)
HELDOUT_BUCKETS = 4  # one unit in four is held out


def split_of(unit: str) -> Split:
    """The split that a unit of content belongs to."""
    digest = hashlib.blake2b(unit.encode("utf-8"), digest_size=8).digest()
    return "heldout" if int.from_bytes(digest, "big") % HELDOUT_BUCKETS == 0 else "train"


def draw_from_split(split: Split, draw: Callable[[], str]) -> str:
    """Calls ``draw`` until it gives a unit of this split.

    Raises:
        RuntimeError: no unit of the split came up in 10,000 draws (the content space is too small).
    """
    for _ in range(10_000):
        unit = draw()
        if split_of(unit) == split:
            return unit
    raise RuntimeError(f"10,000 draws gave no content of the {split} split")
