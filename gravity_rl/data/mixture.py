"""Deterministic task mixture: which row stands at which position of an epoch.

A pure function of the rows' tasks, the weights and the seed. Nothing depends on worker or process counts,
so every rank computes the same order. The shares are exact (largest remainder), any prefix is close to
them, and each task goes through its own shuffled rows completely before a row comes again.
"""

import random
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction


def apportion(weights: Mapping[str, float], size: int) -> dict[str, int]:
    """Split `size` rows over the tasks by the largest-remainder method.

    Args:
        weights: non-negative weight of each task, not all zero; only the ratios matter.
        size: rows to hand out.

    Returns:
        Rows of each task. They sum to `size` and differ from the exact shares by less than one. Equal
        remainders are served in the order of `weights`.
    """
    exact = {task: Fraction(weight) for task, weight in weights.items()}
    total = sum(exact.values())
    quotas = {task: weight * size / total for task, weight in exact.items()}
    counts = {task: int(quota) for task, quota in quotas.items()}
    by_remainder = sorted(quotas, key=lambda task: counts[task] - quotas[task])
    for task in by_remainder[: size - sum(counts.values())]:
        counts[task] += 1
    return counts


def mixture_order(
    tasks: Sequence[str], weights: Mapping[str, float] | None, *, seed: int, size: int | None = None
) -> list[int]:
    """Return the row indices of one epoch.

    Args:
        tasks: task of each row.
        weights: weight of each task; None keeps the shares that the tasks have in `tasks`. Rows of a task
            with weight 0, or without a weight, are left out.
        seed: decides the order within each task.
        size: length of the result; default: the number of rows whose task has a positive weight.

    Returns:
        `size` indices into `tasks`. Each task has exactly its apportioned number of them, and a row occurs
        again only after every row of its task has occurred equally often.

    Raises:
        ValueError: there is nothing to draw from, or a task with a positive weight has no rows.
    """
    rows: dict[str, list[int]] = {}
    for index, task in enumerate(tasks):
        rows.setdefault(task, []).append(index)
    natural = {task: len(indices) for task, indices in rows.items()}
    shares = {task: weight for task, weight in sorted((weights or natural).items()) if weight > 0}
    without_rows = [task for task in shares if task not in rows]
    if without_rows or not shares:
        raise ValueError(f"no rows for the mixture: {', '.join(without_rows) or 'the dataset is empty'}")
    if size is None:
        size = sum(len(rows[task]) for task in shares)
    streams = {task: _cycle(rows[task], f"{seed}/{task}") for task in shares}
    return [next(streams[task]) for task in _interleave(apportion(shares, size))]


def _cycle(indices: list[int], seed: str) -> Iterator[int]:
    """Yield `indices` for ever, in a new order every time round."""
    generator = random.Random(seed)  # hashes a string with SHA-512, the same everywhere
    while True:
        order = list(indices)
        generator.shuffle(order)
        yield from order


def _interleave(counts: Mapping[str, int]) -> Iterator[str]:
    """Yield each task `counts[task]` times, always the one that is furthest behind its share."""
    size = sum(counts.values())
    placed = dict.fromkeys(counts, 0)
    for position in range(1, size + 1):
        task = max(counts, key=lambda task: counts[task] * position - placed[task] * size)
        placed[task] += 1
        yield task
