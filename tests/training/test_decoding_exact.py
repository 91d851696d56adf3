"""Self-speculative decoding writes what plain decoding writes, whatever the window and the batch."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from decoding_helpers import (
    banned_ids,
    drafter,
    eos_id,
    ids,
    make_inputs,
    plain,
    plain_ids,
    reference_logprobs,
    run,
    use_windows,
    varied_policy,
)

from gravity_rl.decoding import generate

BATCHES = {"one": [1], "ragged": [0, 1, 2, 3, 4, 5]}


@pytest.mark.parametrize("batch", list(BATCHES))
@pytest.mark.parametrize("temperature", [0.0, 0.25, 1.0])
@pytest.mark.parametrize("block_size", [1, 3, 8, 16])
def test_same_ids_and_logprobs_as_ar(batch: str, temperature: float, block_size: int) -> None:
    expected = plain(temperature)
    actual = run(BATCHES[batch], "self_spec", temperature=temperature, block_size=block_size)
    assert ids(actual) == [ids(expected)[row] for row in BATCHES[batch]]
    for row, logprobs in zip(BATCHES[batch], actual.logprobs, strict=True):
        torch.testing.assert_close(logprobs, expected.logprobs[row], atol=1e-5, rtol=0)
    if batch == "ragged":  # both paths carry weight: some drafts are accepted, some rejected
        assert 0 < actual.stats.rows.accepted_drafts < actual.stats.rows.tested <= actual.stats.rows.drafted
        assert min(len(set(sequence)) for sequence in ids(actual)) > 5


@pytest.mark.parametrize("batch", list(BATCHES))
def test_greedy_equals_transformers(batch: str) -> None:
    inputs = make_inputs(BATCHES[batch])
    generated = varied_policy()[0].generate(
        **inputs, do_sample=False, suppress_tokens=banned_ids(), max_new_tokens=40, eos_token_id=eos_id()
    )
    for place, row in enumerate(BATCHES[batch]):
        sequence = plain_ids(0.0)[row]
        assert generated[place, inputs["input_ids"].shape[1] :][: len(sequence)].tolist() == sequence


@pytest.mark.parametrize("method", ["ar", "self_spec"])
@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0])
def test_logprobs_are_those_of_a_plain_forward_over_the_whole_vocabulary(method: str, temperature: float) -> None:
    rows = [0, 1, 3]
    decoded = run(rows, method, temperature=temperature, block_size=5)
    for row, sequence, logprobs in zip(rows, decoded.sequences, decoded.logprobs, strict=True):
        assert logprobs.dtype == torch.float32
        torch.testing.assert_close(logprobs, reference_logprobs(row, sequence, temperature), atol=1e-5, rtol=0)


@pytest.mark.parametrize("method", ["ar", "self_spec"])
def test_a_row_does_not_depend_on_its_batch(method: str) -> None:
    whole = plain(1.0) if method == "ar" else run([0, 1, 2, 3, 4, 5], method, block_size=4)
    shuffled = run([4, 2, 5, 0], method, block_size=4)
    assert ids(shuffled) == [ids(whole)[row] for row in (4, 2, 5, 0)]
    assert shuffled.row_stats == [whole.row_stats[row] for row in (4, 2, 5, 0)]
    assert ids(run([3], method, block_size=4)) == [ids(whole)[3]]


def test_row_ids_and_seed_choose_the_noise() -> None:
    same = run([1, 1, 1], "self_spec", row_ids=[7, 7, 8])
    assert ids(same)[0] == ids(same)[1] != ids(same)[2]
    assert ids(run([1], "self_spec", row_ids=[8])) == [ids(same)[2]]
    assert ids(run([1], "self_spec", row_ids=[8], seed=1)) != [ids(same)[2]]
    by_default = ids(run([1, 1], "self_spec", row_ids=None))
    assert by_default[1] == plain_ids(1.0)[1]  # rows are numbered from 0
    assert by_default[0] != by_default[1]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_banned_tokens_are_never_chosen(temperature: float) -> None:
    free = plain_ids(temperature)[:3]
    often = {token for sequence in free for token in sequence[:20]} - {eos_id()}
    banned = sorted(often)[::2]
    one_by_one, drafted = (
        ids(run([0, 1, 2], method, temperature=temperature, banned_token_ids=banned)) for method in ("ar", "self_spec")
    )
    assert one_by_one == drafted
    assert one_by_one != free
    assert not {token for sequence in one_by_one for token in sequence} & set(banned)


@pytest.mark.parametrize("block_size", [1, 3, 8])
def test_several_eos_tokens(block_size: int) -> None:
    free = plain_ids(1.0, endless=True)[:4]
    ends = [free[0][30], free[1][5], free[2][12]]
    expected = [
        sequence[: next((i + 1 for i, token in enumerate(sequence) if token in ends), len(sequence))]
        for sequence in free
    ]
    assert len({len(sequence) for sequence in expected}) > 1
    for method in ("ar", "self_spec"):
        assert ids(run([0, 1, 2, 3], method, eos_token_ids=ends, block_size=block_size)) == expected


@pytest.mark.parametrize("limit", [1, 2, 3, 7, 10, 11])
def test_limits_inside_a_window(limit: int) -> None:
    free = plain_ids(1.0)[:3]
    decoded = run([0, 1, 2], "self_spec", block_size=8, max_new_tokens=limit)
    assert ids(decoded) == [sequence[:limit] for sequence in free]
    assert [len(logprobs) for logprobs in decoded.logprobs] == [len(sequence) for sequence in ids(decoded)]


def test_prompt_of_one_token_without_image() -> None:
    token = varied_policy()[1].tokenizer.convert_tokens_to_ids("a")
    inputs = {
        "input_ids": torch.tensor([[token]]),
        "attention_mask": torch.ones(1, 1, dtype=torch.long),
        "mm_token_type_ids": torch.zeros(1, 1, dtype=torch.long),
    }
    settings: dict[str, Any] = {"max_new_tokens": 20, "eos_token_ids": [], "drafter": drafter(), "temperature": 0}
    one_by_one = ids(generate(varied_policy()[0], inputs, method="ar", **settings))
    drafted = ids(generate(varied_policy()[0], inputs, method="self_spec", **settings))
    generated = varied_policy()[0].generate(
        input_ids=inputs["input_ids"], do_sample=False, max_new_tokens=20, eos_token_id=[]
    )
    assert one_by_one == drafted == [generated[0, 1:].tolist()]


def test_steps_may_change_every_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows of any size and plain steps in turn: what a rule that follows the live batch would do."""
    windows = [3, 0, 8, 1, 0, 0, 5]
    policy = use_windows(monkeypatch, lambda at, live: windows[at % 7], largest=8)
    decoded = run(BATCHES["ragged"], "self_spec")
    assert ids(decoded) == plain_ids(1.0)
    for stats, sequence in zip(decoded.row_stats, ids(decoded), strict=True):
        assert stats.tokens == len(sequence)
        assert stats.ar_forwards > 0
        assert stats.draft_forwards > 0
    assert [choice.block_size for choice in decoded.stats.choices] == [window for window, _ in policy.chosen]


def test_eager_attention_takes_the_same_masks() -> None:
    model, _ = varied_policy()
    expected = [plain_ids(1.0)[row] for row in (0, 3, 5)]
    model.set_attn_implementation("eager")
    try:
        for method in ("ar", "self_spec"):
            assert ids(run([0, 3, 5], method, block_size=4)) == expected
    finally:
        model.set_attn_implementation("sdpa")


@pytest.mark.parametrize("method", ["ar", "self_spec"])
@pytest.mark.parametrize("how", ["weights", "autocast"])
def test_bf16(method: str, how: str) -> None:
    """No claim of equal tokens, which near-ties could break; log-probabilities are fp32 and those of the tokens."""
    model, _ = varied_policy()
    with torch.autocast("cpu", torch.bfloat16, enabled=how == "autocast"):
        low = copy.deepcopy(model).bfloat16() if how == "weights" else model
        decoded = run([0, 3], method, model=low)
    for row, sequence, logprobs in zip((0, 3), decoded.sequences, decoded.logprobs, strict=True):
        assert logprobs.dtype == torch.float32
        torch.testing.assert_close(logprobs, reference_logprobs(row, sequence, 1.0), atol=0.3, rtol=0)
