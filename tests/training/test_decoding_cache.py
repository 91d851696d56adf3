"""The ragged cache: what stays in it, what does not, and that rows can be taken out and multiplied."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from decoding_helpers import full_forward, ids, make_inputs, mask_id, plain_ids, run, use_windows, varied_policy
from torch import Tensor

from gravity_rl.decoding import Decoded, engine, scheduler, self_spec
from gravity_rl.decoding.cache import RaggedCache, full_visibility
from gravity_rl.decoding.prompts import Prompts
from gravity_rl.decoding.rows import Rows

ROWS = [0, 1, 3]
BLOCK = 4


def corrupt(rows: Rows, first: int, last: int, value: float) -> None:
    """Overwrite places ``lengths + first`` … ``lengths + last`` of every layer; NaN, or noise of this size."""
    for states in (*rows.cache.keys_LHCD, *rows.cache.values_LHCD):
        for row, length in enumerate(rows.lengths_N.tolist()):
            places = states[row, :, max(0, length + first) : length + last + 1]
            places.copy_(value * torch.randn(places.shape, generator=torch.Generator().manual_seed(length)))


def corrupt_after_draft(monkeypatch: pytest.MonkeyPatch, first: int, last: int, value: float = float("nan")) -> None:
    """Overwrite window places first … last (0 is the boundary token's) after each draft."""
    original = self_spec.draft_logits

    def draft(model: Any, rows: Rows, block_size: int, mask_id: int) -> Tensor:
        logits = original(model, rows, block_size, mask_id)
        corrupt(rows, first, last, value)
        return logits

    monkeypatch.setattr(self_spec, "draft_logits", draft)


def corrupt_after_commit(monkeypatch: pytest.MonkeyPatch, first: int, last: int, value: float) -> None:
    """Overwrite places after each round; 0 is that of the next boundary token, -1 the last one that is kept."""
    original = scheduler.commit

    def committing(rows: Rows, *args: Any) -> Any:
        result = original(rows, *args)
        corrupt(rows, first, last, value)
        return result

    monkeypatch.setattr(scheduler, "commit", committing)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("value", [float("nan"), 5.0])
def test_no_state_of_a_mask_survives_the_draft(
    monkeypatch: pytest.MonkeyPatch, temperature: float, value: float
) -> None:
    expected = run(ROWS, "self_spec", block_size=BLOCK, temperature=temperature)
    corrupt_after_draft(monkeypatch, 1, BLOCK, value)
    actual = run(ROWS, "self_spec", block_size=BLOCK, temperature=temperature)
    assert ids(actual) == ids(expected)
    assert all(map(torch.equal, actual.logprobs, expected.logprobs))


def test_the_state_of_the_boundary_token_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    corrupt_after_draft(monkeypatch, 0, 0)
    with pytest.raises(FloatingPointError, match="rows"):
        run(ROWS, "self_spec", block_size=BLOCK)


@pytest.mark.parametrize("when", [corrupt_after_draft, corrupt_after_commit])
def test_states_that_are_kept_are_used(monkeypatch: pytest.MonkeyPatch, when: Callable[..., None]) -> None:
    """The same noise at the place of a committed token changes what is written: the tests here can fail."""
    expected = run(ROWS, "self_spec", block_size=BLOCK)
    place = 0 if when is corrupt_after_draft else -1
    when(monkeypatch, place, place, 5.0)
    actual = run(ROWS, "self_spec", block_size=BLOCK)
    assert ids(actual) != ids(expected)
    first = [sequence[:1] for sequence in ids(expected)]
    assert [sequence[:1] for sequence in ids(actual)] == first  # a0 of the first round came before


@pytest.mark.parametrize("value", [1e4, 5.0])
def test_nothing_behind_the_committed_tokens_is_used(monkeypatch: pytest.MonkeyPatch, value: float) -> None:
    """States of rejected drafts, and whatever an earlier round left further on."""
    windows = [BLOCK, 0, 2, 8]

    def write() -> Decoded:
        use_windows(monkeypatch, lambda at, live: windows[at % 4], largest=8)
        return run(ROWS, "self_spec")

    expected = write()
    corrupt_after_commit(monkeypatch, 0, 20, value)
    actual = write()
    assert ids(actual) == ids(expected) == [plain_ids(1.0)[row] for row in ROWS]
    assert all(map(torch.equal, actual.logprobs, expected.logprobs))


def test_prefix_states_are_not_shared_with_rows() -> None:
    """Rows of one prompt start from the same states; what one of them writes is its own."""
    expected = run([1, 1, 1], "self_spec", row_ids=[1, 50, 51], max_live_rows=1)
    together = run([1, 1, 1], "self_spec", row_ids=[1, 50, 51])
    assert ids(together) == ids(expected)
    assert ids(together)[0] == plain_ids(1.0)[1]


def test_cached_states_are_those_of_a_causal_forward(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before every round, the cache of a row holds exactly the states of a plain forward over its tokens."""
    rounds: list[list[tuple[int, int, list[Tensor]]]] = []
    original = self_spec.self_spec_round

    def spy(model: Any, rows: Rows, *args: Any) -> Any:
        cache = rows.cache
        rounds.append(
            [
                (index, length, [layer[n, :, :length].clone() for layer in (*cache.keys_LHCD, *cache.values_LHCD)])
                for n, (index, length) in enumerate(zip(rows.index_N.tolist(), rows.lengths_N.tolist(), strict=True))
            ]
        )
        assert cache.longest == int(rows.lengths_N.max())
        return original(model, rows, *args)

    monkeypatch.setattr(engine, "self_spec_round", spy)
    decoded = run(ROWS, "self_spec", block_size=BLOCK)
    assert len(rounds) > 5
    references = []
    for row, sequence in zip(ROWS, decoded.sequences, strict=True):
        layers = full_forward(row, sequence).cache.layers
        references.append([layer.keys[0] for layer in layers] + [layer.values[0] for layer in layers])
    for states in rounds:
        for index, length, cached in states:
            for actual, expected in zip(cached, references[index], strict=True):
                torch.testing.assert_close(actual, expected[:, :length], atol=1e-4, rtol=1e-4)


def test_windows_write_behind_each_row_and_stay_out_of_sight() -> None:
    cache = RaggedCache(3, max_capacity=6, device=torch.device("cpu"))
    cache.lengths_L, cache.longest = torch.tensor([3, 1, 0]), 3
    cache.reserve(3)
    slots = cache.open_window(2, 1, 2)
    assert slots.tolist() == [[4, 5], [2, 3]]
    states = torch.arange(1.0, 5.0).reshape(2, 1, 2, 1)
    keys, values = cache.update(states, 10 * states, 0)
    assert keys[:, 0, :, 0].tolist() == [[0, 0, 0, 0, 1, 2], [0, 0, 3, 4, 0, 0]]
    assert values[:, 0, :, 0].tolist() == [[0, 0, 0, 0, 10, 20], [0, 0, 30, 40, 0, 0]]
    assert cache.seen_until(slots)[:, 0].long().tolist() == [
        [[1, 1, 1, 1, 1, 0], [1, 1, 1, 1, 1, 1]],
        [[1, 1, 1, 0, 0, 0], [1, 1, 1, 1, 0, 0]],
    ]
    cache.reserve(1)
    cache.open_window(2, 0, 1)
    keys, _ = cache.update(9 * states[:, :, :1], states[:, :, :1], 0)
    assert keys[:, 0, :, 0].tolist() == [[0, 0, 0, 9], [0, 27, 3, 4]]
    assert not cache.keys_LHCD[0][2].any()  # the slot behind those of the forward


def test_rows_move_with_their_states_and_may_start_several_times_from_one() -> None:
    source = RaggedCache(2, max_capacity=3, device=torch.device("cpu"))
    source.reserve(3)
    source.open_window(2, 0, 3)
    source.update(torch.arange(6.0).reshape(2, 1, 3, 1), -torch.arange(6.0).reshape(2, 1, 3, 1), 0)
    source.lengths_L, source.prefix_L, source.longest = torch.tensor([2, 3]), torch.tensor([3, 4]), 3
    cache = RaggedCache(4, max_capacity=8, device=torch.device("cpu"))
    cache.write_rows(torch.tensor([3, 0, 2]), source, torch.tensor([0, 1, 0]))
    assert cache.lengths_L.tolist() == [3, 0, 2, 2]
    assert cache.prefix_L.tolist() == [4, 0, 3, 3]
    assert cache.keys_LHCD[0][:, 0, :3, 0].tolist() == [[3, 4, 5], [0, 0, 0], [0, 1, 2], [0, 1, 2]]
    cache.longest = 3
    cache.move(torch.tensor([3]), torch.tensor([1]))
    assert cache.lengths_L.tolist() == [3, 2, 2, 2]
    assert cache.values_LHCD[0][1, 0, :3, 0].tolist() == [0, -1, -2]


def test_states_survive_growth() -> None:
    cache = RaggedCache(1, max_capacity=2000, device=torch.device("cpu"), key_step=16)
    total, sizes = 0, set()
    while total < 1990:
        cache.reserve(10)
        cache.open_window(1, 0, 10)
        cache.update(torch.arange(total, total + 10.0).view(1, 1, 10, 1), torch.ones(1, 1, 10, 1), 0)
        total += 10
        cache.lengths_L, cache.longest = torch.tensor([total]), total
        sizes.add(cache.capacity)
        assert cache.keys_LHCD[0].shape[2] == cache.values_LHCD[0].shape[2] == cache.capacity <= 2000
    assert cache.keys_LHCD[0][0, 0, :total, 0].tolist() == list(range(total))
    assert cache.values_LHCD[0].sum() == total
    assert 3 <= len(sizes) <= 8
    assert max(sizes) == 2000


@pytest.fixture
def garbage() -> Iterator[None]:
    """Memory that nobody has written to holds NaN."""
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    assert torch.utils.deterministic.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])


def test_places_are_cleared_before_they_are_seen(garbage: None) -> None:
    cache = RaggedCache(2, max_capacity=2000, device=torch.device("cpu"))
    assert torch.empty(4).isnan().all()
    for longest in (0, 20, 100, 101, 300, 301):
        cache.longest = longest
        cache.reserve(10)
        cache.lengths_L = torch.tensor([longest, 0])
        cache.open_window(2, 0, 10)
        for states in cache.update(torch.ones(2, 1, 10, 1), torch.ones(2, 1, 10, 1), 0):
            assert states.shape[2] == longest + 10 and states.isfinite().all()
    assert cache.keys_LHCD[0].isnan().any()  # there are others


@pytest.mark.parametrize("method", ["ar", "self_spec"])
def test_nothing_depends_on_memory_that_was_not_written(request: pytest.FixtureRequest, method: str) -> None:
    settings = {"temperature": 1.0, "max_live_rows": 2, "max_new_tokens": 40}
    expected = run(ROWS, method, **settings)
    request.getfixturevalue("garbage")
    actual = run(ROWS, method, **settings)
    assert ids(actual) == ids(expected)
    assert all(map(torch.equal, actual.logprobs, expected.logprobs))


def test_visible_places_are_rounded_up_but_not_beyond_the_limit() -> None:
    cache = RaggedCache(2, max_capacity=50, device=torch.device("cpu"), key_step=16)
    widths = []
    for longest in (0, 12, 13, 40, 44):
        cache.lengths_L, cache.longest = torch.tensor([longest, 0]), longest
        cache.reserve(4)
        slots = cache.open_window(2, 0, 4)
        widths.append(cache.seen_until(slots).shape[-1])
    assert widths == [16, 16, 32, 48, 48]
    cache.longest = 46
    cache.reserve(4)
    assert cache.seen_until(cache.open_window(2, 0, 4)).shape[-1] == 50


def test_overfull_cache_is_a_bug() -> None:
    cache = RaggedCache(1, max_capacity=4, device=torch.device("cpu"))
    with pytest.raises(RuntimeError, match="4 places a row"):
        cache.reserve(5)
    cache.reserve(4)
    cache.open_window(1, 2, 2)
    with pytest.raises(RuntimeError, match="4 places are reserved"):
        cache.open_window(1, 2, 3)


def test_capacity_is_just_enough() -> None:
    """The last window of the longest row ends where the cache does."""
    for method in ("ar", "self_spec"):
        run([3], method, max_new_tokens=1, block_size=16)
        run([3], method, max_new_tokens=9, block_size=1)


def test_draft_masks() -> None:
    """The boundary token is causal; masks see the cache, it and each other, and nothing behind the window."""
    model, _ = varied_policy()
    seen: list[Tensor] = []
    with torch.no_grad():
        prefix = Prompts(make_inputs([1, 0]), model.device).prefill(model, [0, 1], full_visibility)
        cache = RaggedCache(2, 400, model.device)
        cache.write_rows(torch.arange(2), prefix.cache, torch.arange(2))
        cache.longest = prefix.cache.longest
        cache.reserve(3)
        rows = Rows.empty(cache, idle_index=2)
        handle = model.model.language_model.register_forward_pre_hook(
            lambda module, args, kwargs: seen.append(kwargs["attention_mask"] == 0), with_kwargs=True
        )
        try:
            self_spec.draft_logits(model, rows, 2, mask_id())
        finally:
            handle.remove()
    lengths = cache.lengths_L.tolist()
    assert lengths[0] != lengths[1]
    assert seen[0].shape == (2, 1, 3, max(lengths) + 3)
    for row, length in enumerate(lengths):
        assert seen[0][row, 0].sum(1).tolist() == [length + 1, length + 3, length + 3]
        assert seen[0][row, 0, 1, : length + 3].all()
