"""Which token is chosen, and how probable the policy finds it.

Only what is chosen depends on the ban: reported log-probabilities are those of the whole vocabulary, as the trainer
recomputes them. Everything here looks at one position at a time; a rule that depends on earlier tokens (repetition
penalty, n-gram ban) would need each drafted position to see its own history, and has no place in this interface.

Shapes: N rows, Q positions, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gravity_rl.decoding.noise import gumbel_noise
from gravity_rl.decoding.rows import LiveRows


@dataclass(frozen=True)
class Sampler:
    """Greedy at temperature 0, else a sample by Gumbel noise.

    Args:
        temperature: T; logits are divided by it.
        seed: of the noise.
        banned_ids: (K,) ids that are never chosen.
        vocab_size: V.
    """

    temperature: float
    seed: int
    banned_ids: Tensor
    vocab_size: int

    def noise(self, rows: LiveRows, count: int) -> Tensor | None:
        """(N, Q, V) noise of the next Q = ``count`` response positions; None where choice is greedy."""
        if self.temperature == 0:
            return None
        positions_NQ = rows.written_N[:, None] + torch.arange(count, device=rows.written_N.device)
        return gumbel_noise(self.seed, rows.row_ids_N, positions_NQ, self.vocab_size)

    def pick(self, logits_NQV: Tensor, noise_NQV: Tensor | None) -> Tensor:
        """(N, Q) chosen ids."""
        scores_NQV = self._scaled(logits_NQV)
        if noise_NQV is not None:
            scores_NQV = scores_NQV + noise_NQV
        return scores_NQV.index_fill(-1, self.banned_ids, float("-inf")).argmax(-1)

    def logprobs(self, logits_NQV: Tensor, ids_NQ: Tensor) -> Tensor:
        """(N, Q) fp32 log-probabilities of ids under softmax(logits / T), or softmax(logits) at T = 0."""
        scores_NQV = self._scaled(logits_NQV)
        return scores_NQV.gather(-1, ids_NQ[..., None])[..., 0] - scores_NQV.logsumexp(-1)

    def _scaled(self, logits_NQV: Tensor) -> Tensor:
        return logits_NQV.float() / (self.temperature or 1.0)
