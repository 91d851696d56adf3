"""The ms-swift adapter, looked up, constructed and called as ms-swift 4.6 does it."""

from __future__ import annotations

import inspect
import math
import pickle
import sys
from functools import partial
from types import SimpleNamespace

import pytest

from rewards import RewardConfig, score
from rewards.adapters.swift import OCRReward
from rewards.types import ROBUST

TABLE = "<table><tr><td>a</td><td>b</td></tr></table>"
ROWS = [
    {"task": "text", "reference": "Hello", "prompt_id": "p0"},
    {"task": "table", "reference": TABLE, "prompt_id": "p1", "solution": "of another reward"},
    {"task": "formula", "reference": "x^{2}", "prompt_id": "p2"},
]
COMPLETIONS = ["Helo", TABLE.replace("b", "c"), "x^2"]


def call_as_ms_swift(orms: dict, name: str, completions: list[str], rows: list[dict]) -> tuple[str, list[float]]:
    """The name and the rewards that its trainer gets for a registered reward."""
    function = orms[name](args=SimpleNamespace(reward_funcs=[name]))
    reported = function.__name__ if inspect.isfunction(function) else function.__class__.__name__
    assert not inspect.iscoroutinefunction(function.__call__)  # else it would be awaited
    keys = list(dict.fromkeys(key for row in rows for key in row))
    columns = {key: [row.get(key) for row in rows] for key in keys}  # None where a row lacks a column
    output = function(completions, trainer_state=SimpleNamespace(global_step=1), **columns)
    return reported, [math.nan if reward is None else float(reward) for reward in output]


def test_registered_by_name() -> None:
    name, rewards = call_as_ms_swift({"ocr_reward": OCRReward}, "ocr_reward", COMPLETIONS, ROWS)
    assert name == "OCRReward"
    assert rewards == [
        score(row["task"], completion, row["reference"]).value
        for completion, row in zip(COMPLETIONS, ROWS, strict=True)
    ]


def test_registered_with_a_configuration() -> None:
    config = RewardConfig(profile="robust")
    name, rewards = call_as_ms_swift({"robust": partial(OCRReward, config=config)}, "robust", COMPLETIONS, ROWS)
    assert name == "OCRReward"
    assert rewards == [
        score(row["task"], completion, row["reference"], ROBUST).value
        for completion, row in zip(COMPLETIONS, ROWS, strict=True)
    ]


def test_constructed_without_arguments_or_with_unknown_ones() -> None:
    assert OCRReward().config == RewardConfig()
    assert OCRReward(None, store=object()).config == RewardConfig()


def test_pickled_with_its_configuration() -> None:
    reward = pickle.loads(pickle.dumps(OCRReward(config=RewardConfig(teds_weight=0.0, shape_bonus=0.0))))
    assert reward([TABLE], task=["table"], reference=[TABLE]) == [pytest.approx(0.55)]


def test_rows_without_the_columns_are_named() -> None:
    with pytest.raises(TypeError, match=r"^sample 1: task must be a str, not NoneType$"):
        call_as_ms_swift({"ocr": OCRReward}, "ocr", ["a", "a"], [ROWS[0], {"solution": "a"}])
    with pytest.raises(TypeError, match="reference"):
        call_as_ms_swift({"ocr": OCRReward}, "ocr", ["a"], [{"task": "text"}])


def test_the_library_itself_is_not_imported() -> None:
    assert "swift" not in sys.modules
