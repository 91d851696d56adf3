"""The fast tree distance against apted, on tables, on random trees, and with its bounds switched off."""

from __future__ import annotations

import random
import time
from functools import partial
from importlib.util import find_spec

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rewards.teds import count_nodes, structure_similarity
from rewards.trees import distance as module
from rewards.trees import zhang_shasha
from rewards.trees.distance import Node, apted_distance, tree_distance
from rewards.trees.subtrees import Pool, Problem

plain_python = partial(tree_distance, compiled=False)
compiled = partial(tree_distance, compiled=True)
needs_numba = pytest.mark.skipif(find_spec("numba") is None, reason="the `fast` extra is not installed")
FAST = [pytest.param(plain_python, id="python"), pytest.param(compiled, id="compiled", marks=needs_numba)]
DISTANCES = [*FAST, pytest.param(apted_distance, id="apted")]

trees = st.recursive(
    st.sampled_from("abc").map(Node),
    lambda below: st.builds(Node, st.sampled_from("abc"), st.lists(below, max_size=4).map(tuple)),
    max_leaves=12,
)
cells = st.sampled_from([Node(("td", 1, 1)), Node(("td", 1, 1)), Node(("td", 2, 1)), Node(("td", 1, 2))])
rows = st.lists(cells, max_size=5).map(lambda row: Node("tr", tuple(row)))
sections = st.one_of(rows, rows, rows, cells, st.lists(rows, max_size=3).map(lambda below: Node("tfoot", tuple(below))))
tables = st.lists(sections, max_size=7).map(lambda below: Node("table", tuple(below)))


def grid(*widths: int, colspan: int = 1) -> Node:
    row = [Node("tr", (Node(("td", colspan, 1)),) * width) for width in widths]
    return Node("table", tuple(row))


@pytest.mark.parametrize("distance", DISTANCES)
@pytest.mark.parametrize(
    ("tree", "other", "expected"),
    [
        (grid(2, 2), grid(2, 2), 0),
        (grid(2, 2), grid(2), 3),  # a row of two cells is deleted
        (grid(2, 2), grid(2, 3), 1),  # a cell is inserted
        (grid(2, 2), grid(2, 2, colspan=2), 4),  # every cell is renamed
        (grid(2), Node("table", (Node(("td", 1, 1)),) * 2), 1),  # a row is deleted and its cells are not
        (grid(2, 2), grid(4), 3),
        (grid(), grid(3, 3), 8),
        (Node("a"), Node("b"), 1),
        (Node("a", (Node("b"),)), Node("b"), 1),  # the root itself is deleted
        (Node("a", (Node("b", (Node("c"),)),)), Node("a", (Node("b"), Node("c"))), 2),
    ],
)
def test_known_distances(distance, tree: Node, other: Node, expected: int) -> None:
    assert distance(tree, other) == expected
    assert distance(other, tree) == expected


@pytest.mark.parametrize("distance", FAST)
@settings(deadline=None, max_examples=150)
@given(tree=trees, other=trees)
def test_random_trees_have_the_distance_of_apted(distance, tree: Node, other: Node) -> None:
    assert distance(tree, other) == apted_distance(tree, other)


@pytest.mark.parametrize("distance", FAST)
@settings(deadline=None, max_examples=150)
@given(tree=tables, other=tables)
def test_random_tables_have_the_distance_of_apted(distance, tree: Node, other: Node) -> None:
    assert distance(tree, other) == apted_distance(tree, other)


@settings(deadline=None, max_examples=100)
@given(trees | tables, trees | tables)
def test_bounds_enclose_the_distance_and_the_recurrence_alone_finds_it(tree: Node, other: Node) -> None:
    pool = Pool()
    left, right = (pool.intern(tree),), (pool.intern(other),)
    expected = apted_distance(tree, other)
    upper = module._Alignment(pool).distance(left, right)
    assert module._lower_bound(pool, left, right) <= expected <= upper
    for bound in (expected, upper):  # the tightest band, and the one that is used
        assert zhang_shasha.forest_distance(Problem(pool, left, right), bound) == expected


@needs_numba
@settings(deadline=None, max_examples=50)
@given(tables, tables)
def test_above_the_cell_limit_both_paths_give_the_same_distance_and_never_too_small_a_one(a: Node, b: Node) -> None:
    exact = tree_distance(a, b)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "MAX_CELLS", 0)
        assert plain_python(a, b) == compiled(a, b) >= exact
        patch.setattr(module, "MAX_PAIRS", 0)
        assert plain_python(a, b) == compiled(a, b) >= exact


def test_similarity_divides_by_the_larger_number_of_nodes_below_the_root() -> None:
    assert count_nodes(grid(2, 2)) == 7
    assert structure_similarity(grid(2), grid(2, 2)) == 1 - 3 / 6
    assert structure_similarity(grid(2, 2), grid(2, 2)) == 1.0


def test_similarity_may_be_negative() -> None:
    row = Node("tr", tuple(Node(("td", span, 1)) for span in range(2, 6)))
    chain = Node("b", (Node("b", (Node("b", (Node("b", (Node("b"),)),)),)),))
    assert structure_similarity(Node("table", (row,)), Node("table", (chain,))) < 0


def test_thousands_of_different_rows_take_well_under_a_second() -> None:
    widths = random.Random(0)
    tables = [grid(*[widths.randint(1, 2) for _ in range(2500)]) for _ in range(2)]
    assert _seconds(*tables) < 1.5  # about 0.1 s


def test_a_table_of_forty_by_ten_takes_well_under_100_ms() -> None:
    reference = grid(*[10] * 40)
    prediction = grid(*[10] * 5, 9, *[10] * 20, 11, *[10] * 9, 3, 3)
    best = min(_seconds(reference, prediction) for _ in range(5))
    assert best < 0.1


def _seconds(tree: Node, other: Node) -> float:
    start = time.process_time()
    tree_distance(tree, other)
    return time.process_time() - start
