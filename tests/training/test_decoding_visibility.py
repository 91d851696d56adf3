"""Which keys a token may see is a policy of cache and masks: another one than the full causal mask can be passed."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from decoding_helpers import full_forward, ids, make_inputs, mask_id, plain_ids, run, varied_policy
from torch import Tensor

from gravity_rl.decoding import Decoded, engine
from gravity_rl.decoding.attention import to_attention_mask
from gravity_rl.decoding.cache import RaggedCache, full_visibility
from gravity_rl.decoding.prompts import Prompts
from gravity_rl.decoding.rows import Rows, causal_forward, draft_forward

LAST = 3
ROWS = [0, 1, 3]


def banded(places_K: Tensor, own_NQ1: Tensor, last_seen_NQ1: Tensor, prefix_N11: Tensor, last: int = LAST) -> Tensor:
    """The whole prompt, and of the response the last few places: arXiv:2606.23050."""
    recent = (places_K > own_NQ1 - last) | (places_K < prefix_N11)
    return (places_K <= last_seen_NQ1) & recent


def decode_banded(monkeypatch: pytest.MonkeyPatch, method: str, last: int = LAST, **settings: Any) -> Decoded:
    """``generate`` with the band in the cache and in the prefill."""
    policy = partial(banded, last=last)
    with monkeypatch.context() as patch:
        patch.setattr(engine, "full_visibility", policy)
        patch.setattr(engine, "RaggedCache", partial(RaggedCache, visibility=policy))
        return run(ROWS, method, **settings)


def banded_logprobs(row: int, response: Tensor, last: int = LAST) -> Tensor:
    """From one plain forward over prompt and response with the mask written out."""
    model, _ = varied_policy()
    inputs = make_inputs([row])
    prompt = inputs["input_ids"].shape[1]
    length = prompt + len(response)
    query, key = torch.arange(length)[:, None], torch.arange(length)
    seen = (key <= query) & ((key < prompt) | (key > query - last))
    added = response[None]
    ids_1T = torch.cat([inputs["input_ids"], added], 1)
    types_1T = torch.cat([inputs["mm_token_type_ids"], torch.zeros_like(added)], 1)
    positions, _ = model.model.get_rope_index(
        ids_1T,
        mm_token_type_ids=types_1T,
        image_grid_thw=inputs["image_grid_thw"],
        attention_mask=torch.ones_like(ids_1T),
    )
    with torch.no_grad():
        logits_TV = model(
            input_ids=ids_1T, attention_mask=to_attention_mask(model, seen[None, None]), position_ids=positions,
            pixel_values=inputs["pixel_values"], image_grid_thw=inputs["image_grid_thw"],
        ).logits[0]  # fmt: skip
    return logits_TV[prompt - 1 : -1].log_softmax(-1).gather(1, response[:, None])[:, 0]


@pytest.mark.parametrize(("method", "block_size"), [("ar", 1), ("self_spec", 2), ("self_spec", 8)])
def test_a_band_gives_the_logits_of_a_plain_forward_with_its_mask(
    monkeypatch: pytest.MonkeyPatch, method: str, block_size: int
) -> None:
    decoded = decode_banded(monkeypatch, method, block_size=block_size, max_live_rows=2)
    for row, sequence, logprobs in zip(ROWS, decoded.sequences, decoded.logprobs, strict=True):
        torch.testing.assert_close(logprobs, banded_logprobs(row, sequence), atol=1e-5, rtol=0)
    assert ids(decoded) != [plain_ids(1.0)[row] for row in ROWS]  # the band is seen


@pytest.mark.parametrize("block_size", [1, 4, 8])
def test_self_speculation_is_exact_with_a_band(monkeypatch: pytest.MonkeyPatch, block_size: int) -> None:
    expected = decode_banded(monkeypatch, "ar")
    actual = decode_banded(monkeypatch, "self_spec", block_size=block_size, max_live_rows=2)
    assert ids(actual) == ids(expected)
    assert 0 < actual.stats.rows.accepted_drafts < actual.stats.rows.tested


def test_a_band_as_long_as_the_response_is_the_full_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    decoded = decode_banded(monkeypatch, "self_spec", last=1000)
    assert ids(decoded) == [plain_ids(1.0)[row] for row in ROWS]


def test_what_a_policy_is_told() -> None:
    """Own places, last places that may be seen, and the lengths of the prompts."""
    model, _ = varied_policy()
    told: list[tuple[Tensor, ...]] = []

    def spying(*args: Tensor) -> Tensor:
        told.append(args)
        return full_visibility(*args)

    with torch.no_grad():
        prefix = Prompts(make_inputs([1, 0]), model.device).prefill(model, [0, 1], spying)
        prompt, *_ = (args[3].flatten().tolist() for args in told)
        cache = RaggedCache(2, 400, model.device, visibility=spying)
        cache.write_rows(torch.arange(2), prefix.cache, torch.arange(2))
        cache.longest = prefix.cache.longest
        rows = Rows.empty(cache, idle_index=2)
        told.clear()
        window = torch.full((2, 3), mask_id())
        cache.reserve(4)
        draft_forward(model, rows, window)
        causal_forward(model, rows, window, start=1)
    lengths = cache.lengths_L.tolist()
    assert prompt == [length + 1 for length in lengths] == make_inputs([1, 0])["attention_mask"].sum(1).tolist()
    draft, verify = told
    for row, length in enumerate(lengths):
        assert draft[1][row].flatten().tolist() == [length, length + 1, length + 2]
        assert draft[2][row].flatten().tolist() == [length, length + 2, length + 2]
        assert verify[1][row].flatten().tolist() == [length + 1, length + 2, length + 3]
        assert verify[2][row].flatten().tolist() == verify[1][row].flatten().tolist()
        assert draft[3][row].item() == verify[3][row].item() == length + 1
    assert draft[0].tolist() == verify[0].tolist() == list(range(max(lengths) + 4))


def test_the_slow_reference_knows_the_full_mask() -> None:
    """With a band that covers everything, it is the plain forward of transformers."""
    sequence = torch.tensor(plain_ids(1.0)[1])
    logits = full_forward(1, sequence).logits[0, -len(sequence) - 1 : -1]
    expected = logits.log_softmax(-1).gather(1, sequence[:, None])[:, 0]
    torch.testing.assert_close(banded_logprobs(1, sequence, last=1000), expected, atol=1e-5, rtol=0)
