"""Repeats steps until every row has ended, and collects what they commit.

A step proposes tokens for every live row; here they are cut at the first end-of-sequence token and at the length
limit, stored, and finished rows leave the batch. Steps keep no state of their own, so a caller may choose another
one for each round. The host waits for the device once a round.

Shapes: R rows of the output, N live rows, K tokens of a proposal, B drafts of a round.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from gravity_rl.decoding.rows import LiveRows
from gravity_rl.decoding.stats import DecodeStats


@dataclass(frozen=True)
class Proposal:
    """Tokens that a step proposes: the first ``count_N`` of each row are those of AR decoding."""

    tokens_NK: Tensor
    logprobs_NK: Tensor
    count_N: Tensor
    drafted: bool  # all but the first and the last of them were drafts


class Responses:
    """Responses of all rows in buffers on the device.

    Args:
        num_rows: R.
        max_new_tokens: length limit.
        block_size: B, 0 without drafts. The buffers have room for a whole round behind the limit, so that a
            proposal is stored uncut; what was not committed is overwritten by the next one or cut at the end.
    """

    def __init__(self, num_rows: int, max_new_tokens: int, block_size: int, device: torch.device):
        width = max_new_tokens + block_size + 1
        self.ids = torch.zeros(num_rows, width, dtype=torch.long, device=device)
        self.logprobs = torch.zeros(num_rows, width, dtype=torch.float32, device=device)
        self.lengths_R = torch.zeros(num_rows, dtype=torch.long, device=device)
        self.ar_steps_R = torch.zeros(num_rows, dtype=torch.long, device=device)
        self.accepted = torch.zeros(num_rows, block_size + 1, dtype=torch.long, device=device)  # histogram (R, B + 1)

    def store(self, rows: LiveRows, proposal: Proposal, count_N: Tensor) -> None:
        """Append the first ``count_N`` tokens of a proposal."""
        offsets_K = torch.arange(proposal.tokens_NK.shape[1], device=count_N.device)
        place = (rows.index_N[:, None], rows.written_N[:, None] + offsets_K)
        self.ids[place] = proposal.tokens_NK
        self.logprobs[place] = proposal.logprobs_NK
        self.lengths_R[rows.index_N] = rows.written_N + count_N
        if proposal.drafted:
            drafts_N = torch.minimum(proposal.count_N - 2, count_N - 1)
            self.accepted[rows.index_N, drafts_N] += 1
        else:
            self.ar_steps_R[rows.index_N] += 1

    def stats(self) -> list[DecodeStats]:
        counts = zip(self.lengths_R.tolist(), self.ar_steps_R.tolist(), self.accepted.tolist(), strict=True)
        return [
            DecodeStats(
                tokens=tokens,
                draft_forwards=sum(accepted),
                verify_forwards=sum(accepted),
                ar_forwards=ar_steps,
                accepted=accepted if any(accepted) else [],
            )
            for tokens, ar_steps, accepted in counts
        ]


def decode(
    rows: LiveRows,
    step: Callable[[LiveRows], Proposal],
    responses: Responses,
    eos_ids: Tensor,
    max_new_tokens: int,
) -> None:
    """Extend all rows to an end-of-sequence token or ``max_new_tokens`` tokens; ``responses`` receives them."""
    while len(rows):
        proposal = step(rows)
        count_N, finished_N = _cut(rows, proposal, eos_ids, max_new_tokens)
        responses.store(rows, proposal, count_N)
        # The cache gains what was the boundary token and all committed tokens but the last, the next boundary.
        rows.cache.lengths_N = rows.cache.lengths_N + count_N
        rows.written_N = rows.written_N + count_N
        rows.boundary_N = proposal.tokens_NK.gather(1, (count_N - 1)[:, None])[:, 0]
        rows = _drop_finished(rows, finished_N)


def _cut(rows: LiveRows, proposal: Proposal, eos_ids: Tensor, max_new_tokens: int) -> tuple[Tensor, Tensor]:
    """How many of the proposed tokens each row commits, and whether it ends with them."""
    is_end_NK = torch.isin(proposal.tokens_NK, eos_ids)
    ends_before_NK = is_end_NK.long().cumsum(1) - is_end_NK.long()
    until_end_N = (ends_before_NK == 0).sum(1)
    room_N = max_new_tokens - rows.written_N
    count_N = torch.minimum(torch.minimum(proposal.count_N, until_end_N), room_N)
    ended_N = is_end_NK.gather(1, (count_N - 1)[:, None])[:, 0]
    return count_N, ended_N | (count_N == room_N)


def _drop_finished(rows: LiveRows, finished_N: Tensor) -> LiveRows:
    finished, lengths = torch.stack([finished_N.long(), rows.cache.lengths_N]).tolist()
    keep = [row for row, done in enumerate(finished) if not done]
    rows.cache.longest = max((lengths[row] for row in keep), default=0)
    if len(keep) == len(rows):
        return rows
    return rows.select(torch.tensor(keep, dtype=torch.long, device=finished_N.device))
