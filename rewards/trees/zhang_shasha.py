"""Zhang and Shasha's recurrence in plain Python: the exact distance of two forests.

The twin of `rewards.trees.zhang_shasha_compiled`, which does the same with numba where that is installed. This one
keeps few rows of the table in memory and computes only a band of it.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import add

from rapidfuzz.distance import Levenshtein

from rewards.trees.subtrees import Pool, Postorder, Problem

Distances = dict[int, dict[int, int]]  # of subtrees of the left and the right forest

_FAR = 1 << 40  # cost of a cell outside of the band


def forest_distance(problem: Problem, upper: int) -> int:
    """The exact distance of the two forests, given an upper bound of it."""
    left, right = problem.left, problem.right
    distances = _plain_distances(problem)
    if not problem.is_plain_throughout:
        plain_left, plain_right = problem.plain_keyroots()
        for i, plain_i in zip(left.keyroots, plain_left, strict=True):
            for j, plain_j in zip(right.keyroots, plain_right, strict=True):
                if not (plain_i and plain_j):
                    _subtree_distances(problem.pool, left, right, i, j, distances)
    return _band_distance(left, right, distances, upper)


def _plain_distances(problem: Problem) -> Distances:
    """The distances of all pairs of plain subtrees; the other pairs are left out."""
    pool = problem.pool
    columns = [subtree for subtree in set(problem.right.subtrees) if problem.is_plain(subtree)]
    texts = {subtree: pool.texts[subtree][1:] for subtree in columns if pool.children[subtree]}
    distances: Distances = {subtree: {} for subtree in problem.left.subtrees}
    for subtree, known in distances.items():
        if not pool.children[subtree]:
            known.update((column, pool.leaf_distance(subtree, column)) for column in columns)
        elif problem.is_plain(subtree):
            text = pool.texts[subtree][1:]
            for column in columns:
                if column in texts:
                    known[column] = Levenshtein.distance(text, texts[column])
                else:
                    known[column] = pool.leaf_distance(column, subtree)
    return distances


def _subtree_distances(pool: Pool, left: Postorder, right: Postorder, i: int, j: int, distances: Distances) -> None:
    """Finds the distance of every pair of subtrees on the leftmost paths below keyroots i and j.

    Rows and columns are the nodes below the keyroots. A cell is the distance between the forests up to and
    including both nodes.
    """
    texts = pool.texts
    first_i, first_j = left.starts[i], right.starts[j]
    subtrees = left.subtrees[first_i : i + 1]
    starts = [start - first_i for start in left.starts[first_i : i + 1]]
    columns = right.subtrees[first_j : j + 1]
    column_starts = [start - first_j for start in right.starts[first_j : j + 1]]
    on_leftmost_path = [y for y, start in enumerate(column_starts) if start == 0]

    def next_row(x: int, above: list[int], base: list[int]) -> list[int]:
        label, known = texts[subtrees[x]][0], distances[subtrees[x]]
        if starts[x]:
            matched = [base[s] + known[column] for s, column in zip(column_starts, columns, strict=True)]
            return _fill(above, matched, 0, len(columns), x + 1)
        # Where both nodes are on the leftmost paths, they are matched themselves, not their subtrees.
        matched = [
            s + known[column] if s else over + (label != texts[column][0])
            for s, column, over in zip(column_starts, columns, above, strict=False)
        ]
        row = _fill(above, matched, 0, len(columns), x + 1)
        known.update((columns[y], row[y + 1]) for y in on_leftmost_path)
        return row

    _sweep(starts, len(columns), next_row)


def _band_distance(left: Postorder, right: Postorder, distances: Distances, upper: int) -> int:
    """The distance of two forests whose subtrees' distances are known.

    Only cells that a path within the upper bound can pass are computed: a path through the cell after x and y
    nodes costs at least |x - y| up to it and |surplus - (x - y)| from it.
    """
    width = len(right.subtrees)
    surplus = len(left.subtrees) - width
    to_columns: dict[int, list[int]] = {}  # subtree -> its distance to the subtree at each column

    def next_row(x: int, above: list[int], base: list[int]) -> list[int]:
        subtree = left.subtrees[x]
        low = max(0, x - (surplus + upper) // 2)
        high = min(width, x + 1 + (upper - surplus) // 2)
        if subtree not in to_columns:
            to_columns[subtree] = list(map(distances[subtree].__getitem__, right.subtrees))
        before = map(base.__getitem__, right.starts[low:high])
        return _fill(above, list(map(add, before, to_columns[subtree][low:high])), low, high, x + 1)

    return _sweep(left.starts, width, next_row)[-1]


NextRow = Callable[[int, list[int], list[int]], list[int]]


def _sweep(starts: list[int], width: int, next_row: NextRow) -> list[int]:
    """The last row of a table, found row by row.

    `next_row` gets the index of a node, the row above it and the row at which its subtree begins. A row is
    kept for as long as a subtree that begins there is open.
    """
    last_use = {start: x for x, start in enumerate(starts)}
    above = list(range(width + 1))
    kept = {0: above}
    for x, start in enumerate(starts):
        row = next_row(x, above, kept[start])
        if last_use[start] == x:
            del kept[start]
        if x + 1 in last_use:
            kept[x + 1] = row
        above = row
    return above


def _fill(above: list[int], matched: list[int], low: int, high: int, first: int) -> list[int]:
    """The row below `above`: the cheapest of deletion, insertion and match, for columns low < y <= high.

    `matched` holds the costs of a match for these columns, and `first` is the cost of column 0.
    """
    cost = first if low == 0 else _FAR
    row = [_FAR] * low
    row.append(cost)
    append = row.append
    for over, match in zip(above[low + 1 : high + 1], matched, strict=True):
        if over < cost:
            cost = over
        cost += 1
        if match < cost:
            cost = match
        append(cost)
    row.extend([_FAR] * (len(above) - 1 - high))
    return row
