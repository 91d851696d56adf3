"""Exact edit distance between ordered labelled trees, fast for the trees that tables make.

`tree_distance` is the unit-cost distance of Zhang and Shasha (1989), which apted computes too. It is fast on
tables because equal subtrees are found by hash-consing, so that each distinct row is compared once, because
equal leading and trailing rows are stripped, because two cheap bounds often meet, and because the upper one
keeps the search to a band. `apted_distance` is the slow reference that the tests compare it with.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from operator import add
from typing import NamedTuple

from rapidfuzz.distance import Levenshtein

# Where the exact distance needs more cells than this (about a second), the distance of the best top-down
# alignment stands in for it. That is never smaller, so the similarity can only be lower.
MAX_CELLS = 3_000_000

_FAR = 1 << 40  # cost of a cell outside of the band


class Node(NamedTuple):
    """An ordered tree with labelled nodes."""

    label: Hashable
    children: tuple[Node, ...] = ()


def tree_distance(tree: Node, other: Node) -> int:
    """Smallest number of node insertions, deletions and renamings that turn one tree into the other."""
    pool = _Pool()
    left, right = _strip(pool, (pool.intern(tree),), (pool.intern(other),))
    upper = _Alignment(pool).distance(left, right)
    if upper == _lower_bound(pool, left, right):
        return upper
    left_nodes, right_nodes = _Postorder(pool, left), _Postorder(pool, right)
    subtree_cells = left_nodes.keyroot_size() * right_nodes.keyroot_size()
    if subtree_cells + len(left_nodes.subtrees) * min(len(right_nodes.subtrees), upper) > MAX_CELLS:
        return upper
    return _zhang_shasha(pool, left_nodes, right_nodes, upper)


def apted_distance(tree: Node, other: Node) -> int:
    """The same distance from the apted package: slow, for checking."""
    from apted import APTED, Config  # only needed here

    class UnitCost(Config):  # type: ignore[misc]
        def rename(self, node1: Node, node2: Node) -> int:
            return int(node1.label != node2.label)

        def children(self, node: Node) -> list[Node]:
            return list(node.children)

    return int(APTED(tree, other, UnitCost()).compute_edit_distance())


Forest = tuple[int, ...]  # numbers of the trees
Distances = dict[int, dict[int, int]]


class _Pool:
    """Hash-consed subtrees: equal subtrees have one number. Lists are indexed by that number."""

    def __init__(self) -> None:
        self.numbers: dict[tuple[str, Forest], int] = {}
        self.symbols: dict[Hashable, str] = {}  # label -> one character, so that labels compare as strings
        self.labels: list[str] = []
        self.children: list[Forest] = []
        self.sizes: list[int] = []

    def intern(self, tree: Node) -> int:
        symbol = self.symbols.setdefault(tree.label, chr(len(self.symbols)))
        children = tuple(map(self.intern, tree.children))
        key = (symbol, children)
        found = self.numbers.get(key)
        if found is None:
            found = self.numbers[key] = len(self.sizes)
            self.labels.append(symbol)
            self.children.append(children)
            self.sizes.append(1 + sum(self.sizes[child] for child in children))
        return found

    def preorder(self, forest: Forest) -> Iterator[int]:
        for subtree in forest:
            yield subtree
            yield from self.preorder(self.children[subtree])

    def postorder(self, forest: Forest) -> Iterator[int]:
        for subtree in forest:
            yield from self.postorder(self.children[subtree])
            yield subtree


def _strip(pool: _Pool, left: Forest, right: Forest) -> tuple[Forest, Forest]:
    """Both forests without what an optimal mapping can map to itself.

    With unit costs these are equal leading and trailing trees, and the roots of two single trees if they are
    equal, after which their children are stripped in turn.
    """
    while True:
        shorter = min(len(left), len(right))
        start = 0
        while start < shorter and left[start] == right[start]:
            start += 1
        end = 0
        while end < shorter - start and left[-1 - end] == right[-1 - end]:
            end += 1
        left, right = left[start : len(left) - end], right[start : len(right) - end]
        if len(left) != 1 or len(right) != 1 or pool.labels[left[0]] != pool.labels[right[0]]:
            return left, right
        left, right = pool.children[left[0]], pool.children[right[0]]


def _lower_bound(pool: _Pool, left: Forest, right: Forest) -> int:
    """Edit distance of the label sequences, in pre- and postorder: a tree edit changes each by one edit."""
    bound = 0
    for order in (pool.preorder, pool.postorder):
        left_labels, right_labels = (
            "".join(pool.labels[subtree] for subtree in order(forest)) for forest in (left, right)
        )
        bound = max(bound, Levenshtein.distance(left_labels, right_labels))
    return bound


class _Alignment:
    """Selkow's top-down distance, never below the tree distance: whole subtrees are inserted or deleted."""

    def __init__(self, pool: _Pool) -> None:
        self.pool = pool
        self.known: dict[tuple[int, int], int] = {}

    def distance(self, left: Forest, right: Forest) -> int:
        """Edit distance of two sequences of trees, a tree costing its size to insert or delete."""
        sizes, labels = self.pool.sizes, self.pool.labels
        if all(sizes[subtree] == 1 for subtree in left + right):
            return Levenshtein.distance("".join(labels[s] for s in left), "".join(labels[s] for s in right))
        previous = [0]
        for other in right:
            previous.append(previous[-1] + sizes[other])
        for subtree in left:
            size = sizes[subtree]
            cost = previous[0] + size
            current = [cost]
            for j, other in enumerate(right):
                replaced = previous[j] + self._replace(subtree, other)
                cost = min(cost + sizes[other], previous[j + 1] + size, replaced)
                current.append(cost)
            previous = current
        return previous[-1]

    def _replace(self, subtree: int, other: int) -> int:
        if subtree == other:
            return 0
        cost = self.known.get((subtree, other))
        if cost is None:
            pool = self.pool
            renamed = pool.labels[subtree] != pool.labels[other]
            cost = renamed + self.distance(pool.children[subtree], pool.children[other])
            self.known[subtree, other] = cost
        return cost


