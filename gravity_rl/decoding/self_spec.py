"""One round of self-speculative decoding (arXiv:2609.26638): a draft forward, a verify forward, up to B + 2 tokens.

The mask positions of the draft forward look in both directions, so their states are no part of plain decoding. The
verify forward writes causal states over them, and nothing but those of committed tokens is kept: every token of the
output is the verifier's own choice. Draft and verifier share the noise of a position, which makes them agree more
often and leaves the output as it is.

Shapes: N slots of a round, B drafted tokens, W = B + 1, V vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import GlmOcrForConditionalGeneration

from gravity_rl.decoding.loop import Proposal
from gravity_rl.decoding.rows import Rows, causal_forward, draft_forward
from gravity_rl.decoding.sampling import Sampler


def self_spec_round(
    model: GlmOcrForConditionalGeneration,
    rows: Rows,
    sampler: Sampler,
    noise_LKV: Tensor | None,
    block_size: int,
    mask_id: int,
) -> Proposal:
    """Propose a0, the drafts that the verifier agrees with, and the verifier's token behind them."""
    positions_NW = rows.written_N[:, None] + torch.arange(block_size + 1, device=rows.written_N.device)
    draft_NWV = draft_logits(model, rows, block_size, mask_id)
    drafts_NW, draft_logprobs_NW = sampler.choose(draft_NWV, noise_LKV, positions_NW)  # a0, d1 … dB
    del draft_NWV  # logits of a full vocabulary are large: only one set of them is held
    verify_NWV = causal_forward(model, rows, drafts_NW, start=1)
    verified_NW, logprobs_NW = sampler.choose(verify_NWV, noise_LKV, positions_NW + 1)  # a1 … a(B+1)

    agreed_N = (drafts_NW[:, 1:] == verified_NW[:, :-1]).long().cumprod(1).sum(1)
    return Proposal(
        tokens_NK=torch.cat([drafts_NW[:, :1], verified_NW], 1),
        logprobs_NK=torch.cat([draft_logprobs_NW[:, :1], logprobs_NW], 1),
        count_N=agreed_N + 2,
        agreed_N=agreed_N,
        block_size=block_size,
    )


def draft_logits(model: GlmOcrForConditionalGeneration, rows: Rows, block_size: int, mask_id: int) -> Tensor:
    """(N, W, V) logits of a0, which are exactly those of AR decoding, and of the B drafts.

    Both paths use the shifted convention: a mask predicts the token behind its own position.
    """
    window_NW = rows.boundary_N.new_full((len(rows), block_size + 1), mask_id)
    window_NW[:, 0] = rows.boundary_N
    return draft_forward(model, rows, window_NW)
