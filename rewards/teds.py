"""TEDS_s, the structure similarity of the table reward: a tree edit distance made relative.

TEDS (Zhong et al., 2020, PubTabNet) is `1 - distance / n`. Structure-only means that cells are compared by
their spans and not by their content.
"""

from __future__ import annotations

from functools import lru_cache

from rewards.trees.distance import Node, tree_distance


def count_nodes(tree: Node) -> int:
    """Number of nodes, the root included."""
    return 1 + sum([count_nodes(child) if child.children else 1 for child in tree.children])


# The completions of a group share a reference and often a structure.
@lru_cache(maxsize=32)
def structure_similarity(tree: Node, other: Node) -> float:
    """TEDS_s: `1 - distance / n`, n the larger number of nodes below the roots. At most 1, may be negative.

    The denominator counts the nodes that are compared. The official metric also counts the inline tags inside
    cells, which lets a prediction buy similarity with empty tags. At least one tree needs more than its root.
    """
    if tree == other:
        return 1.0
    return 1.0 - tree_distance(tree, other) / (max(count_nodes(tree), count_nodes(other)) - 1)
