"""Ordered labelled trees with equal subtrees shared, which is what makes tree distances of tables cheap.

A table has few distinct rows and very few distinct cells. A `Pool` gives equal subtrees one number, so that each
distinct pair is compared once, and a `Postorder` lays a forest out as the lists that the recurrence of Zhang and
Shasha (1989) runs over.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import cached_property
from itertools import chain
from typing import NamedTuple, cast


class Node(NamedTuple):
    """An ordered tree with labelled nodes."""

    label: Hashable
    children: tuple[Node, ...] = ()


Forest = tuple[int, ...]  # numbers of the trees


class Pool:
    """Hash-consed subtrees: equal subtrees have one number, larger than those of the trees below their roots.

    Attributes, each indexed by that number:
        texts: the labels in preorder, one character a node, so that sequences of labels compare as strings.
        children: numbers of the trees below the root.
    """

    def __init__(self) -> None:
        self._numbers: dict[Node, int] = {}
        self._characters: dict[Hashable, str] = {}
        self._postorders: dict[int, Forest] = {}
        self.texts: list[str] = []
        self.children: list[Forest] = []

    def intern(self, tree: Node) -> int:
        """The number of a tree. The recursion is as deep as the tree."""
        found = self._numbers.get(tree)
        if found is not None:
            return found
        known = tuple(map(self._numbers.get, tree.children))  # without a call for each that is known
        children = tuple(map(self.intern, tree.children)) if None in known else cast(Forest, known)
        label = self._characters.setdefault(tree.label, chr(len(self._characters)))
        number = self._numbers[tree] = len(self.texts)
        self.texts.append(label + "".join([self.texts[child] for child in children]) if children else label)
        self.children.append(children)
        return number

    def label(self, subtree: int) -> str:
        """The label of a root, as one character."""
        return self.texts[subtree][0]

    def size(self, subtree: int) -> int:
        """The number of nodes."""
        return len(self.texts[subtree])

    def is_flat(self, subtree: int) -> bool:
        """True for a leaf and for a root with nothing but leaves below."""
        return len(self.texts[subtree]) == len(self.children[subtree]) + 1

    def postorder(self, subtree: int) -> Forest:
        """All subtrees, each root after what is below it."""
        children = self.children[subtree]
        if self.is_flat(subtree):
            return (*children, subtree)
        found = self._postorders.get(subtree)
        if found is None:
            found = self._postorders[subtree] = (*chain.from_iterable(map(self.postorder, children)), subtree)
        return found

    def leaf_distance(self, leaf: int, other: int) -> int:
        """The distance of a leaf and any tree: all but one node are inserted, the best one is matched."""
        text = self.texts[other]
        return len(text) - (self.texts[leaf] in text)


class Postorder:
    """A forest in postorder, for Zhang and Shasha's recurrence.

    Attributes:
        subtrees: the number in the pool of the subtree that ends at each index.
        starts: the index of the leftmost leaf below each node, which is where its subtree begins.
        keyroots: ascending indices of the last node with a given leftmost leaf; of equal subtrees, of the first.
    """

    def __init__(self, pool: Pool, forest: Forest) -> None:
        texts = pool.texts
        self.subtrees = list(chain.from_iterable(map(pool.postorder, forest)))
        self.starts = [index - len(texts[subtree]) + 1 for index, subtree in enumerate(self.subtrees)]

    @cached_property
    def keyroots(self) -> list[int]:
        last_with_start = {start: index for index, start in enumerate(self.starts)}
        distinct = {self.subtrees[index]: index for index in reversed(last_with_start.values())}
        return sorted(distinct.values())

    def keyroot_size(self, wanted: list[bool]) -> int:
        """Total number of nodes below the keyroots that are wanted, one flag a keyroot."""
        pairs = zip(self.keyroots, wanted, strict=True)
        return sum(keyroot - self.starts[keyroot] + 1 for keyroot, use in pairs if use)


def strip_equal(
    left: Forest, right: Forest, label: Callable[[int], Hashable], children: Sequence[Forest]
) -> tuple[Forest, Forest]:
    """Both forests without what an optimal mapping can map to itself.

    That is equal leading and trailing trees, and the roots of two single trees with equal labels, after which their
    children are stripped in turn. It holds for insertions and deletions of cost 1 whatever renaming costs: giving up
    any other use of their nodes costs at most as many insertions as it saves.

    Args:
        left, right: numbers of the trees; equal trees have equal numbers.
        label: the label of the root of a tree.
        children: by number, the trees below a root.
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
        if len(left) != 1 or len(right) != 1 or label(left[0]) != label(right[0]):
            return left, right
        left, right = children[left[0]], children[right[0]]


class Problem:
    """Two forests whose distance is wanted, and which of their subtrees are plain.

    A plain subtree is a leaf, or a row: a root above leaves, with the one label that most rows have. The distances of
    plain subtrees have closed forms, so the recurrence only needs to run where one of two keyroots is not plain.
    """

    def __init__(self, pool: Pool, left: Forest, right: Forest) -> None:
        self.pool = pool
        self.left, self.right = Postorder(pool, left), Postorder(pool, right)
        subtrees = chain(self.left.subtrees, self.right.subtrees)
        rows = (subtree for subtree in subtrees if pool.children[subtree] and pool.is_flat(subtree))
        self.row_label = next((pool.label(row) for row in rows), "")
        self.is_plain_throughout = all(map(self.is_plain, {*left, *right}))

    def is_plain(self, subtree: int) -> bool:
        pool = self.pool
        return not pool.children[subtree] or (pool.is_flat(subtree) and pool.label(subtree) == self.row_label)

    def plain_keyroots(self) -> tuple[list[bool], list[bool]]:
        """Which keyroots of the left and of the right forest are plain."""
        left, right = ([self.is_plain(side.subtrees[i]) for i in side.keyroots] for side in (self.left, self.right))
        return left, right

    def subtree_cells(self) -> int:
        """Cells of the dynamic programmes that find the distances of the subtrees."""
        if self.is_plain_throughout:
            return 0
        cells = []
        for order, plain in zip((self.left, self.right), self.plain_keyroots(), strict=True):
            cells.append((order.keyroot_size(plain), order.keyroot_size([not flag for flag in plain])))
        (plain_left, other_left), (plain_right, other_right) = cells
        return other_left * (plain_right + other_right) + plain_left * other_right
