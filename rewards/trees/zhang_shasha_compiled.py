"""Zhang and Shasha's recurrence compiled with numba: the exact distance of two forests.

The twin of `rewards.trees.zhang_shasha`, used by `rewards.trees.distance` where the `fast` extra is installed. The
first call compiles for some seconds and keeps the result beside this file (or in the user's cache folder).

Arrays: N nodes on the left and M on the right, in postorder; K distinct subtrees on the left and L on the right.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from rapidfuzz.distance import Levenshtein
from rapidfuzz.process import cdist

from rewards.trees.subtrees import Postorder, Problem


def forest_distance(problem: Problem) -> int:
    """The exact distance of the two forests."""
    left, right = _Side(problem, problem.left), _Side(problem, problem.right)
    distances = _plain_distances(left, right)
    if not problem.is_plain_throughout:
        plain, plain2 = problem.plain_keyroots()
        _subtree_distances(*left.arrays(plain), *right.arrays(plain2), distances)
    return int(_forest_distance(left.starts, left.kinds, right.starts, right.kinds, distances))


class _Side:
    """One forest as arrays. `kinds` numbers the distinct subtrees: plain rows, then leaves, then all others."""

    def __init__(self, problem: Problem, order: Postorder) -> None:
        pool = problem.pool
        subtrees = set(order.subtrees)
        leaves = [subtree for subtree in subtrees if not pool.children[subtree]]
        above = [subtree for subtree in subtrees if pool.children[subtree]]
        if not problem.is_plain_throughout:
            above.sort(key=problem.is_plain, reverse=True)
        self.rows = len(above) if problem.is_plain_throughout else sum(map(problem.is_plain, above))
        self.leaves = len(leaves)
        distinct = [*above[: self.rows], *leaves, *above[self.rows :]]
        self.texts = [pool.texts[subtree] for subtree in distinct]
        number = {subtree: kind for kind, subtree in enumerate(distinct)}
        self.kinds = np.array(list(map(number.__getitem__, order.subtrees)), np.int32)  # (N,)
        self.starts = np.array(order.starts, np.int32)  # (N,)
        self.order = order

    def arrays(self, plain: list[bool]) -> tuple[np.ndarray, ...]:
        """Starts (N,), kinds (N,), labels by kind (K,), keyroots and whether they are plain."""
        labels = np.array([ord(text[0]) for text in self.texts], np.int32)
        return self.starts, self.kinds, labels, np.array(self.order.keyroots, np.int32), np.array(plain, np.bool_)


def _plain_distances(left: _Side, right: _Side) -> np.ndarray:
    """(K, L) distances of the plain subtrees; of no use for the other pairs."""
    texts, texts2 = left.texts, right.texts
    distances = np.empty((len(texts), len(texts2)), np.int32)
    if left.rows and right.rows:
        below, below2 = [text[1:] for text in texts[: left.rows]], [text[1:] for text in texts2[: right.rows]]
        distances[: left.rows, : right.rows] = cdist(below, below2, scorer=Levenshtein.distance, dtype=np.int32)
    # A leaf and any tree: all but one node are inserted, the best one is matched.
    for kind, text in enumerate(texts[left.rows : left.rows + left.leaves], left.rows):
        distances[kind] = [len(other) - (text in other) for other in texts2]
    for kind, text in enumerate(texts2[right.rows : right.rows + right.leaves], right.rows):
        distances[:, kind] = [len(other) - (text in other) for other in texts]
    return distances


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _subtree_distances(starts, kinds, labels, keyroots, plain, starts2, kinds2, labels2, keyroots2, plain2, distances):
    """Fills in the distances of all pairs of subtrees, keyroot by keyroot, where not both are plain."""
    for a in range(len(keyroots)):
        i = keyroots[a]
        first = starts[i]
        for b in range(len(keyroots2)):
            if plain[a] and plain2[b]:
                continue
            j = keyroots2[b]
            first2 = starts2[j]
            costs = np.empty((i - first + 2, j - first2 + 2), np.int32)  # of the forests up to and including two nodes
            for y in range(costs.shape[1]):
                costs[0, y] = y
            for x in range(1, costs.shape[0]):
                costs[x, 0] = x
                start, kind = starts[first + x - 1] - first, kinds[first + x - 1]
                for y in range(1, costs.shape[1]):
                    start2, kind2 = starts2[first2 + y - 1] - first2, kinds2[first2 + y - 1]
                    cost = min(costs[x - 1, y], costs[x, y - 1]) + 1
                    if start == 0 and start2 == 0:
                        # Both are on the leftmost paths: they are matched themselves, not their subtrees.
                        cost = min(cost, costs[x - 1, y - 1] + (labels[kind] != labels2[kind2]))
                        distances[kind, kind2] = cost
                    else:
                        cost = min(cost, costs[start, start2] + distances[kind, kind2])
                    costs[x, y] = cost


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _forest_distance(starts, kinds, starts2, kinds2, distances):
    """The distance of two forests whose subtrees' distances are known."""
    height, width = len(starts), len(starts2)
    costs = np.empty((height + 1, width + 1), np.int32)
    for y in range(width + 1):
        costs[0, y] = y
    for x in range(height):
        costs[x + 1, 0] = x + 1
        start, known = starts[x], distances[kinds[x]]
        for y in range(width):
            cost = min(costs[x, y + 1], costs[x + 1, y]) + 1
            costs[x + 1, y + 1] = min(cost, costs[start, starts2[y]] + known[kinds2[y]])
    return costs[height, width]
