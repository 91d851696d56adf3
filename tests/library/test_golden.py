"""Golden cases: values derived by hand, each with the reason, and recomputed with the slow tree distance."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from rewards import score
from rewards.gate import degeneration_gate
from rewards.html_table import parse_table
from rewards.markup import normalize_table
from rewards.tree_distance import apted_distance

GOLDEN = Path(__file__).parents[1] / "golden"
COMMON = {"similarity", "gate", "rho8", "longest_run"}
KEYS = {
    "text": COMMON | {"ned"},
    "formula": COMMON | {"violations", "left_right", "braces", "environments", "dollars"},
    "table": COMMON
    | {
        "teds_s",
        "s_cell",
        "p_row",
        "p_loop",
        "bonus",
        "rows",
        "ref_rows",
        "cols",
        "ref_cols",
        "closed",
        "parsed",
    },
}


def load(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (GOLDEN / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()]


def cases(*names: str) -> list[Any]:
    return [
        pytest.param(name, case, id=f"{name}-{number}") for name in names for number, case in enumerate(load(name), 1)
    ]


@pytest.mark.parametrize(("task", "case"), cases("text", "table", "formula"))
def test_value_and_parts_are_the_derived_ones(task: str, case: dict[str, Any]) -> None:
    scored = score(task, case["prediction"], case["reference"])
    assert set(scored.parts) == KEYS[task]
    assert scored.value == pytest.approx(float(Fraction(case["value"])), abs=1e-12), case["why"]
    for name, expected in case["parts"].items():
        part = scored.parts[name]
        if isinstance(expected, str):
            assert part == pytest.approx(float(Fraction(expected)), abs=1e-12), (name, case["why"])
        else:
            assert part == expected and type(part) is type(expected), (name, case["why"])


@pytest.mark.parametrize(("name", "case"), cases("gate"))
def test_gate_is_the_derived_one(name: str, case: dict[str, Any]) -> None:
    gate = degeneration_gate(case["prediction"])
    assert gate.gate == pytest.approx(float(Fraction(case["gate"])), abs=1e-12), case["why"]
    assert gate.rho8 == pytest.approx(float(Fraction(case["rho8"])), abs=1e-12), case["why"]
    assert gate.longest_run == case["longest_run"], case["why"]


@pytest.mark.parametrize(("name", "case"), cases("table"))
def test_table_value_follows_from_the_formula_and_the_slow_reference(name: str, case: dict[str, Any]) -> None:
    scored = score("table", case["prediction"], case["reference"])
    parts = scored.parts
    if not parts["parsed"]:
        return
    table = parse_table(normalize_table(case["prediction"]))
    wanted = parse_table(normalize_table(case["reference"]))
    assert table is not None and wanted is not None
    teds_s = 1 - apted_distance(table.tree, wanted.tree) / max(table.nodes, wanted.nodes)
    assert parts["teds_s"] == pytest.approx(teds_s, abs=1e-12)
    r = (0.45 * teds_s + 0.55 * parts["s_cell"]) * (1 - parts["p_row"]) * (1 - parts["p_loop"])
    r = min(1.0, max(0.0, r))
    r += parts["bonus"] * (1 - r)
    assert scored.value == pytest.approx(r * parts["gate"], abs=1e-12)
