"""The list adapter: one reward for each prediction, one task for all or a task for each."""

from __future__ import annotations

import inspect

import pytest

from rewards import RewardConfig
from rewards.adapters.lists import compute_rewards

TABLE = "<table><tr><td>a</td></tr></table>"


def test_a_task_for_each_sample_or_one_for_all() -> None:
    assert compute_rewards(["text", "table"], ["a", TABLE], ["a", TABLE]) == [1.0, 1.0]
    assert compute_rewards("text", ["abcd", "abcx", "x"], ["abcd"] * 3) == [1.0, 0.75, 0.0]
    assert compute_rewards("text", [], []) == []


def test_the_configuration_is_used() -> None:
    prediction, reference = "<p>a</p>", TABLE
    published = compute_rewards("table", [prediction], [reference])
    assert compute_rewards("table", [prediction], [reference], RewardConfig(unparsed_weight=0.3)) == [2 * published[0]]


def test_numpy_columns() -> None:
    numpy = pytest.importorskip("numpy")
    rewards = compute_rewards(numpy.array(["text", "text"]), numpy.array(["a", "b"]), numpy.array(["a", "a"]))
    assert rewards == [1.0, 0.0]
    assert all(type(reward) is float for reward in rewards)


def test_what_is_wrong_is_named() -> None:
    with pytest.raises(TypeError, match=r"^sample 1: prediction must be a str, not NoneType$"):
        compute_rewards("text", ["a", None], ["a", "a"])  # type: ignore[list-item]
    with pytest.raises(TypeError, match=r"^predictions must be a sequence"):
        compute_rewards("text", "a", ["a"])
    with pytest.raises(ValueError, match=r"differ in length: 2, 2, 1$"):
        compute_rewards("text", ["a", "a"], ["a"])
    with pytest.raises(ValueError, match=r"^sample 0: task must be one of"):
        compute_rewards("chart", ["a"], ["a"])


def test_the_signature() -> None:
    assert list(inspect.signature(compute_rewards).parameters) == ["task", "predictions", "references", "config"]
