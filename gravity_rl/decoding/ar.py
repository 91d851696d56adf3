"""One step of plain autoregressive decoding: one forward, one token for every live row.

Shapes: N live rows.
"""

from __future__ import annotations

import torch
from transformers import GlmOcrForConditionalGeneration

from gravity_rl.decoding.loop import Proposal
from gravity_rl.decoding.rows import LiveRows, causal_forward
from gravity_rl.decoding.sampling import Sampler


def ar_step(model: GlmOcrForConditionalGeneration, rows: LiveRows, sampler: Sampler) -> Proposal:
    """Feed the boundary tokens; the logits give the next token of each row."""
    logits_N1V = causal_forward(model, rows, rows.boundary_N[:, None])
    tokens_N1 = sampler.pick(logits_N1V, sampler.noise(rows, 1))
    return Proposal(
        tokens_NK=tokens_N1,
        logprobs_NK=sampler.logprobs(logits_N1V, tokens_N1),
        count_N=torch.ones_like(rows.boundary_N),
        drafted=False,
    )
