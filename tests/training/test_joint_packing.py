"""The plan of a run: what fits, in which order, in which shares, and how full the rows are."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gravity_rl.joint.packing import OPEN_ROWS, RowPlan, first_fit, plan_rows

TASKS = ("text", "table", "formula")
PUBLISHED = {"text": 60.0, "table": 20.0, "formula": 20.0}


def slow_first_fit(lengths: list[int], budget: int, open_rows: int) -> list[list[int]]:
    """Keeps every row in place and marks the closed ones."""
    rows: list[list[int]] = []
    closed = 0
    for item, length in enumerate(lengths):
        for row in rows[closed:]:
            if sum(lengths[other] for other in row) + length <= budget:
                row.append(item)
                break
        else:
            closed = max(closed, len(rows) + 1 - open_rows)
            rows.append([item])
    return rows


@settings(deadline=None)
@given(lengths=st.lists(st.integers(1, 20), max_size=60), open_rows=st.integers(1, 5))
def test_first_fit_equals_a_slow_one(lengths: list[int], open_rows: int) -> None:
    rows = list(first_fit(lengths, 20, open_rows))
    assert rows == slow_first_fit(lengths, 20, open_rows)
    assert sorted(item for row in rows for item in row) == list(range(len(lengths)))
    assert all(sum(lengths[item] for item in row) <= 20 for row in rows)


def test_open_rows_are_filled_later_and_the_oldest_closes_first() -> None:
    lengths = [6, 7, 4, 9, 3, 2]
    assert list(first_fit(lengths, 10, 2)) == [[0, 2], [1, 4], [3], [5]]
    assert list(first_fit(lengths, 10, 1)) == [[0], [1], [2], [3], [4, 5]]
    assert list(first_fit(lengths, 10, 9)) == [[0, 2], [1, 4], [3], [5]]


def test_rows_come_as_soon_as_they_are_closed() -> None:
    assert next(first_fit(iter(lambda: 9, 0), 10, 2)) == [0], "an endless mixture can be packed"


def test_an_item_that_fits_no_row_is_named() -> None:
    with pytest.raises(ValueError, match="item 1 of length 11 does not fit a row of 10"):
        list(first_fit([10, 11], 10))


def samples(count: int, seed: int = 0) -> tuple[list[int], list[str]]:
    """Forward tokens and tasks, as a mix of crops has them: log-normal responses three times, images once."""
    random = np.random.default_rng(seed)
    prefix = random.integers(60, 1500, count)
    response = np.clip(np.exp(random.normal(4.6, 1.0, count)), 1, 2000)
    lengths = (prefix + 3 * (response.astype(int) + 32)).astype(int).tolist()
    return lengths, [TASKS[index] for index in random.integers(0, 3, count)]


def plan(count: int = 300, rows: int = 40, seed: int = 1, weights: dict[str, float] | None = None) -> RowPlan:
    lengths, tasks = samples(count)
    return plan_rows(lengths, tasks, weights, budget=10_240, rows=rows, seed=seed)


def test_a_plan_is_a_pure_function() -> None:
    first, again, other = plan(), plan(), plan(seed=2)
    for name in ("starts", "samples", "draws"):
        assert np.array_equal(getattr(first, name), getattr(again, name))
    assert first.samples.tolist() != other.samples.tolist()


def test_rows_keep_to_the_budget_and_are_full() -> None:
    lengths, _ = samples(300)
    rows = plan(rows=200)
    assert len(rows) == 200
    tokens = [sum(lengths[sample] for sample, _ in rows.row(index)) for index in range(200)]
    assert max(tokens) <= 10_240
    assert sum(tokens) / (200 * 10_240) > 0.95


def test_the_shares_are_those_of_the_mixture() -> None:
    _, tasks = samples(300)
    found = Counter(tasks[sample] for sample in plan(rows=200, weights=PUBLISHED).samples)
    for task, weight in PUBLISHED.items():
        assert found[task] / found.total() == pytest.approx(weight / 100, abs=0.02)
    assert {tasks[sample] for sample in plan(weights={"table": 1.0}).samples} == {"table"}


def test_no_sample_is_lost_or_taken_twice() -> None:
    """Every draw of the mixture up to the last row's first is in the plan, with the sample that the mixture names."""
    _, tasks = samples(50)
    rows = plan(count=50, rows=60)
    draws = rows.draws.tolist()
    assert len(set(draws)) == len(draws)
    assert set(draws) >= set(range(rows.row(59)[0][1] + 1))
    longest_row = max(np.diff(rows.starts))
    assert max(draws) + 1 - len(draws) <= OPEN_ROWS * longest_row
    passes = len(draws) // 50
    assert passes >= 3, "several passes"
    in_order = [sample for _, sample in sorted(zip(draws, rows.samples.tolist(), strict=True))]
    for task in TASKS:
        members = [index for index in range(50) if tasks[index] == task]
        first_pass = [sample for sample in in_order if sample in members][: len(members)]
        assert sorted(first_pass) == members, "the first pass has every sample once"


def test_samples_of_length_0_are_left_out() -> None:
    lengths, tasks = samples(60)
    left_out = {index for index in range(60) if index % 4 == 0}
    shortened = [0 if index in left_out else length for index, length in enumerate(lengths)]
    rows = plan_rows(shortened, tasks, None, budget=10_240, rows=20, seed=0)
    assert set(rows.samples.tolist()) == set(range(60)) - left_out


def test_no_rows_and_no_samples() -> None:
    assert len(plan_rows([3], ["text"], None, budget=10, rows=0, seed=0)) == 0
    with pytest.raises(ValueError, match="the dataset is empty"):
        plan_rows([0, 0], ["text", "text"], None, budget=10, rows=1, seed=0)
    with pytest.raises(ValueError, match="no rows for the mixture: table"):
        plan_rows([3, 0], ["text", "table"], PUBLISHED | {"formula": 0.0}, budget=10, rows=1, seed=0)
    with pytest.raises(ValueError, match="length 11 does not fit a row of 10"):
        plan_rows([3, 11], ["text", "text"], None, budget=10, rows=1, seed=0)
