"""Batches: the same scores as one by one, in order, equal samples scored once, errors that name the sample."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rewards import batch as module
from rewards import score
from rewards.batch import score_batch
from rewards.types import PUBLISHED, ROBUST

TABLE = "<table><tr><td>a</td><td>b</td></tr></table>"
REFERENCES = {"text": "Hello, world", "table": TABLE, "formula": "x^{2}"}

samples = st.lists(
    st.tuples(st.sampled_from(list(REFERENCES)), st.sampled_from(["Hello", TABLE, "x^2", "", "<table>"])), max_size=12
)


@settings(deadline=None, max_examples=50)
@given(samples, st.sampled_from([PUBLISHED, ROBUST]))
def test_a_batch_has_the_scores_of_its_samples_in_order(drawn: list[tuple[str, str]], config) -> None:
    tasks = [task for task, _ in drawn]
    predictions = [prediction for _, prediction in drawn]
    references = [REFERENCES[task] for task in tasks]
    expected = [score(*sample, config) for sample in zip(tasks, predictions, references, strict=True)]
    assert score_batch(tasks, predictions, references, config) == expected


def test_equal_samples_are_scored_once_and_others_are_not_mixed_up(monkeypatch) -> None:
    scored = []
    monkeypatch.setattr(module, "score", lambda *sample: scored.append(sample) or score(*sample))
    tasks = ["text", "formula", "text", "text", "text"]
    score_batch(tasks, ["a", "a", "a", "b", "a"], ["a", "a", "a", "a", "b"])
    assert [sample[:3] for sample in scored] == [
        ("text", "a", "a"),
        ("formula", "a", "a"),
        ("text", "b", "a"),
        ("text", "a", "b"),
    ]


def test_an_empty_batch_has_no_scores() -> None:
    assert score_batch([], [], []) == []


def test_columns_of_numpy_strings_are_read() -> None:
    numpy = pytest.importorskip("numpy")
    for dtype in (str, object):
        columns = (numpy.array(column, dtype=dtype) for column in (["text"] * 2, ["a", "b"], ["a", "a"]))
        assert [scored.value for scored in score_batch(*columns)] == [1.0, 0.0]


def test_lengths_are_strict_and_named() -> None:
    with pytest.raises(ValueError, match=r"^task, predictions and references differ in length: 1, 2, 3$"):
        score_batch(["text"], ["a", "b"], ["a", "b", "c"])


@pytest.mark.parametrize("position", range(3))
def test_one_string_is_not_taken_for_a_sequence(position: int) -> None:
    columns: list = [["text"], ["a"], ["a"]]
    columns[position] = "a"
    name = ("task", "predictions", "references")[position]
    with pytest.raises(TypeError, match=f"^{name} must be a sequence of strings"):
        score_batch(*columns)


@pytest.mark.parametrize(
    ("sample", "error", "message"),
    [
        (("text", "a", None), TypeError, "sample 3: reference must be a str, not NoneType"),
        (("text", None, "a"), TypeError, "sample 3: prediction must be a str, not NoneType"),
        (("text", ["a"], "a"), TypeError, "sample 3: prediction must be a str, not list"),
        ((None, "a", "a"), TypeError, "sample 3: task must be a str, not NoneType"),
        ((["text"], "a", "a"), TypeError, "sample 3: task must be a str, not list"),
        (("chart", "a", "a"), ValueError, "sample 3: task must be one of text, table, formula: 'chart'"),
        (("table", "a", "a"), ValueError, "sample 3: reference holds no table with a cell: 'a'"),
        (("formula", "a", "{}"), ValueError, "sample 3: reference holds no formula: '{}'"),
    ],
)
def test_errors_keep_their_type_and_name_the_sample(sample: tuple, error: type[Exception], message: str) -> None:
    columns = zip(*[("text", "a", "a")] * 3, sample, ("text", "a", "a"), strict=True)
    with pytest.raises(error) as raised:
        score_batch(*columns)
    assert type(raised.value) is error
    assert str(raised.value) == message
