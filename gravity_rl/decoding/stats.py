"""Counts of what decoding did, row by row, so that they can be summed over any set of rows (such as a task)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass(frozen=True)
class DecodeStats:
    """Counts of one row, or the sum over rows. A forward over a batch of n rows counts n times; prefill never.

    ``accepted[k]`` is the number of rounds that committed k of their drafts. Drafts behind the end of a response
    were not committed, even where the verifier agreed.
    """

    tokens: int = 0
    draft_forwards: int = 0
    verify_forwards: int = 0
    ar_forwards: int = 0
    accepted: list[int] = field(default_factory=list)

    @staticmethod
    def total(stats: Iterable[DecodeStats]) -> DecodeStats:
        """The sum of counts; histograms of different windows are added by count."""
        parts = list(stats)
        width = max((len(part.accepted) for part in parts), default=0)
        accepted = [sum(part.accepted[k] for part in parts if k < len(part.accepted)) for k in range(width)]
        return DecodeStats(
            tokens=sum(part.tokens for part in parts),
            draft_forwards=sum(part.draft_forwards for part in parts),
            verify_forwards=sum(part.verify_forwards for part in parts),
            ar_forwards=sum(part.ar_forwards for part in parts),
            accepted=accepted,
        )

    @property
    def rounds(self) -> int:
        """Draft-and-verify rounds, or single AR steps, over all rows."""
        return self.draft_forwards + self.ar_forwards

    @property
    def tokens_per_round(self) -> float:
        """Committed tokens a round; NaN without rounds."""
        return _ratio(self.tokens, self.rounds)

    @property
    def accepted_per_round(self) -> float:
        """Committed drafts a draft-and-verify round; NaN without one."""
        return _ratio(sum(k * count for k, count in enumerate(self.accepted)), self.draft_forwards)

    @property
    def tpf(self) -> float:
        """Committed tokens a forward (arXiv:2609.26638: drafts and verifications count, prefill does not)."""
        return _ratio(self.tokens, self.draft_forwards + self.verify_forwards + self.ar_forwards)


def _ratio(numerator: int, denominator: int) -> float:
    return numerator / denominator if denominator else float("nan")
