"""The ragged cache: what stays in it, what does not, and that rows can be taken out and multiplied."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from decoding_helpers import full_forward, ids, make_inputs, mask_id, run, varied_policy
from torch import Tensor

from gravity_rl.decoding import engine, self_spec
from gravity_rl.decoding.ar import ar_step
from gravity_rl.decoding.cache import RaggedCache
from gravity_rl.decoding.loop import Responses, decode
from gravity_rl.decoding.prefill import prefill
from gravity_rl.decoding.rows import LiveRows
from gravity_rl.decoding.sampling import Sampler

ROWS = [0, 1, 3]
BLOCK = 4


def corrupt_after_draft(monkeypatch: pytest.MonkeyPatch, first: int, last: int) -> None:
    """Overwrite window slots first … last (0 is the boundary token's) of every layer by NaN after each draft."""
    original = self_spec.draft_logits

    def draft(model: Any, rows: LiveRows, block_size: int, mask_id: int) -> Tensor:
        logits = original(model, rows, block_size, mask_id)
        for states in (*rows.cache.keys_NHCD, *rows.cache.values_NHCD):
            for row, length in enumerate(rows.cache.lengths_N.tolist()):
                states[row, :, length + first : length + last + 1] = float("nan")
        return logits

    monkeypatch.setattr(self_spec, "draft_logits", draft)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_no_state_of_a_mask_survives_the_draft(monkeypatch: pytest.MonkeyPatch, temperature: float) -> None:
    expected = run(ROWS, "self_spec", block_size=BLOCK, temperature=temperature)
    corrupt_after_draft(monkeypatch, 1, BLOCK)
    actual = run(ROWS, "self_spec", block_size=BLOCK, temperature=temperature)
    assert ids(actual) == ids(expected)
    assert all(map(torch.equal, actual.logprobs, expected.logprobs))


def test_the_state_of_the_boundary_token_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    corrupt_after_draft(monkeypatch, 0, 0)
    with pytest.raises(FloatingPointError, match="rows"):
        run(ROWS, "self_spec", block_size=BLOCK)


def test_cached_states_are_those_of_a_causal_forward(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before every round, the cache of a row holds exactly the states of a plain forward over its tokens."""
    rounds: list[list[tuple[int, int, list[Tensor]]]] = []
    original = self_spec.self_spec_round

    def spy(model: Any, rows: LiveRows, **kwargs: Any) -> Any:
        cache = rows.cache
        rounds.append(
            [
                (index, length, [layer[n, :, :length].clone() for layer in (*cache.keys_NHCD, *cache.values_NHCD)])
                for n, (index, length) in enumerate(zip(rows.index_N.tolist(), cache.lengths_N.tolist(), strict=True))
            ]
        )
        assert cache.longest >= int(cache.lengths_N.max())
        return original(model, rows, **kwargs)

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


def test_one_prefill_serves_several_rows() -> None:
    model, _ = varied_policy()
    vocab_size = model.config.text_config.vocab_size
    sampler = Sampler(temperature=1.0, seed=0, banned_ids=torch.tensor([], dtype=torch.long), vocab_size=vocab_size)
    responses = Responses(4, 12, 0, torch.device("cpu"))
    with torch.no_grad():
        prompts = prefill(model, make_inputs([2, 1]), torch.tensor([0, 0]), room=12)
        rows = prompts.select(torch.tensor([0, 0, 1, 0]))
        rows.row_ids_N = torch.tensor([10, 11, 12, 13])
        rows.index_N = torch.arange(4)
        decode(rows, lambda live: ar_step(model, live, sampler), responses, torch.tensor([]), max_new_tokens=12)
    expected = run(
        [2, 2, 1, 2], "ar", row_ids=[10, 11, 12, 13], banned_token_ids=[], eos_token_ids=[], max_new_tokens=12
    )
    assert responses.ids[:, :12].tolist() == ids(expected)


def test_windows_write_behind_each_row_and_stay_out_of_sight() -> None:
    cache = RaggedCache(2, capacity=6, device=torch.device("cpu"))
    cache.lengths_N, cache.longest = torch.tensor([3, 1]), 3
    slots = cache.open_window(1, 2)
    assert slots.tolist() == [[4, 5], [2, 3]]
    states = torch.arange(1.0, 5.0).reshape(2, 1, 2, 1)
    keys, values = cache.update(states, 10 * states, 0)
    assert keys[:, 0, :, 0].tolist() == [[0, 0, 0, 0, 1, 2], [0, 0, 3, 4, 0, 0]]
    assert values[:, 0, :, 0].tolist() == [[0, 0, 0, 0, 10, 20], [0, 0, 30, 40, 0, 0]]
    assert cache.seen_until(slots)[:, 0].long().tolist() == [
        [[1, 1, 1, 1, 1, 0], [1, 1, 1, 1, 1, 1]],
        [[1, 1, 1, 0, 0, 0], [1, 1, 1, 1, 0, 0]],
    ]
    cache.open_window(0, 1)
    keys, _ = cache.update(9 * states[:, :, :1], states[:, :, :1], 0)
    assert keys[:, 0, :, 0].tolist() == [[0, 0, 0, 9], [0, 27, 3, 4]]


def test_overfull_cache_is_a_bug() -> None:
    cache = RaggedCache(1, capacity=4, device=torch.device("cpu"))
    with pytest.raises(RuntimeError, match="4 slots"):
        cache.open_window(0, 5)


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
        rows = prefill(model, make_inputs([1, 0]), torch.tensor([0, 1]), room=8)
        handle = model.model.language_model.register_forward_pre_hook(
            lambda module, args, kwargs: seen.append(kwargs["attention_mask"]), with_kwargs=True
        )
        try:
            self_spec.draft_logits(model, rows, 2, mask_id())
        finally:
            handle.remove()
    lengths = rows.cache.lengths_N.tolist()
    assert lengths[0] != lengths[1]
    assert seen[0].shape == (2, 1, 3, max(lengths) + 3)
    for row, length in enumerate(lengths):
        assert seen[0][row, 0].sum(1).tolist() == [length + 1, length + 3, length + 3]
        assert seen[0][row, 0, 1, : length + 3].all()
