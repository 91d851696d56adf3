"""The shapes that a device captures: rounds on rounded-up numbers of rows, with idle slots behind the live ones.

CPU rounds have exactly the live rows. Here the rounding of devices is used on the CPU, where its results are compared.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from decoding_helpers import eos_id, ids, plain_ids, read, run, use_windows
from torch import Tensor

from gravity_rl.decoding import Decoded, engine, scheduler
from gravity_rl.decoding.cache import RaggedCache
from gravity_rl.decoding.rows import Rows
from gravity_rl.decoding.scheduler import Scheduler, round_up_rows

ENDS = [60, 90, 120, 37]
KEY_STEP = 16


@pytest.fixture
def device_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounds as a device has them."""
    device = torch.device("cuda")  # only its name is looked at
    original = round_up_rows
    monkeypatch.setattr(scheduler, "round_up_rows", lambda live, slots, _: original(live, slots, device))
    monkeypatch.setattr(engine, "RaggedCache", lambda *args, key_step: RaggedCache(*args, key_step=KEY_STEP))


@pytest.fixture
def as_on_a_device(monkeypatch: pytest.MonkeyPatch, device_rounds: None) -> list[tuple[int, int, int]]:
    """The same, with the (rows, tokens, keys) of each forward."""
    shapes: list[tuple[int, int, int]] = []
    seen_until = RaggedCache.seen_until

    def recording(self: RaggedCache, last_seen_NQ: Tensor) -> Tensor:
        mask = seen_until(self, last_seen_NQ)
        if self.key_step == KEY_STEP:  # not a prefill
            shapes.append((mask.shape[0], mask.shape[2], mask.shape[3]))
        return mask

    monkeypatch.setattr(RaggedCache, "seen_until", recording)
    return shapes


def test_numbers_of_rows() -> None:
    device = torch.device("cuda")
    counts = [0, 1, 2, 3, 4, 5, 8, 9, 16, 17, 56, 57]
    expected = [0, 1, 2, 4, 4, 8, 8, 16, 16, 24, 56, 64]
    assert [round_up_rows(live, 64, device) for live in counts] == expected
    assert [round_up_rows(live, 6, device) for live in (3, 5, 6)] == [4, 6, 6]
    assert [round_up_rows(live, 64, torch.device("cpu")) for live in (0, 3, 57)] == [0, 3, 57]


@pytest.mark.parametrize(("method", "block_size"), [("ar", 4), ("self_spec", 1), ("self_spec", 4)])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("max_live_rows", [None, 3, 5])
def test_same_tokens_with_idle_slots(
    as_on_a_device: list[tuple[int, int, int]],
    method: str,
    block_size: int,
    temperature: float,
    max_live_rows: int | None,
) -> None:
    expected = run(range(6), "ar", temperature=temperature, eos_token_ids=[eos_id(), *ENDS])
    as_on_a_device.clear()
    actual = run(
        range(6), method, temperature=temperature, block_size=block_size, max_live_rows=max_live_rows,
        eos_token_ids=[eos_id(), *ENDS],
    )  # fmt: skip
    assert ids(actual) == ids(expected)
    for logprobs, others in zip(actual.logprobs, expected.logprobs, strict=True):
        torch.testing.assert_close(logprobs, others, atol=1e-5, rtol=0)
    assert {rows for rows, _, _ in as_on_a_device} <= {1, 2, 4, 8, min(6, max_live_rows or 6)}
    assert all(keys % KEY_STEP == 0 or keys >= 40 for _, _, keys in as_on_a_device)


def test_counts_do_not_see_idle_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    """Row by row and in all, the counts and the reports to the policy are those of exact rounds."""

    def counted(patched: bool) -> tuple[Decoded, list[Any]]:
        with monkeypatch.context() as patch:
            if patched:
                patch.setattr(scheduler, "round_up_rows", lambda live, slots, _: slots if live else 0)
            policy = use_windows(patch, lambda at, live: (5, 0, 2)[at % 3], largest=5)
            decoded = run(range(6), "self_spec", eos_token_ids=ENDS)
        return decoded, [(window, live, accepted) for window, live, _, accepted in policy.observed]

    (exact, exact_reports), (padded, padded_reports) = counted(False), counted(True)
    assert padded.row_stats == exact.row_stats
    assert padded.stats.rows == exact.stats.rows
    assert padded.stats.rounds == exact.stats.rounds
    assert padded_reports == exact_reports
    assert any(0 < len(accepted) < 6 for _, _, accepted in padded_reports)


def test_few_shapes(as_on_a_device: list[tuple[int, int, int]]) -> None:
    """Many forwards over a batch that shrinks and is refilled; a device captures each of a few shapes once."""
    rows = [0, 1, 2, 3, 4, 5] * 5
    run(rows, "self_spec", row_ids=range(30), block_size=4, max_live_rows=8, eos_token_ids=[eos_id(), *ENDS])
    assert len(as_on_a_device) > 60
    assert {width for _, width, _ in as_on_a_device} == {5}
    assert {rows for rows, _, _ in as_on_a_device} <= {1, 2, 4, 8}
    assert len(set(as_on_a_device)) <= 4 * len({keys for _, _, keys in as_on_a_device}) <= 28


