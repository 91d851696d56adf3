"""Which token is chosen, and how probable the policy finds it.

Only what is chosen depends on bans and on top-k, top-p and min-p: reported log-probabilities are those of the whole
vocabulary, as the trainer recomputes them. Everything here looks at one position at a time; a rule that depends on
earlier tokens (repetition penalty, n-gram ban) would need each drafted position to see its own history, and has no
place in this interface.

Shapes: N rows, Q positions, M = N·Q of them, m of these in a chunk, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

#: scores handled at once: bounds the fp32 temporaries of a large vocabulary
CHUNK = 1 << 24


@dataclass(frozen=True)
class Sampler:
    """Greedy at temperature 0, else a sample by Gumbel noise.

    Args:
        temperature: T; logits are divided by it.
        banned_ids: (K,) ids that are never chosen.
        top_p: keep the most probable tokens that together reach this probability; 1 keeps all.
        top_k: keep that many of the most probable tokens; 0 keeps all.
        min_p: keep tokens that are at least so probable, relative to the most probable one; 0 keeps all.
    """

    temperature: float
    banned_ids: Tensor
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0

    def choose(self, logits_NQV: Tensor, noise_LKV: Tensor | None, positions_NQ: Tensor) -> tuple[Tensor, Tensor]:
        """Chosen ids and their fp32 log-probabilities under softmax(logits / T), softmax(logits) at T = 0.

        Args:
            logits_NQV: (N, Q, V).
            noise_LKV: noise of position p of row n in ``[n, p % K]``; None where choice is greedy.
            positions_NQ: (N, Q) int64, index of each token within its response.

        Returns:
            (N, Q) int64 and (N, Q) fp32.
        """
        rows, width, vocab_size = logits_NQV.shape
        logits_MV = logits_NQV.reshape(-1, vocab_size)
        step = max(1, CHUNK // vocab_size)
        chosen = []
        for at in range(0, rows * width, step):
            noise_mV = None
            if noise_LKV is not None:
                within_m = torch.arange(at, min(at + step, rows * width), device=logits_MV.device)
                place_m = positions_NQ.reshape(-1)[at : at + step] % noise_LKV.shape[1]
                noise_mV = noise_LKV[within_m // width, place_m]
            chosen.append(self._choose(logits_MV[at : at + step], noise_mV))
        ids_M, logprobs_M = (torch.cat(parts) if len(chosen) > 1 else parts[0] for parts in zip(*chosen, strict=True))
        return ids_M.view(rows, width), logprobs_M.view(rows, width)

    def _choose(self, logits_mV: Tensor, noise_mV: Tensor | None) -> tuple[Tensor, Tensor]:
        scores_mV = logits_mV.float()
        if self.temperature not in (0.0, 1.0):
            scores_mV = scores_mV / self.temperature
        allowed_mV = self._restrict(scores_mV)
        ids_m = (allowed_mV if noise_mV is None else noise_mV.add_(allowed_mV)).argmax(-1)
        return ids_m, scores_mV.gather(-1, ids_m[:, None])[:, 0] - scores_mV.logsumexp(-1)

    def _restrict(self, scores_mV: Tensor) -> Tensor:
        """Minus infinity for tokens that may not be chosen, in the order of transformers' warpers.

        A ban comes first: it leaves the other rules as many tokens as without it.
        """
        if len(self.banned_ids):
            scores_mV = scores_mV.index_fill(-1, self.banned_ids, float("-inf"))
        if self.temperature == 0:
            return scores_mV
        if 0 < self.top_k < scores_mV.shape[-1]:
            least_m1 = scores_mV.topk(self.top_k).values[:, -1:]
            scores_mV = scores_mV.masked_fill(scores_mV < least_m1, float("-inf"))
        if self.top_p < 1:
            ascending_mV, order_mV = scores_mV.sort(-1)
            below_mV = ascending_mV.softmax(-1).cumsum(-1) <= 1 - self.top_p
            below_mV[:, -1] = False  # the most probable token stays
            scores_mV = scores_mV.masked_fill(below_mV.scatter(-1, order_mV, below_mV), float("-inf"))
        if self.min_p > 0:
            probs_mV = scores_mV.softmax(-1)
            scores_mV = scores_mV.masked_fill(probs_mV < self.min_p * probs_mV.amax(-1, keepdim=True), float("-inf"))
        return scores_mV
