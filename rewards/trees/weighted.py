"""Edit distance between ordered labelled trees whose renamings cost fractions, as in TEDS with cell contents.

Inserting or deleting a node costs 1, renaming it what the caller says, from 0 to 1. `rewards.trees.distance` has the
case of unit costs, which is all that a reward needs. Here too, equal subtrees are found by hash-consing and stripped
from both ends. The rest is a dynamic programme over the nodes in postorder, in a band that is widened until
everything outside of it costs more than what was found inside.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

from rewards.trees.subtrees import Forest, Node, strip_equal

# Where an exact distance would take more cells of the dynamic programme than this (ten to twenty seconds), the best
# distance found so far stands in for it. It is never smaller than the exact one.
MAX_CELLS = 10_000_000

# What comparing two forests costs beside its cells, in cells.
_OVERHEAD = 25

# Limit of the first band.
_FIRST_LIMIT = 8.0
_FAR = float("inf")

Rename = Callable[[Any, Any], float]  # of two labels


def weighted_tree_distance(tree: Node, other: Node, rename: Rename) -> float:
    """Smallest total cost of node insertions, deletions and renamings that turn one tree into the other.

    Args:
        tree: a tree, not nested deeper than Python's recursion limit allows.
        other: another.
        rename: the cost of giving a node another label. From 0 to 1, symmetric, and 0 for equal labels.
    """
    solver = _Solver(rename)
    return solver.forest_distance((solver.intern(tree),), (solver.intern(other),))


class _Costs(dict[int, float]):
    """Distances from one subtree to others, each found when it is first looked up."""

    def __init__(self, find: Callable[[int, int], float], subtree: int) -> None:
        super().__init__()
        self._find = find
        self._subtree = subtree

    def __missing__(self, other: int) -> float:
        cost = self[other] = self._find(self._subtree, other)
        return cost


class _Solver:
    """Subtrees by number, equal ones under one number; lists are indexed by that number."""

    def __init__(self, rename: Rename) -> None:
        self.rename = rename
        self.budget = MAX_CELLS
        self.numbers: dict[tuple[Hashable, Forest], int] = {}
        self.labels: list[Hashable] = []
        self.children: list[Forest] = []
        self.sizes: list[int] = []
        self.costs: list[_Costs] = []

    def intern(self, tree: Node) -> int:
        key = (tree.label, tuple(map(self.intern, tree.children)))
        number = self.numbers.setdefault(key, len(self.sizes))
        if number == len(self.sizes):
            self.labels.append(tree.label)
            self.children.append(key[1])
            self.sizes.append(1 + self._size(key[1]))
            self.costs.append(_Costs(self._tree_distance, number))
        return number

    def _size(self, forest: Forest) -> int:
        return sum(self.sizes[subtree] for subtree in forest)

    def _tree_distance(self, tree: int, other: int) -> float:
        left, right = self.children[tree], self.children[other]
        if not left and not right:
            return self.rename(self.labels[tree], self.labels[other])
        if not left or not right:
            # At most one pair of nodes is kept: the leaf, and whatever is the cheapest to make it.
            leaf, rest = (other, tree) if left else (tree, other)
            names = {self.labels[node] for node in self._postorder((rest,))[0]}
            return self.sizes[rest] - 1 + min(self.rename(self.labels[leaf], name) for name in names)
        kept = self.rename(self.labels[tree], self.labels[other]) + self.forest_distance(left, right)
        if self.labels[tree] == self.labels[other]:
            return kept
        deleted, inserted = self.forest_distance(left, (other,)), self.forest_distance((tree,), right)
        return min(kept, 1 + deleted, 1 + inserted)

    def forest_distance(self, left: Forest, right: Forest) -> float:
        """The distance of two sequences of trees."""
        left, right = strip_equal(left, right, self.labels.__getitem__, self.children)
        if not left or not right:
            return self._size(left) + self._size(right)
        best = self._in_order(left, right)
        limit = max(_FIRST_LIMIT, abs(self._size(left) - self._size(right)))
        while True:
            limit = min(limit, best)
            cells = _OVERHEAD + self._size(left) * min(self._size(right), int(limit) + 1)
            if cells > self.budget:
                return best
            self.budget -= cells
            best = min(best, self._banded_distance(left, right, limit))
            if best <= limit:
                return best
            limit *= 4

    def _in_order(self, left: Forest, right: Forest) -> float:
        """The cost of mapping the first tree to the first one, the second to the second, and so on down."""
        cost = 0.0
        for tree, other in zip(left, right, strict=False):
            if tree != other:
                cost += self.rename(self.labels[tree], self.labels[other])
                cost += self._in_order(self.children[tree], self.children[other])
        return cost + self._size(left[len(right) :]) + self._size(right[len(left) :])

    def _postorder(self, forest: Forest) -> tuple[list[int], list[int]]:
        """The subtrees at all nodes in postorder, and for each the index at which its own nodes begin."""
        found: list[int] = []
        pending = list(forest)
        while pending:  # children before their parent, from the right: postorder read backwards
            subtree = pending.pop()
            found.append(subtree)
            pending += self.children[subtree]
        found.reverse()
        return found, [index - self.sizes[subtree] + 1 for index, subtree in enumerate(found)]

    def _banded_distance(self, left: Forest, right: Forest, limit: float) -> float:
        """The distance if it is at most the limit, else some larger number that is no less than the distance.

        A cell is the distance between what comes up to x and y nodes. A mapping through it costs at least |x - y| up
        to there and |surplus - (x - y)| from there, so a band of cells holds all mappings within the limit.
        """
        nodes, starts = self._postorder(left)
        columns, column_starts = self._postorder(right)
        column_sizes = [self.sizes[column] for column in columns]
        width, surplus = len(columns), len(nodes) - len(columns)
        below, beyond = (surplus + int(limit)) // 2, (int(limit) - surplus) // 2
        last_use = {start: x for x, start in enumerate(starts)}
        above: list[float] = [*map(float, range(min(beyond, width) + 1)), *[_FAR] * (width - beyond)]
        kept = {0: above}
        for x, (subtree, start) in enumerate(zip(nodes, starts, strict=True)):
            base, size, costs = kept[start], self.sizes[subtree], self.costs[subtree]
            low, high = max(0, x - below), min(width, x + 1 + beyond)
            cost = _FAR if low else x + 1.0
            row = [_FAR] * low
            row.append(cost)
            for y in range(low, high):
                over = above[y + 1]
                cost = (over if over < cost else cost) + 1.0
                before = base[column_starts[y]]
                # Two subtrees differ at least by the difference of their sizes.
                if before + abs(size - column_sizes[y]) < cost:
                    matched = before + costs[columns[y]]
                    if matched < cost:
                        cost = matched
                row.append(cost)
            row += [_FAR] * (width - high)
            if last_use[start] == x:
                del kept[start]
            if x + 1 in last_use:
                kept[x + 1] = row
            above = row
        return above[-1]
