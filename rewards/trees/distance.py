"""Exact edit distance between ordered labelled trees, fast for the trees that tables make.

`tree_distance` is the unit-cost distance of Zhang and Shasha (1989), which apted computes too. It is fast on
tables because equal subtrees are found by hash-consing, so that each distinct row is compared once, because
equal leading and trailing rows are stripped, and because distances of rows of cells have a closed form. The
recurrence itself is compiled where numba is installed (the `fast` extra); in plain Python two cheap bounds often
meet, and the upper one keeps it to a band. `apted_distance` is the slow reference that the tests compare with.
"""

from __future__ import annotations

import threading
from functools import lru_cache
from importlib.util import find_spec

from rapidfuzz.distance import Levenshtein

from rewards.trees import zhang_shasha
from rewards.trees.subtrees import Forest, Node, Pool, Problem, strip_equal

__all__ = ["Node", "apted_distance", "tree_distance"]

# Where the exact distance needs more cells than this (about a second in plain Python), the distance of the best
# top-down alignment stands in for it. That is never smaller, so the similarity can only be lower. The limit does not
# depend on whether the recurrence is compiled, and neither does any reward.
MAX_CELLS = 3_000_000

# Two sequences of more pairs of trees than this are aligned by their equal trees, not by the cheapest alignment.
MAX_PAIRS = 250_000

# A pool of more distinct subtrees is not kept for the next comparison.
MAX_POOL = 20_000


def tree_distance(tree: Node, other: Node, compiled: bool | None = None) -> int:
    """Smallest number of node insertions, deletions and renamings that turn one tree into the other.

    Args:
        tree: a tree; the recursion is as deep as it.
        other: another one.
        compiled: whether to use numba; None if it is installed. The result is the same.

    Raises:
        ModuleNotFoundError: compiled is true and numba is not installed.
    """
    if tree == other:
        return 0
    pool = _pool_of(other)
    left, right = strip_equal((pool.intern(tree),), (pool.intern(other),), pool.label, pool.children)
    if not left or not right:
        return sum(map(pool.size, left + right))
    if compiled or (compiled is None and _has_numba()):
        return _compiled_distance(pool, left, right)
    return _plain_python_distance(pool, left, right)


class _LastPool(threading.local):
    """The pool of the tree that was compared last, in each thread."""

    tree: Node | None = None
    pool: Pool


_last = _LastPool()


def _pool_of(tree: Node) -> Pool:
    """A pool to intern a tree in. A group of completions has one reference and most rows in common, so it is kept."""
    if _last.tree != tree or len(_last.pool.texts) > MAX_POOL:
        _last.tree, _last.pool = tree, Pool()
    return _last.pool


@lru_cache(maxsize=1)
def _has_numba() -> bool:
    return find_spec("numba") is not None


def _compiled_distance(pool: Pool, left: Forest, right: Forest) -> int:
    from rewards.trees.zhang_shasha_compiled import forest_distance  # slow to import, and needs the `fast` extra

    problem = Problem(pool, left, right)
    nodes = len(problem.left.subtrees), len(problem.right.subtrees)
    if nodes[0] * nodes[1] + problem.subtree_cells() > MAX_CELLS:
        upper = _Alignment(pool).distance(left, right)
        if upper == _lower_bound(pool, left, right) or _is_too_large(problem, upper):
            return upper
    return forest_distance(problem)


def _plain_python_distance(pool: Pool, left: Forest, right: Forest) -> int:
    upper = _Alignment(pool).distance(left, right)
    if upper == _lower_bound(pool, left, right):
        return upper
    problem = Problem(pool, left, right)
    return upper if _is_too_large(problem, upper) else zhang_shasha.forest_distance(problem, upper)


def _is_too_large(problem: Problem, upper: int) -> bool:
    left, right = len(problem.left.subtrees), len(problem.right.subtrees)
    return problem.subtree_cells() + left * min(right, upper) > MAX_CELLS


def apted_distance(tree: Node, other: Node) -> int:
    """The same distance from the apted package: slow, for checking."""
    from apted import APTED, Config  # only needed here

    class UnitCost(Config):  # type: ignore[misc]
        def rename(self, node1: Node, node2: Node) -> int:
            return int(node1.label != node2.label)

        def children(self, node: Node) -> list[Node]:
            return list(node.children)

    return int(APTED(tree, other, UnitCost()).compute_edit_distance())


def _lower_bound(pool: Pool, left: Forest, right: Forest) -> int:
    """Edit distance of the label sequences, in pre- and postorder: a tree edit changes each by one edit."""
    preorder = ("".join(pool.texts[subtree] for subtree in forest) for forest in (left, right))
    postorder = (
        "".join(pool.label(subtree) for tree in forest for subtree in pool.postorder(tree)) for forest in (left, right)
    )
    return max(Levenshtein.distance(*preorder), Levenshtein.distance(*postorder))


class _Alignment:
    """Selkow's top-down distance, never below the tree distance: whole subtrees are inserted or deleted."""

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self.known: dict[tuple[int, int], int] = {}

    def distance(self, left: Forest, right: Forest) -> int:
        """Edit distance of two sequences of trees, a tree costing its size to insert or delete."""
        texts = self.pool.texts
        if not any(map(self.pool.children.__getitem__, left + right)):
            return Levenshtein.distance("".join([texts[s] for s in left]), "".join([texts[s] for s in right]))
        if len(left) * len(right) > MAX_PAIRS:
            return self._anchored(left, right)
        sizes = {subtree: len(texts[subtree]) for subtree in left + right}
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

    def _anchored(self, left: Forest, right: Forest) -> int:
        """The cost of pairing as many equal trees as possible, and what is between two such pairs in order."""
        cost = 0
        for edit in Levenshtein.editops("".join(map(chr, left)), "".join(map(chr, right))):
            if edit.tag == "replace":
                cost += self._replace(left[edit.src_pos], right[edit.dest_pos])
            elif edit.tag == "delete":
                cost += self.pool.size(left[edit.src_pos])
            else:
                cost += self.pool.size(right[edit.dest_pos])
        return cost

    def _replace(self, subtree: int, other: int) -> int:
        if subtree == other:
            return 0
        cost = self.known.get((subtree, other))
        if cost is None:
            pool = self.pool
            renamed = pool.label(subtree) != pool.label(other)
            cost = renamed + self.distance(pool.children[subtree], pool.children[other])
            self.known[subtree, other] = cost
        return cost
