"""What a round proposes, how much of it is committed, and where committed tokens are kept.

A step proposes tokens for every row; here they are cut at the first end-of-sequence token and at the length limit and
stored. Steps keep no state of their own, so each round may take another one. Everything stays on the device.

Shapes: R rows of the output, N slots of a round, K tokens of a proposal, B drafts of a round.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gravity_rl.decoding.rows import Rows
from gravity_rl.decoding.stats import DecodeStats


@dataclass(frozen=True)
class Proposal:
    """Tokens that a step proposes: the first ``count_N`` of each row are those of AR decoding."""

    tokens_NK: Tensor
    logprobs_NK: Tensor
    count_N: Tensor
    agreed_N: Tensor  # drafts that the verifier agreed with
    block_size: int  # B; 0 without drafts


@dataclass(frozen=True)
class Committed:
    """What became of a proposal."""

    drafts_N: Tensor  # drafts that were committed
    finished_N: Tensor  # bool, rows that have ended
    broken_N: Tensor  # bool, rows whose committed tokens have log-probabilities that are not finite


class Responses:
    """Responses of all rows in buffers on the device, with one row more for what idle slots write.

    Args:
        num_rows: R.
        max_new_tokens: length limit.
        max_block: the largest B. The buffers have room for a whole round behind the limit, so that a proposal is
            stored uncut; what was not committed is overwritten by the next one or cut at the end.
        device: of the buffers.
    """

    def __init__(self, num_rows: int, max_new_tokens: int, max_block: int, device: torch.device):
        self.num_rows = num_rows
        width = max_new_tokens + max_block + 2
        self.ids = torch.zeros(num_rows + 1, width, dtype=torch.long, device=device)
        self.logprobs = torch.zeros(num_rows + 1, width, dtype=torch.float32, device=device)
        self.lengths = torch.zeros(num_rows + 1, dtype=torch.long, device=device)
        #: AR steps, drafted and tested tokens of each row
        self.counts = torch.zeros(num_rows + 1, 3, dtype=torch.long, device=device)
        self.accepted = torch.zeros(num_rows + 1, max_block + 1, dtype=torch.long, device=device)  # histogram

    def store(self, rows: Rows, proposal: Proposal, count_N: Tensor) -> None:
        """Append the first ``count_N`` tokens of a proposal."""
        offsets_K = torch.arange(proposal.tokens_NK.shape[1], device=count_N.device)
        place = (rows.index_N[:, None], rows.written_N[:, None] + offsets_K)
        self.ids[place] = proposal.tokens_NK
        self.logprobs[place] = proposal.logprobs_NK
        self.lengths[rows.index_N] = rows.written_N + count_N
        if not proposal.block_size:
            self.counts[rows.index_N, 0] += 1
            return
        committed_N = torch.minimum(proposal.agreed_N, count_N - 1).clamp(min=0)
        rejected_N = (proposal.agreed_N < proposal.block_size) & (count_N == proposal.count_N)
        self.accepted[rows.index_N, committed_N] += 1
        self.counts[rows.index_N, 1] += proposal.block_size
        self.counts[rows.index_N, 2] += committed_N + rejected_N

    def stats(self) -> list[DecodeStats]:
        columns = (tensor[: self.num_rows].tolist() for tensor in (self.lengths, self.counts, self.accepted))
        return [
            DecodeStats(
                tokens=tokens,
                draft_forwards=sum(accepted),
                verify_forwards=sum(accepted),
                ar_forwards=ar_steps,
                drafted=drafted,
                accepted=accepted if any(accepted) else [],
                tested=tested,
            )
            for tokens, (ar_steps, drafted, tested), accepted in zip(*columns, strict=True)
        ]


def commit(rows: Rows, proposal: Proposal, responses: Responses, eos_ids: Tensor, max_new_tokens: int) -> Committed:
    """Store what a step proposed up to the end of each response, and advance the rows in place."""
    count_N, finished_N = _cut(rows, proposal, eos_ids, max_new_tokens)
    responses.store(rows, proposal, count_N)
    # The cache gains what was the boundary token and all committed tokens but the last, the next boundary.
    rows.lengths_N.add_(count_N)
    rows.written_N.add_(count_N)
    rows.boundary_N.copy_(proposal.tokens_NK.gather(1, (count_N - 1).clamp(min=0)[:, None])[:, 0])
    committed_NK = torch.arange(proposal.tokens_NK.shape[1], device=count_N.device) < count_N[:, None]
    return Committed(
        drafts_N=torch.minimum(proposal.agreed_N, count_N - 1).clamp(min=0),
        finished_N=finished_N,
        broken_N=(~proposal.logprobs_NK.isfinite() & committed_NK).any(1),
    )


def _cut(rows: Rows, proposal: Proposal, eos_ids: Tensor, max_new_tokens: int) -> tuple[Tensor, Tensor]:
    """How many of the proposed tokens each row commits (none if it is idle), and whether it ends with them."""
    is_end_NK = torch.isin(proposal.tokens_NK, eos_ids)
    ends_before_NK = is_end_NK.long().cumsum(1) - is_end_NK.long()
    until_end_N = (ends_before_NK == 0).sum(1)
    room_N = max_new_tokens - rows.written_N
    count_N = torch.minimum(torch.minimum(proposal.count_N, until_end_N), room_N)
    ended_N = is_end_NK.gather(1, (count_N - 1)[:, None])[:, 0]
    finished_N = (ended_N | (count_N == room_N)) & rows.live_N
    return count_N * rows.live_N, finished_N
