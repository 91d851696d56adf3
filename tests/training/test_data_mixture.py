"""Task mixture: exact shares, even cycling, and the same order everywhere."""

import subprocess
import sys
from collections import Counter
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gravity_rl.data import mixture
from gravity_rl.data.mixture import apportion, mixture_order

TASKS = ("text", "table", "formula")
task_lists = st.lists(st.sampled_from(TASKS), min_size=1, max_size=60)
weight = st.floats(min_value=0, max_value=10, allow_nan=False)
weight_maps = st.fixed_dictionaries(dict.fromkeys(TASKS, weight)).filter(lambda w: sum(w.values()) > 0)


def restrict(weights, tasks):
    """Weights with those of absent tasks set to 0, or None if nothing is left."""
    kept = {task: weight if task in tasks else 0.0 for task, weight in weights.items()}
    return kept if sum(kept.values()) > 0 else None


@settings(deadline=None)
@given(weight_maps, st.integers(0, 5000))
def test_apportion_sums_up_and_stays_within_one_of_the_exact_share(weights, size):
    counts = apportion(weights, size)
    total = sum(Fraction(weight) for weight in weights.values())
    assert sum(counts.values()) == size
    for task, weight in weights.items():
        assert abs(counts[task] - Fraction(weight) * size / total) < 1
        assert weight > 0 or counts[task] == 0


def test_published_shares_of_the_published_pool():
    weights = {"table": 0.92, "text": 0.06, "formula": 0.02}
    assert apportion(weights, 7723) == {"table": 7105, "text": 463, "formula": 155}


@settings(deadline=None)
@given(task_lists, weight_maps, st.integers(0, 2**63), st.integers(0, 200))
def test_order_has_the_shares_and_uses_rows_evenly(tasks, weights, seed, size):
    weights = restrict(weights, tasks)
    order = mixture_order(tasks, weights, seed=seed, size=size)
    assert len(order) == size
    shares = weights if weights is not None else {t: float(c) for t, c in Counter(tasks).items()}
    expected = apportion({t: w for t, w in sorted(shares.items()) if w > 0}, size)
    assert Counter(tasks[index] for index in order) == Counter(expected)
    for task, count in expected.items():
        uses = Counter({index: 0 for index, t in enumerate(tasks) if t == task})
        stream = [index for index in order if tasks[index] == task]
        for index in stream:
            assert uses[index] == min(uses.values())
            uses[index] += 1
        assert sum(uses.values()) == count


@settings(deadline=None)
@given(task_lists, st.integers(0, 2**32))
def test_without_weights_every_row_comes_exactly_once(tasks, seed):
    assert sorted(mixture_order(tasks, None, seed=seed)) == list(range(len(tasks)))


@settings(deadline=None)
@given(task_lists, weight_maps)
def test_every_prefix_is_close_to_the_shares(tasks, weights):
    order = mixture_order(tasks, restrict(weights, tasks), seed=0, size=100)
    drawn = [tasks[index] for index in order]
    final = Counter(drawn)
    for length in range(1, 101):
        prefix = Counter(drawn[:length])
        for task in final:
            assert abs(prefix[task] - Fraction(final[task] * length, 100)) <= 2


def test_default_size_leaves_out_rows_of_weight_zero():
    tasks = ["text"] * 10 + ["table"] * 30
    order = mixture_order(tasks, {"text": 0.0, "table": 1.0, "formula": 0.0}, seed=1)
    assert sorted(order) == list(range(10, 40))


def test_seed_decides_the_order():
    tasks = ["text"] * 50 + ["table"] * 50
    assert mixture_order(tasks, None, seed=1) == mixture_order(tasks, None, seed=1)
    assert mixture_order(tasks, None, seed=1) != mixture_order(tasks, None, seed=2)


def test_second_pass_is_shuffled_anew():
    order = mixture_order(["table"] * 50, None, seed=3, size=100)
    assert order[:50] != order[50:]


@pytest.mark.parametrize(
    ("tasks", "weights", "message"),
    [
        (["text"], {"table": 0.9, "text": 0.1, "formula": 0.0}, "no rows for the mixture: table"),
        ([], None, "the dataset is empty"),
    ],
)
def test_nothing_to_draw_from(tasks, weights, message):
    with pytest.raises(ValueError, match=message):
        mixture_order(tasks, weights, seed=0)


def test_order_does_not_depend_on_string_hashing():
    code = (
        "import runpy, sys\n"
        "order = runpy.run_path(sys.argv[1])['mixture_order']\n"
        "tasks = ['formula', 'text', 'table', 'table'] * 9\n"
        "print(order(tasks, {'text': 0.06, 'table': 0.92, 'formula': 0.02}, seed=5, size=80))\n"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", code, mixture.__file__],
            env={"PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hash_seed in ("0", "1", "4242")
    }
    assert len(outputs) == 1
    tasks = ["formula", "text", "table", "table"] * 9
    weights = {"text": 0.06, "table": 0.92, "formula": 0.02}
    assert outputs == {f"{mixture_order(tasks, weights, seed=5, size=80)}\n"}
