"""Normal forms, metrics and tree distances against values of the official scorers, kept outside of this repository.

They are those of the public OmniDocBench v1.5 and PubTabNet code, run on hand-made pairs and on predictions of real
models. Without the files the tests are skipped.
"""

from __future__ import annotations

import json
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from rewards.html.table import parse_table
from rewards.markup import normalize_formula, normalize_table, normalize_text
from rewards.metrics import (
    formula_edit_distance,
    table_edit_distance,
    teds,
    teds_pubtabnet,
    text_edit_distance,
)
from rewards.metrics.tables import read_table
from rewards.teds import count_nodes, structure_similarity
from rewards.trees.distance import apted_distance, tree_distance

DATA = Path(__file__).parents[3] / "shared" / "data" / "oracle"

pytestmark = pytest.mark.skipif(not DATA.is_dir(), reason="the values of the official scorers are not here")

NORMALIZE = {"text": normalize_text, "tables": normalize_table, "formulas": normalize_formula}
# Every pair whose normal form is not the official one: kind of file, id -> reason.
DIFFERENCES: dict[str, dict[str, str]] = {"text": {}, "tables": {}, "formulas": {}}


@cache
def pairs(kind: str) -> list[dict]:
    lines = (DATA / f"{kind}.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def official(kind: str, name: str) -> dict[str, float]:
    """An official value for each pair that has one."""
    found = {pair["id"]: pair["values"][name] for pair in pairs(kind)}
    assert any(value is not None for value in found.values())
    return {identity: value for identity, value in found.items() if value is not None}


def own(kind: str, metric) -> dict[str, float]:
    """The value of a metric for each pair that has one."""
    found = {pair["id"]: metric(pair["pred"], pair["ref"]) for pair in pairs(kind)}
    return {identity: value for identity, value in found.items() if value is not None}


@pytest.mark.parametrize("kind", NORMALIZE)
def test_normal_forms_are_the_official_ones(kind: str) -> None:
    normalize = NORMALIZE[kind]
    different = {
        pair["id"]
        for pair in pairs(kind)
        for side in ("pred", "ref")
        if normalize(pair[side]) != pair["values"][f"norm_{side}"]
    }
    assert different == DIFFERENCES[kind].keys()
    assert len(different) <= 0.03 * len(pairs(kind))


def test_normal_texts_are_those_of_the_official_converter_version() -> None:
    """The benchmark pins another version of the LaTeX converter than the one that is installed here."""
    for pair in pairs("text"):
        assert normalize_text(pair["pred"]) == pair["values"]["norm_pred_pylatexenc3"]
        assert normalize_text(pair["ref"]) == pair["values"]["norm_ref_pylatexenc3"]


@pytest.mark.parametrize(
    ("kind", "name", "metric"),
    [
        ("text", "edit_distance", lambda p, r: text_edit_distance(p, r).edits),
        ("text", "upper_len", lambda p, r: text_edit_distance(p, r).length),
        ("text", "ned_norm", lambda p, r: text_edit_distance(p, r).ned),
        ("text", "ned_norm_pylatexenc3", lambda p, r: text_edit_distance(p, r).ned),
        ("formulas", "ned_norm", lambda p, r: (found := formula_edit_distance(p, r)) and found.ned),
        ("formulas", "edit_distance", lambda p, r: found.edits if (found := formula_edit_distance(p, r)) else 0),
        ("tables", "edit_dist_omnidocbench", lambda p, r: table_edit_distance(p, r).ned),
        ("tables", "teds_omnidocbench", teds),
        ("tables", "teds_struct_omnidocbench", lambda p, r: teds(p, r, structure_only=True)),
        ("tables", "teds_pubtabnet", teds_pubtabnet),
        ("tables", "teds_struct_pubtabnet", lambda p, r: teds_pubtabnet(p, r, structure_only=True)),
    ],
)
def test_every_metric_is_the_official_one(kind: str, name: str, metric) -> None:
    expected, found = official(kind, name), own(kind, metric)
    assert found.keys() == expected.keys()
    assert {identity: value for identity, value in found.items() if abs(value - expected[identity]) > 1e-9} == {}


def test_the_structure_of_the_reward_with_the_official_denominator_is_the_official_teds() -> None:
    """The reward's own tree, divided by the count that the metric uses."""
    different = []
    for pair in pairs("tables"):
        normal = [normalize_table(pair[side]) for side in ("pred", "ref")]
        tables = [parse_table(form) for form in normal]
        if None in tables:
            continue  # no cell: 0.15 times a similarity of strings is the reward, not a TEDS
        elements = max(read_table(form).elements for form in normal)
        similarity = 1.0 - tree_distance(tables[0].tree, tables[1].tree) / elements
        if abs(similarity - pair["values"]["teds_struct_omnidocbench"]) > 1e-9:
            different.append(pair["id"])
    assert different == []


def test_the_structure_of_the_reward_differs_from_the_metric_only_where_cells_hold_tags() -> None:
    for pair in pairs("tables"):
        tables = [parse_table(normalize_table(pair[side])) for side in ("pred", "ref")]
        if None in tables:
            continue
        found = structure_similarity(tables[0].tree, tables[1].tree)
        metric = pair["values"]["teds_struct_omnidocbench"]
        (elements, nodes), (other_elements, other_nodes) = pair["values"]["nodes_pred"], pair["values"]["nodes_ref"]
        assert found <= metric + 1e-9
        if max(elements, other_elements) == max(nodes, other_nodes) - 1:
            assert found == pytest.approx(metric, abs=1e-9)


def test_elements_and_nodes_are_counted_as_the_official_code_does() -> None:
    checked = Counter()
    for pair in pairs("tables"):
        for side in ("pred", "ref"):
            table, expected = read_table(normalize_table(pair[side])), pair["values"][f"nodes_{side}"]
            assert (table and [table.elements, count_nodes(table.tree)]) == expected
            checked[expected is not None] += 1
    assert checked[True] > checked[False]


def test_the_fast_tree_distance_is_that_of_apted_on_every_pair() -> None:
    distances = Counter()
    for pair in pairs("tables"):
        tables = [read_table(normalize_table(pair[side])) for side in ("pred", "ref")]
        if None in tables:
            continue
        found = tree_distance(tables[0].tree, tables[1].tree)
        assert found == apted_distance(tables[0].tree, tables[1].tree), pair["id"]
        distances[found > 0] += 1
    assert distances[True] > 0