def test_a_round_works_in_place(monkeypatch: pytest.MonkeyPatch, as_on_a_device: list[tuple[int, int, int]]) -> None:
    """Over the rounds of a shape, all state stays where it is in memory: a captured round reads and writes it."""
    places: dict[tuple[int, int], set[tuple[int, ...]]] = {}
    original = Scheduler._round

    def noting(self: Scheduler) -> Tensor:
        state = [*self._view._tensors(), self._view.lengths_N, self._cache.prefix_L, self._responses.ids]
        if self._noise is not None:
            state.append(self._noise.ring_LKV)
        before = tuple(tensor.data_ptr() for tensor in state)
        freed = original(self)
        assert not self._rows.lengths_N[self._live :].any()  # idle slots do not grow
        assert not self._rows.written_N[self._live :].any()
        state[len(self._view._tensors())] = self._view.lengths_N
        assert tuple(tensor.data_ptr() for tensor in state) == before
        places.setdefault((len(self._view), self._cache.num_slots), set()).add(before)
        return freed

    monkeypatch.setattr(Scheduler, "_round", noting)
    run([0, 1, 2, 3, 4, 5, 0, 1], "self_spec", row_ids=range(8), max_live_rows=4, eos_token_ids=ENDS)
    assert len(places) > 1
    assert all(len(addresses) == 1 for addresses in places.values())


def test_a_compiler_captures_a_round_whole_and_once_for_its_shape(
    monkeypatch: pytest.MonkeyPatch, device_rounds: None
) -> None:
    """Without a break, which a question to a tensor would be, and not again while rows, window and keys recur."""
    graphs: list[torch.fx.GraphModule] = []
    shapes: list[tuple[int, int, int]] = []

    def backend(graph: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        graphs.append(graph)
        return graph.forward

    capture = partial(torch.compile, fullgraph=True, dynamic=False, backend=backend)
    step, commit = capture(engine._step), capture(scheduler.commit)

    def noting(model: Any, sampler: Any, mask: Any, rows: Rows, noise_LKV: Tensor, block_size: int) -> Any:
        keys = -(-(rows.cache.longest + (block_size + 2 if block_size else 1)) // KEY_STEP)
        shapes.append((len(rows), block_size, keys))
        return step(model, sampler, mask, rows, noise_LKV, block_size)

    expected = run([0, 1, 2], "ar")
    monkeypatch.setattr(engine, "_step", noting)
    use_windows(monkeypatch, lambda at, live: (4, 4, 0)[at % 3], largest=4)
    monkeypatch.setattr(scheduler, "commit", commit)
    with torch._dynamo.config.patch(recompile_limit=64):  # shapes that are captured, beyond the usual 8
        assert ids(run([0, 1, 2], "self_spec")) == ids(expected)
    assert len(set(shapes)) < len(shapes) / 2
    assert len(graphs) == len(set(shapes)) + len({(rows, block_size) for rows, block_size, _ in shapes})


def test_what_idle_slots_hold_changes_nothing(
    monkeypatch: pytest.MonkeyPatch, as_on_a_device: list[tuple[int, int, int]]
) -> None:
    """Garbage in the cache of idle slots, as ended rows leave it, stays there."""
    expected = run(range(6), "self_spec", eos_token_ids=ENDS)
    original = Scheduler._round
    spoiled = 0

    def spoiling(self: Scheduler) -> Tensor:
        nonlocal spoiled
        for states in (*self._cache.keys_LHCD, *self._cache.values_LHCD):
            spoiled += len(states[self._live :])
            states[self._live :] = 1e4
        self._rows.boundary_N[self._live :] = 11
        self._rows.rope_offset_N[self._live :] = 5
        return original(self)

    monkeypatch.setattr(Scheduler, "_round", spoiling)
    actual = run(range(6), "self_spec", eos_token_ids=ENDS)
    assert spoiled > 0
    assert ids(actual) == ids(expected)
    assert actual.row_stats == expected.row_stats


def test_idle_slots_whose_logits_are_not_finite_break_nothing(
    monkeypatch: pytest.MonkeyPatch, as_on_a_device: list[tuple[int, int, int]]
) -> None:
    expected = run(range(5), "self_spec", eos_token_ids=ENDS)
    original = engine.self_spec_round

    def breaking(model: Any, rows: Rows, *args: Any) -> Any:
        proposal = original(model, rows, *args)
        proposal.logprobs_NK[~rows.live_N] = float("nan")
        return proposal

    monkeypatch.setattr(engine, "self_spec_round", breaking)
    assert ids(run(range(5), "self_spec", eos_token_ids=ENDS)) == ids(expected)


def test_a_row_that_is_not_finite_is_named(
    monkeypatch: pytest.MonkeyPatch, as_on_a_device: list[tuple[int, int, int]]
) -> None:
    """After rows have moved, the error still names places of the output."""
    original = engine.self_spec_round

    def breaking(model: Any, rows: Rows, *args: Any) -> Any:
        proposal = original(model, rows, *args)
        proposal.logprobs_NK[(rows.index_N == 5) & (rows.written_N > 10)] = float("nan")
        return proposal

    monkeypatch.setattr(engine, "self_spec_round", breaking)
    with pytest.raises(FloatingPointError, match=r"rows \[5\]"):
        run(range(6), "self_spec", eos_token_ids=[plain_ids(1.0)[0][1], plain_ids(1.0)[2][2]], max_new_tokens=40)


def test_the_shipped_model_with_idle_slots(as_on_a_device: list[tuple[int, int, int]]) -> None:
    crops = [0, 1, 2, 3, 4]
    expected = read(crops, "ar")
    actual = read(crops, "self_spec", block_size=8, max_live_rows=3)
    assert ids(actual) == ids(expected)
