"""Which samples share a row: the plan of a whole run, made before its first step.

A plan is a pure function of the samples' lengths, the mixture and the seed, so it does not depend on the number of
processes or of loader workers, and a resumed run finds its place by counting. Samples are packed first-fit in the
order of the mixture: a sample goes to the first open row with room; when there is none and ``open_rows`` are open, the
oldest is closed and the others are carried over.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from gravity_rl.data.mixture import mixture_order

OPEN_ROWS = 32


@dataclass(frozen=True)
class RowPlan:
    """The samples of each row of a stage.

    Attributes:
        starts: (rows + 1,) int64; row i holds the entries ``starts[i]`` to ``starts[i + 1]`` of the other two.
        samples: dataset row of each entry.
        draws: running number of each entry in the stage's mixture; seeds its masks.
    """

    starts: np.ndarray
    samples: np.ndarray
    draws: np.ndarray

    def __len__(self) -> int:
        return len(self.starts) - 1

    def row(self, index: int) -> list[tuple[int, int]]:
        """(dataset row, draw) of each sample of a row."""
        part = slice(self.starts[index], self.starts[index + 1])
        return list(zip(self.samples[part].tolist(), self.draws[part].tolist(), strict=True))


def first_fit(lengths: Iterable[int], budget: int, open_rows: int = OPEN_ROWS) -> Iterator[list[int]]:
    """Pack items into rows; yields the item numbers of each row, in the order in which rows are closed.

    Args:
        lengths: length of each item, at most ``budget``.
        budget: room of a row, in the unit of the lengths.
        open_rows: rows that are filled at a time.

    Raises:
        ValueError: an item is longer than a row.
    """
    rows: list[list[int]] = []
    room: list[int] = []
    for item, length in enumerate(lengths):
        if length > budget:
            raise ValueError(f"item {item} of length {length} does not fit a row of {budget}")
        place = next((index for index, free in enumerate(room) if length <= free), None)
        if place is None:
            if len(rows) == open_rows:
                yield rows.pop(0)
                room.pop(0)
            rows.append([])
            room.append(budget)
            place = len(rows) - 1
        rows[place].append(item)
        room[place] -= length
    yield from rows


def plan_rows(
    lengths: Sequence[int],
    tasks: Sequence[str],
    weights: dict[str, float] | None,
    *,
    budget: int,
    rows: int,
    seed: int,
) -> RowPlan:
    """The first ``rows`` rows of an endless mixture of the samples.

    Args:
        lengths: forward tokens of each sample; 0 leaves it out.
        tasks: task of each sample.
        weights: weight of each task in the mixture; None keeps their natural shares.
        budget: forward tokens of a row.
        rows: how many rows are needed.
        seed: decides the order.

    Raises:
        ValueError: no sample is usable, or a task with a positive weight has none.
    """
    usable = [index for index, length in enumerate(lengths) if length]
    names = [tasks[index] for index in usable]
    if not rows:
        return RowPlan(np.zeros(1, np.int64), np.zeros(0, np.int64), np.zeros(0, np.int64))
    mean = sum(lengths) / max(1, len(usable))
    draws = int(1.05 * rows * budget / max(1.0, mean)) + 1
    while True:
        order = [usable[index] for index in mixture_order(names, weights, seed=seed, size=draws)]
        packed = list(first_fit((lengths[index] for index in order), budget))
        # The rows open at the end of the mixture would have taken more of it.
        if len(packed) - OPEN_ROWS >= rows:
            break
        draws = 2 * draws
    kept = packed[:rows]
    starts = np.cumsum([0, *map(len, kept)])
    entries = np.fromiter((entry for row in kept for entry in row), np.int64)
    return RowPlan(starts, np.asarray(order)[entries], entries)
