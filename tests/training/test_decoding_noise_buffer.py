"""The ring of noise: every value computed once, in whatever slots rows sit and however far each round looks."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from typing import Any

import pytest
import torch
from decoding_helpers import ids, plain_ids, run, use_windows, varied_policy
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from gravity_rl.decoding import noise as module
from gravity_rl.decoding.memory import noise_ahead, noise_width
from gravity_rl.decoding.noise import NoiseBuffer, gumbel_noise

VOCAB = 5


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> Counter[tuple[int, int]]:
    """How often the noise of each (row id, position) was computed."""
    counts: Counter[tuple[int, int]] = Counter()

    def counting(seed: int, row_ids_N: Tensor, positions_NQ: Tensor, vocab_size: int) -> Tensor:
        for row, positions in zip(row_ids_N.tolist(), positions_NQ.tolist(), strict=True):
            counts.update((row, position) for position in positions)
        return gumbel_noise(seed, row_ids_N, positions_NQ, vocab_size)

    monkeypatch.setattr(module, "gumbel_noise", counting)
    return counts


@pytest.mark.parametrize("max_live_rows", [None, 2, 3])
@pytest.mark.parametrize("windows", [[4], [0], [1, 0, 8, 3, 0, 0, 0, 5]])
def test_nothing_is_computed_twice_over_a_decode(
    monkeypatch: pytest.MonkeyPatch, computed: Counter[tuple[int, int]], max_live_rows: int | None, windows: list[int]
) -> None:
    expected = plain_ids(1.0)
    computed.clear()
    use_windows(monkeypatch, lambda at, live: windows[at % len(windows)], largest=8)
    decoded = run(range(6), "self_spec", max_live_rows=max_live_rows)
    assert ids(decoded) == expected
    assert set(computed.values()) == {1}
    beyond = noise_width(max(windows), varied_policy()[0].config.text_config.vocab_size)
    for row, sequence in enumerate(decoded.sequences):
        positions = sorted(position for id_, position in computed if id_ == row)
        assert positions == list(range(len(positions)))
        assert len(sequence) <= len(positions) <= len(sequence) + beyond


def test_greedy_decoding_computes_none(computed: Counter[tuple[int, int]]) -> None:
    run([0, 1], "self_spec", temperature=0.0, max_new_tokens=5)
    assert not computed


def test_steps_of_one_token_compute_noise_in_portions(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    monkeypatch.setattr(
        module, "gumbel_noise", lambda *args: calls.append(args[2].numel()) or gumbel_noise(*args)  # type: ignore[func-returns-value]
    )  # fmt: skip
    ahead = noise_ahead(varied_policy()[0].config.text_config.vocab_size)
    run([1, 2, 3], "ar", max_new_tokens=3 * ahead, eos_token_ids=[])
    assert calls == [3 * ahead] * 3


@settings(max_examples=30, deadline=None, derandomize=True)
@given(seed=st.integers(0, 10**9), slots=st.integers(1, 6), width=st.integers(1, 9))
def test_the_ring_holds_what_the_next_positions_need(seed: int, slots: int, width: int) -> None:
    """Rows that start, advance, move and end at random; what a round looks at is compared value by value."""
    rng = random.Random(seed)
    buffer = NoiseBuffer(seed, slots, width, VOCAB, torch.device("cpu"), ahead=rng.choice([1, 3, 100]))
    buffer.retire(torch.arange(slots))
    fresh = itertools.count()
    rows: list[tuple[int, int]] = []  # row id and written tokens, by slot
    for _ in range(12):
        started = list(range(len(rows), rng.randint(len(rows), slots)))
        rows += [(next(fresh), 0) for _ in started]
        buffer.reset(torch.tensor(started, dtype=torch.long))
        if rows:
            count = rng.randint(1, width)
            ids_N, written_N = (torch.tensor(column) for column in zip(*rows, strict=True))
            buffer.prepare(written_N, ids_N, count)
            positions = written_N[:, None] + torch.arange(count)
            held = buffer.ring_LKV[torch.arange(len(rows))[:, None], positions % width]
            assert torch.equal(held, gumbel_noise(seed, ids_N, positions, VOCAB))
            rows = [(row, written + rng.randint(1, count)) for row, written in rows]
        keep = rng.sample(range(len(rows)), rng.randint(0, len(rows)))
        holes = [slot for slot in range(len(keep)) if slot not in keep]
        behind = sorted(slot for slot in keep if slot >= len(keep))
        buffer.move(torch.tensor(behind, dtype=torch.long), torch.tensor(holes, dtype=torch.long))
        for source, target in zip(behind, holes, strict=True):
            rows[target] = rows[source]
        rows = rows[: len(keep)]
        buffer.retire(torch.arange(len(keep), slots))


def test_idle_slots_and_known_positions_cost_nothing(computed: Counter[tuple[int, int]]) -> None:
    buffer = NoiseBuffer(0, 3, 4, VOCAB, torch.device("cpu"))
    written, row_ids = torch.zeros(3, dtype=torch.long), torch.tensor([7, 8, 9])
    buffer.prepare(written, row_ids, 4)
    assert not computed  # no row has started
    buffer.reset(torch.tensor([1]))
    buffer.prepare(written, row_ids, 2)
    buffer.prepare(written, row_ids, 2)
    assert computed == {(8, 0): 1, (8, 1): 1}
    far_sighted = NoiseBuffer(0, 3, 4, VOCAB, torch.device("cpu"), ahead=3)
    far_sighted.reset(torch.tensor([0]))
    computed.clear()
    far_sighted.prepare(written, row_ids, 1)
    assert computed == {(7, 0): 1, (7, 1): 1, (7, 2): 1}
    far_sighted.prepare(written + 2, row_ids, 1)
    assert len(computed) == 3  # the next one is known: nothing is computed ahead of need


@pytest.mark.parametrize("chunk", [1, 12, 10**9])
def test_chunks_of_the_ring(monkeypatch: pytest.MonkeyPatch, chunk: int) -> None:
    monkeypatch.setattr(module, "_CHUNK", chunk)
    buffer = NoiseBuffer(3, 4, 6, VOCAB, torch.device("cpu"))
    buffer.reset(torch.arange(4))
    buffer.prepare(torch.zeros(4, dtype=torch.long), torch.arange(4), 6)
    assert torch.equal(buffer.ring_LKV, gumbel_noise(3, torch.arange(4), torch.arange(6).expand(4, -1), VOCAB))


def test_the_ring_is_read_and_never_written_by_a_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """A choice adds scores to a copy; the ring goes on being the noise of its positions."""
    model, _ = varied_policy()
    vocab = model.config.text_config.vocab_size
    checked: list[int] = []
    original = NoiseBuffer.prepare

    def checking(self: NoiseBuffer, written_N: Tensor, row_ids_N: Tensor, *args: Any) -> None:
        original(self, written_N, row_ids_N, *args)
        held = self.ring_LKV[: len(written_N)].gather(
            1, (written_N[:, None] % self.width)[..., None].expand(-1, -1, vocab)
        )
        assert torch.equal(held, gumbel_noise(self.seed, row_ids_N, written_N[:, None], vocab))
        checked.append(len(written_N))

    monkeypatch.setattr(NoiseBuffer, "prepare", checking)
    decoded = run([0, 1, 2], "self_spec", seed=4)
    assert len(checked) == decoded.stats.rounds > 3
