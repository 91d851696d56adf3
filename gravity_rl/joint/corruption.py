"""The random part of joint training: blocks, masks, and which predictions they make targets.

The response is cut into blocks of B tokens. For each block t ~ U(0, 1) is drawn; the first corrupted stream masks every
token with probability t, the second exactly the others (paper section 2), so every response token is the target of
exactly one stream. Both paths predict the next token, at masks too, so what counts is whether the *target* is hidden
from the position that predicts it: supervising "the input is masked" would show it.

Shapes: R tokens of the response.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

MASK_SCHEDULES = ("uniform", "all")


class Corruption(NamedTuple):
    """How a response of R tokens is corrupted.

    Attributes:
        block: (R,) int64, number of each token's block.
        masked: (R,) bool, the tokens that the first corrupted stream masks; the second masks the others.
    """

    block: Tensor
    masked: Tensor


def draw_corruption(
    length: int, block_size: int, schedule: str, *, random_phase: bool, generator: torch.Generator
) -> Corruption:
    """Draw blocks and masks of a response.

    Args:
        length: tokens of the response, the appended end tokens included.
        block_size: tokens of a block (B).
        schedule: ``uniform`` (t ~ U(0, 1) for each block) or ``all`` (t = 1: one stream, masked entirely).
        random_phase: let the first block be shorter by a random number of tokens, so that drafting also works in
            windows that do not start at a multiple of B.
        generator: source of all randomness.
    """
    phase = int(torch.randint(block_size, (), generator=generator)) if random_phase else 0
    block = (torch.arange(length) + phase) // block_size
    if schedule == "all":
        return Corruption(block, torch.ones(length, dtype=torch.bool))
    ratio = torch.rand(int(block[-1]) + 1, generator=generator)
    return Corruption(block, torch.rand(length, generator=generator) < ratio[block])


def corrupted_streams(corruption: Corruption) -> list[Tensor]:
    """The mask (R,) of each corrupted stream; a stream without a mask has no targets and is left out."""
    return [masked for masked in (corruption.masked, ~corruption.masked) if bool(masked.any())]


def is_target(masked: Tensor, block: Tensor) -> Tensor:
    """Which tokens (R,) a corrupted stream is trained to predict from the position before them.

    A token whose predecessor lies in its own block is hidden if it is masked. The first token of a block is predicted
    from the last position of the block before, which never sees it; it is a target where that position is masked, as
    the last mask of a drafting window is. The first response token is predicted from the prefix.

    Args:
        masked: (R,) bool, mask of the stream.
        block: (R,) block numbers.
    """
    starts_block = torch.zeros_like(masked)
    starts_block[1:] = block[1:] != block[:-1]
    return torch.where(starts_block, masked.roll(1), masked)


def mask_share(masked: Tensor, block: Tensor) -> Tensor:
    """Share of masked tokens in the block that each prediction (R,) is made from; the first token's own block."""
    share = torch.zeros(int(block[-1]) + 1).index_add_(0, block, masked.float()) / torch.bincount(block)
    predictor = torch.cat([block[:1], block[:-1]])
    return share[predictor]
