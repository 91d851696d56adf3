"""The degeneration gate: a factor that takes the reward away from completions that loop.

It looks at the raw prediction, because normalisation removes just what loops are made of (spaces, markup,
spacing commands). `g = min(rho8, max(0, 1 - (L_run - 20) / 200), 1)`, after arXiv:2609.26638, Appendix E.
"""

from __future__ import annotations

from itertools import groupby
from typing import NamedTuple

from rewards.types import PUBLISHED, RewardConfig


class Gate(NamedTuple):
    """The factor in [0, 1] and what it is made of: share of distinct n-grams, longest run in characters."""

    gate: float
    rho8: float
    longest_run: int


def distinct_ngram_ratio(tokens: list[str], n: int) -> float:
    """Distinct n-grams divided by all n-grams, in (0, 1]. Needs at least n tokens."""
    grams = list(zip(*(tokens[start:] for start in range(n)), strict=False))
    return len(set(grams)) / len(grams)


def longest_run(text: str) -> int:
    """Length in characters of the longest run of one character; 0 for an empty text."""
    return max((sum(1 for _ in run) for _, run in groupby(text)), default=0)


def degeneration_gate(prediction: str, config: RewardConfig = PUBLISHED) -> Gate:
    """The gate of a raw prediction. An empty prediction has gate 1: it does not loop."""
    tokens = prediction.split()
    rho8 = 1.0 if len(tokens) < config.gate_min_tokens else distinct_ngram_ratio(tokens, config.gate_ngram)
    run = longest_run(prediction)
    run_term = 1.0 - (run - config.gate_run_free) / config.gate_run_span
    return Gate(min(rho8, max(0.0, run_term), 1.0), rho8, run)
