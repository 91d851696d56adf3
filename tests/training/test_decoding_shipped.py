"""The shipped model that reads, whose drafter is trained: long accepted runs, rejections, and the trainer's own pass.

Drafts of an untrained model are hardly ever right where its samples are peaked; here most of them are.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import Crops
from decoding_helpers import ids, read, reader, reader_inputs, use_windows
from run_helpers import arguments
from transformers import GenerationConfig

from gravity_rl.config import parse_config
from gravity_rl.decoding import CostModel, Decoded
from gravity_rl.joint.drafter import BlockDiffusion
from gravity_rl.joint.tokens import decoding_tokens
from gravity_rl.recorder import RunDirectory
from gravity_rl.train import build_trainer

CROPS = [0, 1, 2, 3, 4, 6]
RULES: dict[str, dict[str, Any]] = {"all": {}, "top-p": {"top_p": 0.9}, "top-k": {"top_k": 3}, "min-p": {"min_p": 0.05}}


@cache
def plain(temperature: float, rule: str = "all") -> Decoded:
    return read(CROPS, "ar", temperature=temperature, **RULES[rule])


def assert_same(actual: Decoded, expected: Decoded) -> None:
    assert ids(actual) == ids(expected)
    for logprobs, others in zip(actual.logprobs, expected.logprobs, strict=True):
        torch.testing.assert_close(logprobs, others, atol=1e-5, rtol=0)


@pytest.mark.parametrize(("temperature", "rule", "block_size"), [
    (0.0, "all", 5), (0.0, "all", 16), (0.7, "all", 8), (1.0, "all", 1), (1.0, "all", 24),
     (1.0, "all", "auto"), (1.0, "top-p", 8), (1.0, "top-k", 8), (1.5, "all", 8),
    (1.5, "min-p", 16),
])  # fmt: skip
def test_same_ids_and_logprobs_as_ar(temperature: float, rule: str, block_size: Any) -> None:
    expected = plain(temperature, rule)
    actual = read(
        CROPS, "self_spec", temperature=temperature, block_size=block_size, cost_model=CostModel(), **RULES[rule]
    )
    assert_same(actual, expected)
    counts = actual.stats.rows
    assert 0 < counts.accepted_drafts < counts.tested  # accepted and rejected drafts both occur
    if temperature <= 1 and block_size != "auto":
        assert counts.accepted[block_size] > 0 or block_size > 8  # whole windows too
        assert actual.stats.rounds < expected.stats.rounds


@pytest.mark.parametrize("max_live_rows", [1, 4])
def test_chunks_and_windows_that_change(monkeypatch: pytest.MonkeyPatch, max_live_rows: int) -> None:
    expected = plain(1.0)
    windows = [8, 0, 16, 1, 0, 3]
    use_windows(
        monkeypatch, lambda at, live: windows[(at + live) % 6], largest=16, mask=reader()[1].tokenizer.mask_token_id
    )
    actual = read(CROPS, "self_spec", max_live_rows=max_live_rows)
    assert_same(actual, expected)
    assert actual.stats.ar_forwards > 0
    assert actual.stats.draft_forwards > 0


def test_completions_of_one_crop() -> None:
    expected, actual = (
        read([0] * 8, method, row_ids=range(8), block_size=8, temperature=1.5, top_k=20, max_live_rows=live)
        for method, live in (("ar", None), ("self_spec", 3))
    )
    assert_same(actual, expected)
    assert actual.stats.prefills == 1
    assert len({tuple(sequence) for sequence in ids(actual)}) > 4


def test_the_drafter_of_the_folder_is_used() -> None:
    """Its mask token drafts well, and "auto" goes up to its block size."""
    stats = read(CROPS, "self_spec", block_size=16, temperature=0.0).stats.rows
    other = BlockDiffusion(bd_size=16, mask_id=60, ar_loss_weight=1.0, mask_schedule="uniform")
    without = read(CROPS, "self_spec", block_size=16, temperature=0.0, drafter=other).stats.rows
    assert stats.acceptance > 2 * without.acceptance
    choices = read(CROPS, "self_spec", cost_model=CostModel(), temperature=0.0).stats.choices
    assert {choice.block_size for choice in choices} <= {0, 2, 4, 8, 16}


def test_greedy_equals_transformers() -> None:
    model, processor = reader()
    ends, banned = decoding_tokens(model, processor, processor.tokenizer.mask_token_id)
    inputs = reader_inputs(CROPS)
    config = GenerationConfig(
        do_sample=False, max_new_tokens=32, eos_token_id=ends, pad_token_id=processor.tokenizer.pad_token_id,
        suppress_tokens=banned,
    )  # fmt: skip
    with torch.no_grad():
        generated = model.generate(**inputs, generation_config=config)[:, inputs["input_ids"].shape[1] :]
    for row, sequence in enumerate(ids(plain(0.0))):
        assert generated[row, : len(sequence)].tolist() == sequence


def test_eager_attention_takes_the_same_masks() -> None:
    model, _ = reader()
    model.set_attn_implementation("eager")
    try:
        expected, actual = (read(CROPS, method, block_size=8) for method in ("ar", "self_spec"))
    finally:
        model.set_attn_implementation("sdpa")
    assert_same(actual, expected)
    assert ids(actual) == ids(plain(1.0))


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_logprobs_are_those_of_the_trainer(tmp_path: Path, crops: Crops, temperature: float) -> None:
    """``_get_per_token_logps_and_entropies`` of TRL, on the padded batch that the trainer makes."""
    argv = arguments(Path("shipped:tiny-reader"), crops.train, tmp_path / "run", temperature=temperature)
    trainer = build_trainer(parse_config(argv), RunDirectory(tmp_path / "run"))[0]
    decoded = read(CROPS, "self_spec", block_size=8, temperature=temperature)
    inputs = reader_inputs(CROPS)
    lengths = torch.tensor([len(sequence) for sequence in decoded.sequences])
    pad = reader()[1].tokenizer.pad_token_id
    responses = torch.nn.utils.rnn.pad_sequence(decoded.sequences, batch_first=True, padding_value=pad)
    present = torch.arange(responses.shape[1]) < lengths[:, None]
    with torch.no_grad():
        logps, _, _ = trainer._get_per_token_logps_and_entropies(
            trainer.model.eval(),
            torch.cat([inputs["input_ids"], responses], 1),
            torch.cat([inputs["attention_mask"], present.long()], 1),
            responses.shape[1],
            pixel_values=inputs["pixel_values"],
            image_grid_thw=inputs["image_grid_thw"],
            num_images=[1] * len(CROPS),
            mm_token_type_ids=torch.cat([inputs["mm_token_type_ids"], torch.zeros_like(responses)], 1),
        )
    ours = torch.nn.utils.rnn.pad_sequence(decoded.logprobs, batch_first=True)
    torch.testing.assert_close(ours[present], logps[present], atol=1e-5, rtol=0)
    assert ours[present].min() < -0.5  # not only tokens that are certain