class _Postorder:
    """A forest as lists in postorder, for Zhang and Shasha's recurrence."""

    def __init__(self, pool: _Pool, forest: Forest) -> None:
        self.subtrees = list(pool.postorder(forest))
        # Index of the leftmost leaf below each node, which is where its subtree begins.
        self.starts = [index - pool.sizes[subtree] + 1 for index, subtree in enumerate(self.subtrees)]
        # Keyroots: the last node with a given leftmost leaf. Of equal subtrees, the first is enough.
        last_with_start = {start: index for index, start in enumerate(self.starts)}
        distinct = {self.subtrees[index]: index for index in reversed(last_with_start.values())}
        self.keyroots = sorted(distinct.values())

    def keyroot_size(self) -> int:
        """Total number of nodes below the keyroots."""
        return sum(keyroot - self.starts[keyroot] + 1 for keyroot in self.keyroots)


def _zhang_shasha(pool: _Pool, left: _Postorder, right: _Postorder, upper: int) -> int:
    """The exact distance of two forests, given an upper bound of it."""
    distances: Distances = {subtree: {} for subtree in left.subtrees}
    for i in left.keyroots:
        for j in right.keyroots:
            _subtree_distances(pool, left, right, i, j, distances)
    return _forest_distance(left, right, distances, upper)


def _subtree_distances(pool: _Pool, left: _Postorder, right: _Postorder, i: int, j: int, distances: Distances) -> None:
    """Finds the distance of every pair of subtrees on the leftmost paths below keyroots i and j.

    Rows and columns are the nodes below the keyroots. A cell is the distance between the forests up to and
    including both nodes.
    """
    labels = pool.labels
    first_i, first_j = left.starts[i], right.starts[j]
    subtrees = left.subtrees[first_i : i + 1]
    starts = [start - first_i for start in left.starts[first_i : i + 1]]
    columns = right.subtrees[first_j : j + 1]
    column_starts = [start - first_j for start in right.starts[first_j : j + 1]]
    on_leftmost_path = [y for y, start in enumerate(column_starts) if start == 0]

    def next_row(x: int, above: list[int], base: list[int]) -> list[int]:
        label, known = labels[subtrees[x]], distances[subtrees[x]]
        if starts[x]:
            matched = [base[s] + known[column] for s, column in zip(column_starts, columns, strict=True)]
            return _fill(above, matched, 0, len(columns), x + 1)
        # Where both nodes are on the leftmost paths, they are matched themselves, not their subtrees.
        matched = [
            s + known[column] if s else over + (label != labels[column])
            for s, column, over in zip(column_starts, columns, above, strict=False)
        ]
        row = _fill(above, matched, 0, len(columns), x + 1)
        known.update((columns[y], row[y + 1]) for y in on_leftmost_path)
        return row

    _sweep(starts, len(columns), next_row)


def _forest_distance(left: _Postorder, right: _Postorder, distances: Distances, upper: int) -> int:
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
