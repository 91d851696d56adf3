"""Speed of the rewards, as ratios against apted and BeautifulSoup in the same run: python benchmarks/reward_speed.py

1. Structure-only TEDS of two parsed tables: this library compiled and in plain Python, against apted.
2. A whole table reward from two strings, against BeautifulSoup, lxml and apted (what the public scorers do).
3. A batch as training makes it (24 references, 28 completions each): CPU seconds for all of it.
4. Hostile completions of 34,000 characters: the slowest, and the memory it takes.

Times are CPU seconds of one core. apted needs half a minute for the largest pair, so it does each pair once.
"""

from __future__ import annotations

import random
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterable, Sequence
from importlib.util import find_spec

from bs4 import BeautifulSoup
from reward_samples import SPANS, Rows, random_table, render, training_batch

from rewards import RewardConfig, score, teds
from rewards.batch import score_batch
from rewards.html.scan import read_table
from rewards.html.table import parse_table
from rewards.markup import normalize_table
from rewards.trees import distance
from rewards.trees.distance import apted_distance
from rewards.trees.subtrees import Node
from rewards.types import PUBLISHED, ROBUST

SHAPES = ((20, 8), (40, 10), (80, 10))
PREDICTIONS = 8
LENGTH = 34_000


def cpu_seconds(call: Callable[[], object]) -> float:
    start = time.process_time()
    call()
    return time.process_time() - start


def changed(source: random.Random, rows: Rows) -> Rows:
    """The same table with a row lost, one repeated, two merged, a cell lost and a tenth of the spans wrong."""
    rows = [[(source.choice(SPANS) if source.random() < 0.1 else span, text) for span, text in row] for row in rows]
    del rows[source.randrange(len(rows))]
    rows[source.randrange(len(rows))].pop()
    rows.append(rows[source.randrange(len(rows))])
    place = source.randrange(len(rows) - 1)
    rows[place : place + 2] = [rows[place] + rows[place + 1]]
    return rows


def tree(markup: str) -> Node:
    table = read_table(markup)
    assert table is not None
    return table.tree


def seconds_each(trees: Sequence[Node], reference: Node, compiled: bool) -> float:
    """CPU seconds a pair, best of five rounds that each start from nothing."""
    rounds = []
    for _ in range(5):
        distance.tree_distance(Node("a"), Node("b"), compiled)  # so that nothing of the last round is known
        start = time.process_time()
        for prediction in trees:
            distance.tree_distance(prediction, reference, compiled)
        rounds.append(time.process_time() - start)
    return min(rounds) / len(trees)


def bench_distance(paths: Iterable[bool]) -> None:
    print("\nStructure-only TEDS of parsed tables, milliseconds a pair")
    print(f"{'table':>8} {'apted':>10} " + " ".join(f"{name(path):>22}" for path in paths))
    for rows, columns in SHAPES:
        source = random.Random(rows)
        table = random_table(source, rows, columns)
        reference = tree(render(table))
        trees = [tree(render(changed(source, table))) for _ in range(PREDICTIONS)]
        expected = apted_distance(trees[0], reference)
        slow = cpu_seconds(lambda pair=(trees[0], reference): apted_distance(*pair))
        cells = []
        for path in paths:
            assert distance.tree_distance(trees[0], reference, path) == expected
            fast = seconds_each(trees, reference, path)
            cells.append(f"{fast * 1e3:10.3f} ({slow / fast:7,.0f} x)")
        print(f"{rows:>4}x{columns:<3} {slow * 1e3:10,.1f} " + " ".join(f"{cell:>22}" for cell in cells))


def scorer_way(prediction: str, reference: str) -> float:
    """Both strings through BeautifulSoup and the scorer's normalisation, then apted on the structure."""
    trees = []
    for markup in (prediction, reference):
        table = parse_table(normalize_table(str(BeautifulSoup(markup, "html.parser"))))
        assert table is not None
        trees.append(table.tree)
    return 1.0 - apted_distance(*trees) / (max(map(teds.count_nodes, trees)) - 1)


