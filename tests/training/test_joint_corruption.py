"""Blocks, masks and targets: what is drawn, and how often.

Shapes: R tokens of a response.
"""

from __future__ import annotations

import math

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gravity_rl.joint.corruption import (
    Corruption,
    corrupted_streams,
    draw_corruption,
    is_target,
    mask_share,
)

LENGTHS, BLOCKS, SEEDS = st.integers(1, 40), st.integers(1, 9), st.integers(0, 2**32)


def draw(length: int, block_size: int, schedule: str = "uniform", *, phase: bool = False, seed: int = 0) -> Corruption:
    generator = torch.Generator().manual_seed(seed)
    return draw_corruption(length, block_size, schedule, random_phase=phase, generator=generator)


@settings(deadline=None)
@given(length=LENGTHS, block_size=BLOCKS, phase=st.booleans(), seed=SEEDS, schedule=st.sampled_from(["uniform", "all"]))
def test_every_token_is_a_target_in_exactly_one_stream(
    length: int, block_size: int, phase: bool, seed: int, schedule: str
) -> None:
    corruption = draw(length, block_size, schedule, phase=phase, seed=seed)
    streams = corrupted_streams(corruption)
    assert 1 <= len(streams) <= 2
    assert torch.stack(streams).sum(0).tolist() == [1] * length, "each token is masked in exactly one stream"
    targets = torch.stack([is_target(masked, corruption.block) for masked in streams])
    assert targets.sum(0).tolist() == [1] * length
    assert all(bool(masked.any()) for masked in streams)


@settings(deadline=None)
@given(length=LENGTHS, block_size=BLOCKS, phase=st.booleans(), seed=SEEDS)
def test_targets_and_shares_are_those_of_the_predicting_position(
    length: int, block_size: int, phase: bool, seed: int
) -> None:
    corruption = draw(length, block_size, phase=phase, seed=seed)
    block = corruption.block.tolist()
    for masked in corrupted_streams(corruption):
        targets = is_target(masked, corruption.block).tolist()
        shares = mask_share(masked, corruption.block).tolist()
        for token in range(length):
            predictor = max(token - 1, 0)
            within = token == 0 or block[predictor] == block[token]
            assert targets[token] == bool(masked[token if within else predictor])
            members = [bool(masked[index]) for index in range(length) if block[index] == block[predictor]]
            assert math.isclose(shares[token], sum(members) / len(members), abs_tol=1e-6)
            assert not targets[token] or shares[token] > 0


@settings(deadline=None)
@given(length=LENGTHS, block_size=BLOCKS, seed=SEEDS)
def test_blocks_start_at_multiples_of_the_block_size_or_at_a_phase(length: int, block_size: int, seed: int) -> None:
    assert draw(length, block_size, seed=seed).block.tolist() == [index // block_size for index in range(length)]
    block = draw(length, block_size, phase=True, seed=seed).block.tolist()
    first = block.count(0)
    assert 1 <= first <= block_size
    assert block == [0] * first + [1 + index // block_size for index in range(length - first)]


def test_the_phase_is_uniform() -> None:
    sizes = torch.tensor([int((draw(8, 8, phase=True, seed=seed).block == 0).sum()) for seed in range(4000)])
    counts = torch.bincount(sizes, minlength=9)
    assert counts[0] == 0
    assert float((counts[1:] / 4000 - 1 / 8).abs().max()) < 0.03  # 6 standard deviations


def test_the_ratio_is_uniform_for_each_block() -> None:
    """With t ~ U(0, 1) and independent tokens, the number of masks in a block is uniform on 0 ... B."""
    blocks, size = 20_000, 16
    masked = draw(blocks * size, size).masked.view(blocks, size)
    counts = torch.bincount(masked.sum(1), minlength=size + 1)
    cumulative = counts.cumsum(0) / blocks
    expected = torch.arange(1, size + 2) / (size + 1)
    assert float((cumulative - expected).abs().max()) < 0.019  # Dvoretzky-Kiefer-Wolfowitz at 1e-6


def test_tokens_are_independent_given_the_ratio_and_blocks_of_each_other() -> None:
    blocks, size = 20_000, 6
    masked = draw(blocks * size, size, seed=1).masked.view(blocks, size).float()
    pairs = masked.T @ masked / blocks  # E[t²] = 1/3 for every two tokens of a block
    off_diagonal = pairs[~torch.eye(size, dtype=torch.bool)]
    assert float((off_diagonal - 1 / 3).abs().max()) < 0.02  # 6 standard deviations
    assert float((pairs.diagonal() - 1 / 2).abs().max()) < 0.022
    neighbours = masked[:-1].T @ masked[1:] / (blocks - 1)  # E[t]² = 1/4 across blocks
    assert float((neighbours - 1 / 4).abs().max()) < 0.02


def test_the_all_schedule_masks_everything_in_one_stream() -> None:
    corruption = draw(10, 4, "all", seed=3)
    (masked,) = corrupted_streams(corruption)
    assert bool(masked.all())
    assert bool(is_target(masked, corruption.block).all())
    assert mask_share(masked, corruption.block).tolist() == [1.0] * 10


def test_a_draw_follows_its_generator() -> None:
    first, again, other = (draw(64, 8, phase=True, seed=seed) for seed in (1, 1, 2))
    assert first.masked.equal(again.masked)
    assert first.block.equal(again.block)
    assert not first.masked.equal(other.masked)
