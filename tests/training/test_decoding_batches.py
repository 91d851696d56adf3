"""What a row writes does not depend on its batch: chunks, refills, order, equal prompts, windows of any kind.

``pytest -m nightly tests/training/test_decoding_batches.py`` tries a thousand random batches.
"""

from __future__ import annotations

import random
from functools import cache
from typing import Any

import pytest
import torch
from decoding_helpers import (
    ROWS,
    banned_ids,
    drafter,
    eos_id,
    ids,
    make_inputs,
    run,
    use_windows,
    varied_policy,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from gravity_rl.decoding import CostModel, Decoded, generate

RULES: list[dict[str, Any]] = [{}, {"top_p": 0.8}, {"top_k": 6}, {"min_p": 0.1, "top_k": 20}]
TEMPERATURES = [0.0, 0.7, 1.0, 1.5]


COPIES = 2  # rows of each prompt, with noise of their own


@cache
def plain_rows(temperature: float, rule: int) -> dict[int, tuple[list[int], Tensor]]:
    """Rows by id, written one token a forward and up to the limit, whatever the end tokens."""
    row_ids = [100 * copy + row for copy in range(COPIES) for row in range(len(ROWS))]
    decoded = run(
        [row_id % 100 for row_id in row_ids], "ar", row_ids=row_ids, temperature=temperature, eos_token_ids=[],
        banned_token_ids=banned_ids(), **RULES[rule],
    )  # fmt: skip
    return dict(zip(row_ids, zip(ids(decoded), decoded.logprobs, strict=True), strict=True))


def expected_row(row_id: int, ends: int = 1, temperature: float = 1.0, rule: int = 0) -> tuple[list[int], Tensor]:
    """What the row writes, cut behind the first of these end tokens."""
    sequence, logprobs = plain_rows(temperature, rule)[row_id]
    stop = next((at + 1 for at, token in enumerate(sequence) if token in several_ends()[:ends]), 40)
    return sequence[:stop], logprobs[:stop]


def several_ends() -> list[int]:
    """End tokens that come up often, so that lengths are ragged."""
    return [eos_id(), 60, 90, 120, 37]


def check(decoded: Decoded, row_ids: list[int], limit: int = 40, **key: Any) -> None:
    for place, row_id in enumerate(row_ids):
        expected, logprobs = expected_row(row_id, **key)
        assert decoded.sequences[place].tolist() == expected[:limit]
        torch.testing.assert_close(decoded.logprobs[place], logprobs[:limit], atol=1e-5, rtol=0)
        assert decoded.row_stats[place].tokens == len(expected[:limit])


BATCHES = given(
    seed=st.integers(0, 10**9),
    row_ids=st.lists(
        st.builds(lambda copy, row: 100 * copy + row, st.integers(0, COPIES - 1), st.integers(0, len(ROWS) - 1)),
        min_size=1,
        max_size=9,
    ),
    temperature=st.sampled_from(TEMPERATURES),
    rule=st.integers(0, len(RULES) - 1),
    ends=st.integers(1, 5),
    limit=st.one_of(st.integers(1, 12), st.just(40)),
    max_live_rows=st.one_of(st.none(), st.integers(1, 10)),
    kind=st.sampled_from(["ar", "fixed", "auto", "random"]),
)


def check_batch(
    seed: int,
    row_ids: list[int],
    temperature: float,
    rule: int,
    ends: int,
    limit: int,
    max_live_rows: int | None,
    kind: str,
) -> None:
    rng = random.Random(seed)
    rows = [row_id % 100 for row_id in row_ids]
    choices: dict[str, dict[str, Any]] = {
        "fixed": {"block_size": rng.randint(1, 12)},
        "auto": {"block_size": "auto", "cost_model": CostModel()},
    }
    with pytest.MonkeyPatch.context() as monkeypatch:
        if kind == "random":
            use_windows(monkeypatch, lambda at, live: rng.choice([0, 1, 2, 3, 5, 8]), largest=8)
        decoded = run(
            rows, "ar" if kind == "ar" else "self_spec", row_ids=row_ids, max_new_tokens=limit, temperature=temperature,
            eos_token_ids=several_ends()[:ends], max_live_rows=max_live_rows, **choices.get(kind, {}), **RULES[rule],
        )  # fmt: skip
    check(decoded, row_ids, limit, temperature=temperature, rule=rule, ends=ends)
    assert decoded.stats.prefills == len(set(rows))


@settings(max_examples=25, deadline=None, derandomize=True)
@BATCHES
def test_any_batch_writes_what_its_rows_write_alone(**batch: Any) -> None:
    check_batch(**batch)


@pytest.mark.nightly
@settings(max_examples=1000, deadline=None)
@BATCHES
def test_a_thousand_batches(**batch: Any) -> None:
    check_batch(**batch)


@cache
def sixty_four(method: str, block_size: Any) -> Decoded:
    return run(
        [row % len(ROWS) for row in range(64)], method, row_ids=range(64), block_size=block_size,
        eos_token_ids=several_ends(),
    )  # fmt: skip


@pytest.mark.parametrize("block_size", [1, 4, 16, "auto"])
def test_sixty_four_rows_of_ragged_prompts_and_lengths(block_size: Any) -> None:
    expected, actual = sixty_four("ar", 1), sixty_four("self_spec", block_size)
    assert ids(actual) == ids(expected)
    for logprobs, others in zip(actual.logprobs, expected.logprobs, strict=True):
        torch.testing.assert_close(logprobs, others, atol=1e-5, rtol=0)
    assert len({len(sequence) for sequence in actual.sequences}) > 8
    assert actual.stats.rows.rounds < 64 * actual.stats.rounds  # rows leave when they have ended
    assert actual.stats.prefills == len(ROWS)


@pytest.mark.parametrize("row", [0, 17, 63])
def test_a_row_of_sixty_four_by_itself(row: int) -> None:
    alone = run([row % len(ROWS)], "ar", row_ids=[row], eos_token_ids=several_ends())
    assert ids(alone)[0] == ids(sixty_four("ar", 1))[row]


@pytest.mark.parametrize("max_live_rows", [1, 2, 5, 6, 100])
def test_chunks_and_refills(max_live_rows: int) -> None:
    row_ids = [5, 100, 3, 1, 0, 104, 2, 103, 101]
    rows = [row_id % 100 for row_id in row_ids]
    decoded = run(rows, "self_spec", row_ids=row_ids, max_live_rows=max_live_rows, eos_token_ids=several_ends())
    check(decoded, row_ids, ends=5)
    assert all(choice.live_rows <= max_live_rows for choice in decoded.stats.choices)


def test_row_counts_do_not_depend_on_chunks() -> None:
    whole, parts = (run(range(6), "self_spec", max_live_rows=live) for live in (None, 2))
    assert whole.row_stats == parts.row_stats
    assert whole.stats.rows == parts.stats.rows
    assert whole.stats.rounds < parts.stats.rounds


def test_sub_batches_in_any_order() -> None:
    whole = run(range(6), "self_spec")
    for part in ([5], [3, 1], [4, 0, 2], [2, 5, 1, 0]):
        decoded = run(part, "self_spec")
        assert ids(decoded) == [ids(whole)[row] for row in part]
        assert decoded.row_stats == [whole.row_stats[row] for row in part]


def test_rows_that_finish_in_the_first_round() -> None:
    """The first tokens of two rows are end tokens: they are gone before the second round."""
    free = [plain_rows(1.0, 0)[row][0] for row in range(4)]
    ends = [free[1][0], free[2][0]]
    decoded = run(range(4), "self_spec", eos_token_ids=ends, block_size=5)
    for row, sequence in enumerate(ids(decoded)):
        stop = next((at for at, token in enumerate(free[row]) if token in ends), 39)
        assert sequence == free[row][: stop + 1]
    assert [len(sequence) for sequence in ids(decoded)][1:3] == [1, 1]
    assert decoded.row_stats[1].rounds == decoded.row_stats[2].rounds == 1
    assert decoded.row_stats[1].accepted == [1, 0, 0, 0, 0, 0]
    assert all(stats.rounds > 1 for stats in (decoded.row_stats[0], decoded.row_stats[3]))


def test_every_row_finishes_in_the_first_round() -> None:
    first = [plain_rows(1.0, 0)[row][0][0] for row in range(6)]
    decoded = run(range(6), "self_spec", eos_token_ids=first, max_live_rows=2)
    assert ids(decoded) == [[token] for token in first]
    assert decoded.stats.rows.rounds == 6
    assert decoded.stats.rounds == 3


@pytest.mark.parametrize("max_live_rows", [None, 1, 2, 3])
def test_prompts_of_one_token_have_no_states(max_live_rows: int | None) -> None:
    """Nothing to prefill for any of the rows, which start from empty slots and refill used ones."""
    inputs = {
        "input_ids": torch.tensor([[60], [61], [60], [61], [60]]),
        "attention_mask": torch.ones(5, 1, dtype=torch.long),
        "mm_token_type_ids": torch.zeros(5, 1, dtype=torch.long),
    }
    settings: dict[str, Any] = {"max_new_tokens": 20, "eos_token_ids": [37], "drafter": drafter(), "block_size": 3}
    model, _ = varied_policy()
    decoded = generate(model, inputs, method="self_spec", max_live_rows=max_live_rows, **settings)
    assert ids(decoded) == ids(generate(model, inputs, method="ar", **settings))
    assert decoded.stats.prefills == 2
    one = {name: tensor[1:2] for name, tensor in inputs.items()}
    assert ids(generate(model, one, method="ar", row_ids=[3], **settings))[0] == ids(decoded)[3]


@pytest.mark.parametrize("method", ["ar", "self_spec"])
def test_text_prompts_beside_prompts_with_images(method: str) -> None:
    """A prompt without an image, down to one token, in the middle of a batch."""
    model, processor = varied_policy()
    inputs = make_inputs([0, 1, 0])
    token = processor.tokenizer.convert_tokens_to_ids("a")
    row = {"input_ids": token, "attention_mask": 1, "mm_token_type_ids": 0}
    for name, value in row.items():
        inputs[name][1] = 0
        inputs[name][1, -1] = value
    keep = int(inputs["image_grid_thw"][0].prod())
    inputs["pixel_values"] = torch.cat([inputs["pixel_values"][:keep], inputs["pixel_values"][-keep:]])
    inputs["image_grid_thw"] = inputs["image_grid_thw"][[0, 2]]
    settings: dict[str, Any] = {
        "max_new_tokens": 30, "eos_token_ids": [eos_id()], "banned_token_ids": banned_ids(), "drafter": drafter(),
        "block_size": 4,
    }  # fmt: skip
    decoded = generate(model, inputs, method=method, row_ids=[0, 1, 100], **settings)
    alone = {name: torch.tensor([[value]]) for name, value in row.items()}
    assert ids(decoded)[1] == ids(generate(model, alone, method="ar", row_ids=[1], **settings))[0]
    assert ids(decoded)[0] == expected_row(0)[0][:30]
    assert ids(decoded)[2] == expected_row(100)[0][:30]
    assert decoded.stats.prefills == 2