def bench_strings() -> None:
    source = random.Random(1)
    table = random_table(source, 20, 8)
    reference, prediction = render(table), render(changed(source, table))
    slow = cpu_seconds(lambda: scorer_way(prediction, reference))
    score("table", "<table><tr><td>a</td></tr></table>", reference)  # reads the reference, as the first of a group does
    fast = cpu_seconds(lambda: score("table", prediction, reference))
    print(f"\nA 20x8 table from strings: {slow * 1e3:.0f} ms with BeautifulSoup and apted (structure alone)")
    print(f"  the whole reward: {fast * 1e3:.2f} ms ({slow / fast:,.0f} x)")


def bench_batch(paths: Iterable[bool]) -> None:
    batch = training_batch()
    print(f"\n{len(batch)} completions, {sum(len(sample.prediction) for sample in batch):,} characters")
    for profile, config in (("published", PUBLISHED), ("robust", ROBUST)):
        for path in paths:
            distance._has_numba = lambda path=path: path  # type: ignore[assignment]
            forget()
            seconds = cpu_seconds(lambda config=config: score_batch(*zip(*batch, strict=True), config=config))
            print(f"  {profile:>10}, {name(path):>12}: {seconds:.2f} s")


def forget() -> None:
    """Empties every cache of the library, so that nothing is known of a batch."""
    modules = [module for path, module in sys.modules.items() if path.startswith("rewards")]
    for cached in {value for module in modules for value in vars(module).values() if hasattr(value, "cache_clear")}:
        cached.cache_clear()


def bench_hostile() -> None:
    reference = render(random_table(random.Random(2), 40, 10))
    unit = {
        "looped rows": "<tr><td>a b</td></tr>",
        "one row of cells": "<td>x</td>",
        "nested tags": "<b>",
        "nested tables": "<table><tr><td>",
        "unterminated attributes": '<td style="',
        "different spans": "",
        r"\frac{": r"\frac{",
        "spaces": " ",
        "inline math": r"$\sqrt[\sqrt[2]{x}]{x}$",
    }
    spans = "".join(f"<tr><td colspan={number}>" for number in range(1500))
    for profile, config in (("published", PUBLISHED), ("robust", ROBUST)):
        print(f"\nHostile completions of {LENGTH:,} characters, {profile}, seconds and MB: table, text, formula")
        hostile_rows(unit, spans, reference, config)


def hostile_rows(unit: dict[str, str], spans: str, reference: str, config: RewardConfig) -> None:
    for label, piece in unit.items():
        body = piece * (LENGTH // len(piece)) if piece else spans
        cells = []
        for task, wanted in (("table", reference), ("text", reference), ("formula", "x^{2}")):
            markup = f"<table>{body}</table>" if task == "table" else body
            seconds = cpu_seconds(lambda sample=(task, markup, wanted): score(*sample, config))
            tracemalloc.start()
            score(task, markup + " ", wanted, config)
            cells.append(f"{seconds:6.3f} s {tracemalloc.get_traced_memory()[1] / 1e6:5.1f} MB")
            tracemalloc.stop()
        print(f"  {label:>24}  " + "   ".join(cells))


def name(compiled: bool) -> str:
    return "compiled" if compiled else "plain Python"


def main() -> None:
    paths = [True, False] if find_spec("numba") else [False]
    if len(paths) == 1:
        print("numba is not installed (the `fast` extra): plain Python only")
    else:
        seconds = cpu_seconds(lambda: distance.tree_distance(Node("a", (Node("b"),)), Node("b"), True))
        print(f"First compiled call: {seconds:.2f} s")
    bench_strings()
    bench_batch(paths)
    bench_hostile()
    bench_distance(paths)


if __name__ == "__main__":
    main()
