"""The verl adapter, loaded and called as verl 0.9 does it."""

from __future__ import annotations

import importlib
import inspect
import json
import pickle
from functools import partial

import pytest

from rewards import RewardConfig, score
from rewards.adapters.verl import compute_score

TABLE = "<table><tr><td>a</td><td>b</td></tr></table>"
SAMPLES = [("text", "Helo", "Hello"), ("table", TABLE, TABLE), ("formula", "x^2", "x^3")]


def _merged(function, fixed: dict, **given):
    return function(**{**given, **fixed})


def load_as_verl(path: str, name: str, reward_kwargs: dict):
    """What verl makes of `custom_reward_function`; `reward_kwargs` win over what the reward manager passes."""
    function = getattr(importlib.import_module(path.removeprefix("pkg://")), name)
    assert not inspect.iscoroutinefunction(function)
    return partial(_merged, function, reward_kwargs)


def call_as_verl(function, sample: tuple[str, str, str], **more) -> dict:
    """One call of the naive reward manager, which adds two entries of its own to `extra_info`."""
    task, completion, reference = sample
    extra_info = {"task": task, "index": 7, "num_turns": None, "rollout_reward_scores": {}}
    return function(
        data_source="bench/pages", solution_str=completion, ground_truth=reference, extra_info=extra_info, **more
    )


def test_score_and_parts() -> None:
    function = load_as_verl("pkg://rewards.adapters.verl", "compute_score", {})
    for sample in SAMPLES:
        found, expected = call_as_verl(function, sample), score(*sample)
        assert found["score"] == expected.value
        assert {name: found[name] for name in expected.parts} == expected.parts
        assert all(value is None or type(value) is float for value in found.values())


def test_a_batch_of_all_tasks_becomes_arrays_and_json() -> None:
    numpy = pytest.importorskip("numpy")
    infos = [call_as_verl(compute_score, sample) for sample in SAMPLES]
    assert infos[0].keys() == infos[1].keys() == infos[2].keys()
    arrays = {name: numpy.array([info[name] for info in infos]) for name in infos[0]}
    assert arrays["score"].dtype == float
    assert arrays["teds_s"].tolist() == [None, 1.0, None]
    assert [numpy.mean([value for value in arrays["ned"] if value is not None])] == [pytest.approx(0.2)]
    assert json.loads(json.dumps(infos, allow_nan=False)) == infos


def test_reward_kwargs_set_the_configuration() -> None:
    sample = ("formula", r"\left(x", r"\left(x\right)")
    robust = load_as_verl("pkg://rewards.adapters.verl", "compute_score", {"profile": "robust"})
    halved = load_as_verl("pkg://rewards.adapters.verl", "compute_score", {"violation_factor": 0.5})
    assert call_as_verl(robust, sample)["score"] == score(*sample, RewardConfig(profile="robust")).value
    assert call_as_verl(halved, sample)["score"] == score(*sample, RewardConfig(violation_factor=0.5)).value


def test_the_reward_model_arguments_are_ignored_and_misspellings_are_not() -> None:
    with_model = call_as_verl(compute_score, SAMPLES[0], reward_router_address="0:1", reward_model_tokenizer=object())
    assert with_model == call_as_verl(compute_score, SAMPLES[0])
    with pytest.raises(TypeError, match="profil"):
        call_as_verl(compute_score, SAMPLES[0], profil="robust")


@pytest.mark.parametrize(
    ("data_source", "extra_info"),
    [
        ("table", None),
        ("table", {}),
        ("ocr/table", {"index": 1}),
        ("PubTabNet-Table", {"task": None}),  # a column that other rows have
        ("pages_v2.table", None),
        ("text", {"task": "table"}),  # the column wins
    ],
)
def test_the_task_comes_from_extra_info_or_from_the_last_word(data_source: str, extra_info: dict | None) -> None:
    assert compute_score(data_source, TABLE, TABLE, extra_info)["teds_s"] == 1.0


@pytest.mark.parametrize(
    ("data_source", "extra_info"), [("context", None), ("table/v2", None), ("", None), ("table", {"task": "chart"})]
)
def test_no_task_is_an_error_that_shows_the_data_source(data_source: str, extra_info: dict | None) -> None:
    with pytest.raises(ValueError, match=f"no task for data_source '{data_source}'"):
        compute_score(data_source, "a", "a", extra_info)


def test_wrong_arguments() -> None:
    with pytest.raises(TypeError, match=r"^reference must be a str, not NoneType"):
        compute_score("text", "a", None)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"^prediction must be a str, not NoneType"):
        compute_score("text", None, "a")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"^reference holds no table"):
        compute_score("table", "a", "a")


def test_picklable_as_reward_workers_need_it() -> None:
    function = pickle.loads(pickle.dumps(load_as_verl("pkg://rewards.adapters.verl", "compute_score", {})))
    assert call_as_verl(function, SAMPLES[0])["score"] == pytest.approx(0.8)
