"""One step of plain autoregressive decoding: one forward, one token for every row.

Shapes: N slots of a round.
"""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import GlmOcrForConditionalGeneration

from gravity_rl.decoding.loop import Proposal
from gravity_rl.decoding.rows import Rows, causal_forward
from gravity_rl.decoding.sampling import Sampler


def ar_step(model: GlmOcrForConditionalGeneration, rows: Rows, sampler: Sampler, noise_LKV: Tensor | None) -> Proposal:
    """Feed the boundary tokens; the logits give the next token of each row."""
    logits_N1V = causal_forward(model, rows, rows.boundary_N[:, None])
    tokens_N1, logprobs_N1 = sampler.choose(logits_N1V, noise_LKV, rows.written_N[:, None])
    zeros_N = torch.zeros_like(rows.written_N)
    return Proposal(tokens_NK=tokens_N1, logprobs_NK=logprobs_N1, count_N=zeros_N + 1, agreed_N=zeros_N, block_size=0)
