"""Counts of what decoding did: of each row, so that they can be summed over any set of rows (such as a task), and of
a whole call, with the time that its phases took.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from gravity_rl.decoding.window import WindowChoice

PHASES = ("prefill", "draft_rounds", "ar_rounds", "rows")


@dataclass(frozen=True)
class DecodeStats:
    """Counts of one row, or the sum over rows. A forward over a batch of n rows counts n times; prefill never.

    Attributes:
        tokens: committed tokens.
        draft_forwards, verify_forwards, ar_forwards: forwards that the row took part in while it was unfinished.
        drafted: drafted tokens, the sum of the windows.
        accepted: ``accepted[k]`` is the number of rounds that committed k of their drafts. Drafts behind the end of a
            response were not committed, even where the verifier agreed.
        tested: drafts that were compared with the verifier's token and either committed or rejected: what comes behind
            a rejected draft, or behind the end, says nothing about the drafter.
    """

    tokens: int = 0
    draft_forwards: int = 0
    verify_forwards: int = 0
    ar_forwards: int = 0
    drafted: int = 0
    accepted: list[int] = field(default_factory=list)
    tested: int = 0

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
            drafted=sum(part.drafted for part in parts),
            accepted=accepted,
            tested=sum(part.tested for part in parts),
        )

    @property
    def rounds(self) -> int:
        """Draft-and-verify rounds and single AR steps, over all rows."""
        return self.draft_forwards + self.ar_forwards

    @property
    def forwards(self) -> int:
        """Forwards over all rows."""
        return self.draft_forwards + self.verify_forwards + self.ar_forwards

    @property
    def accepted_drafts(self) -> int:
        """Committed drafts."""
        return sum(k * count for k, count in enumerate(self.accepted))

    @property
    def tokens_per_round(self) -> float:
        """Committed tokens a round; NaN without rounds."""
        return _ratio(self.tokens, self.rounds)

    @property
    def accepted_per_round(self) -> float:
        """Committed drafts a draft-and-verify round; NaN without one."""
        return _ratio(self.accepted_drafts, self.draft_forwards)

    @property
    def accepted_share(self) -> float:
        """Share of all drafted tokens that were committed, which falls as windows grow; NaN without drafts."""
        return _ratio(self.accepted_drafts, self.drafted)

    @property
    def acceptance(self) -> float:
        """Share of tested drafts that were committed, which does not depend on windows; NaN without drafts."""
        return _ratio(self.accepted_drafts, self.tested)

    @property
    def tpf(self) -> float:
        """Committed tokens a forward (arXiv:2609.26638: drafts and verifications count, prefill does not)."""
        return _ratio(self.tokens, self.forwards)


@dataclass(frozen=True)
class BatchStats:
    """What one call did. A forward over a batch counts once here, however many rows it had.

    Attributes:
        rows: the sum over rows.
        rounds: rounds of the batch, AR steps included.
        draft_forwards, verify_forwards, ar_forwards: forwards of the batch.
        prefills: prompts prefilled; equal prompts count once.
        prefill_forwards: forwards that this took, vision included in each.
        seconds: wall time by phase: ``prefill`` (with vision), ``draft_rounds`` and ``ar_rounds`` (with sampling), and
            ``rows``, for rows that leave and enter the batch.
        choices: windows in the order of rounds, and why they were chosen.
        memory: bytes that the call would have reserved with every row at its limit.
    """

    rows: DecodeStats
    rounds: int
    draft_forwards: int
    verify_forwards: int
    ar_forwards: int
    prefills: int
    prefill_forwards: int
    seconds: dict[str, float]
    choices: list[WindowChoice]
    memory: int

    @property
    def tokens(self) -> int:
        """Committed tokens of all rows."""
        return self.rows.tokens

    @property
    def forwards(self) -> int:
        """Forwards of the batch, without prefill."""
        return self.draft_forwards + self.verify_forwards + self.ar_forwards

    @property
    def accepted(self) -> list[int]:
        """Histogram of committed drafts a row and round."""
        return self.rows.accepted

    @property
    def tokens_per_round(self) -> float:
        """Committed tokens of a row in a round."""
        return self.rows.tokens_per_round

    @property
    def tpf(self) -> float:
        """Committed tokens of a row a forward."""
        return self.rows.tpf

    @property
    def accepted_share(self) -> float:
        """Share of all drafted tokens that were committed."""
        return self.rows.accepted_share

    @property
    def acceptance(self) -> float:
        """Share of tested drafts that were committed."""
        return self.rows.acceptance

    @property
    def total_seconds(self) -> float:
        """Wall time of all phases."""
        return sum(self.seconds.values())


def _ratio(numerator: int, denominator: int) -> float:
    return numerator / denominator if denominator else float("nan")
