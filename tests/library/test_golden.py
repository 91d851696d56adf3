"""Golden cases: values derived by hand, each with the reason, and all of them recomputed by the slow reference.

A row holds a prediction, its reference, the value and some of its parts, fractions as strings; without `profile` it is
about the published one. A row of the gate holds the gate and its terms, and may do without a reference.
"""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import slow_reference

from rewards import RewardConfig, score
from rewards.gate import degeneration_gate

GOLDEN = Path(__file__).parents[1] / "golden"
TASKS = ("text", "table", "formula")
COMMON = {"similarity", "gate", "rho8", "longest_run"}
CHECKS = {"left_right", "braces", "environments", "dollars"}
ROBUST_CHECKS = CHECKS | {"trailing_backslash", "ampersand", "arguments", "double_scripts", "display"}
TABLE = {"teds_s", "s_cell", "p_row", "p_loop", "bonus", "rows", "ref_rows", "cols", "ref_cols", "closed", "parsed"}
KEYS = {
    ("text", "published"): COMMON | {"ned"},
    ("text", "robust"): COMMON | {"ned"},
    ("formula", "published"): COMMON | {"violations"} | CHECKS,
    ("formula", "robust"): COMMON | {"violations"} | ROBUST_CHECKS,
    ("table", "published"): COMMON | TABLE,
    ("table", "robust"): COMMON | TABLE,
}


def load(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (GOLDEN / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()]


def cases(*names: str) -> list[Any]:
    return [
        pytest.param(name, case, id=f"{name}-{number}") for name in names for number, case in enumerate(load(name), 1)
    ]


def configuration(case: dict[str, Any]) -> RewardConfig:
    return RewardConfig(profile=case.get("profile", "published"))


def number(value: Any) -> Any:
    """A number of a row, for comparison: fractions are strings, whole numbers and truth values are exact."""
    return pytest.approx(float(Fraction(value)), abs=1e-12) if isinstance(value, str) else value


@pytest.mark.parametrize("name", [*TASKS, "gate"])
def test_there_are_enough_cases_of_each_profile(name: str) -> None:
    profiles = [case.get("profile", "published") for case in load(name)]
    assert len(profiles) >= 40
    assert min(profiles.count("published"), profiles.count("robust")) >= 10
    assert all(case["why"] for case in load(name))


@pytest.mark.parametrize(("task", "case"), cases(*TASKS))
def test_value_and_parts_are_the_derived_ones(task: str, case: dict[str, Any]) -> None:
    config = configuration(case)
    scored = score(task, case["prediction"], case["reference"], config)
    assert set(scored.parts) == KEYS[task, config.profile]
    assert scored.value == number(case["value"]), case["why"]
    for name, expected in case["parts"].items():
        part = scored.parts[name]
        assert part == number(expected), (name, case["why"])
        assert isinstance(expected, str) or type(part) is type(expected), name


@pytest.mark.parametrize(("task", "case"), cases(*TASKS))
def test_the_slow_reference_gives_the_same(task: str, case: dict[str, Any]) -> None:
    config = configuration(case)
    value, parts = slow_reference.score(task, case["prediction"], case["reference"], config)
    assert value == number(case["value"])
    assert parts == pytest.approx(score(task, case["prediction"], case["reference"], config).parts, abs=1e-12)
    for name, expected in case["parts"].items():
        assert parts[name] == number(expected), name


@pytest.mark.parametrize(("name", "case"), cases("gate"))
def test_gate_is_the_derived_one(name: str, case: dict[str, Any]) -> None:
    prediction, reference, config = case["prediction"], case.get("reference", ""), configuration(case)
    gate = degeneration_gate(prediction, reference, config)
    assert gate.gate == number(case["gate"]), case["why"]
    assert gate.rho8 == number(case["rho8"]), case["why"]
    assert gate.longest_run == case["longest_run"], case["why"]
    assert slow_reference.gate(prediction, reference, config) == number(case["gate"])
    assert slow_reference.rho8(prediction, config) == number(case["rho8"])
    assert slow_reference.longest_run(prediction) == case["longest_run"]
