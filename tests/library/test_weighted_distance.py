"""The tree distance with fractional renamings against the recurrence that defines it.

apted is no reference here: version 1.0.3 misses the smallest distance in about one of 150 random pairs in which inner
nodes are renamed for fractions of 1. On tables, where only leaves are, `test_metrics.py` compares with it.
"""

from __future__ import annotations

from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rewards.teds import count_nodes
from rewards.trees import weighted as module
from rewards.trees.distance import Node
from rewards.trees.weighted import weighted_tree_distance

SAME = 1e-9  # sums of fractions in another order

labels = st.sampled_from("abcdef")
trees = st.recursive(
    labels.map(Node), lambda below: st.builds(Node, labels, st.lists(below, max_size=4).map(tuple)), max_leaves=14
)


def rename_letters(label: str, other: str) -> float:
    """Fractions that break the triangle inequality, as those of contents do: a to c costs more than a to b to c."""
    return [0.0, 0.2, 0.9, 0.4, 1.0, 0.55][abs(ord(label) - ord(other))]


def plain_distance(tree: Node, other: Node) -> float:
    @cache
    def distance(left: tuple[Node, ...], right: tuple[Node, ...]) -> float:
        if not left or not right:
            return sum(map(count_nodes, left + right))
        one, two = left[-1], right[-1]
        return min(
            1 + distance(left[:-1] + one.children, right),
            1 + distance(left, right[:-1] + two.children),
            rename_letters(one.label, two.label)
            + distance(left[:-1], right[:-1])
            + distance(one.children, two.children),
        )

    return distance((tree,), (other,))


@settings(deadline=None, max_examples=100)
@given(trees, trees)
def test_random_trees_have_the_distance_of_the_definition(tree: Node, other: Node) -> None:
    found = weighted_tree_distance(tree, other, rename_letters)
    assert found == pytest.approx(plain_distance(tree, other), abs=SAME)
    assert found == pytest.approx(weighted_tree_distance(other, tree, rename_letters), abs=SAME)


@settings(deadline=None, max_examples=100)
@given(trees, trees, st.sampled_from([1.0, 2.0]))
def test_a_narrow_first_band_is_widened_until_the_distance_is_exact(tree: Node, other: Node, limit: float) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_FIRST_LIMIT", limit)
        found = weighted_tree_distance(tree, other, rename_letters)
    assert found == pytest.approx(plain_distance(tree, other), abs=SAME)


@settings(deadline=None, max_examples=50)
@given(trees, trees, st.integers(0, 60))
def test_beyond_the_limit_the_distance_is_never_too_small(tree: Node, other: Node, limit: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "MAX_CELLS", limit)
        found = weighted_tree_distance(tree, other, rename_letters)
    assert found >= plain_distance(tree, other) - SAME
