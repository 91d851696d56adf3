"""The acceptance of drafts by position, and how often responses end, from the rounds so far."""

from __future__ import annotations

import math
from collections.abc import Sequence

#: Acceptance of an unknown drafter, worth this many tested drafts: high enough to try drafting, soon overruled.
PRIOR_HAZARD, PRIOR_WEIGHT = 0.8, 2.0
#: Ends and tokens of responses of unknown length.
PRIOR_ENDS = (1.0, 128.0)
#: Tested drafts for which the hazard of the position before stands in; smooths, and extrapolates beyond the window.
NEIGHBOUR_WEIGHT = 8.0
#: Half-life of acceptance. 128 row-rounds know a hazard to 3 % and follow a new page or task within one long
#: response; at least 8 rounds, because the rows of one round say little about the next stretch of their pages.
HALF_LIFE_ROW_ROUNDS, HALF_LIFE_ROUNDS = 128, 8
#: While plain AR runs, old acceptance fades to the weight of this many row-rounds, so that few probes can revise it.
STALE_WEIGHT = 16.0
STALE_DECAY = 0.5 ** (1 / 128)
#: Batches of more rows have a longest response as these do.
MOST_ROWS = 4096
#: Of tokens that end a response, or do not: counts decay to nothing where all do or none does.
LEAST_SHARE = 1e-9
#: Half-life in rounds of the share of ends.
HALF_LIFE_ENDS = 256


class Acceptance:
    """Hazard of each draft position, h(k) = P(draft k accepted | all before it were), from decayed counts.

    A row that accepted k of B drafts tells about positions 1 … k + 1, or 1 … k if all were accepted or the response
    ended there; never about more. Positions with few counts lean on the one before, the first on ``PRIOR_HAZARD``.
    Drafts behind the end of a response are worth nothing, so windows are judged with the share of tokens that end one.
    That share is counted over all rounds: those that draft are often the last ones of a batch.

    Args:
        rows: of a batch, for ``tokens_of_longest``.
    """

    def __init__(self, rows: int = 1) -> None:
        self._harmonic = sum(1 / k for k in range(1, min(rows, MOST_ROWS) + 1))
        self._tested: list[float] = []
        self._accepted: list[float] = []
        self._ends, self._tokens = PRIOR_ENDS
        self._forget_expectations()

    def hazard(self, position: int) -> float:
        """h(position), from 1 on."""
        self._extend(position)
        return self._hazards[position - 1]

    def committed_drafts(self, block_size: int) -> float:
        """Committed drafts of a row in a round with this window: sum over k <= B of h(1) … h(k) (1 - e)^k, where e is
        the share of tokens that end a response."""
        self._extend(block_size)
        return self._committed[block_size]

    def committed_tokens(self, block_size: int) -> float:
        """Tokens of a row in a drafted round: the first one, and if that is not the last of the response, drafts and
        the verifier's token behind them: 1 + (1 - e) (1 + committed drafts)."""
        self._extend(block_size)
        return 1.0 + self._goes_on * (1.0 + self._committed[block_size])

    def tokens_of_longest(self, block_size: int) -> float:
        """The same for the longest response of a batch, whose end cuts as much, but of more rounds."""
        self._extend(block_size)
        return 1.0 + self._longest_goes_on * (1.0 + self._of_longest[block_size])

    def _forget_expectations(self) -> None:
        """What follows from the counts is computed when it is asked for, as far as it is asked for."""
        self._hazards: list[float] = []
        self._committed, self._of_longest = [0.0], [0.0]  # drafts by window
        self._goes_on = self._longest_goes_on = 0.0  # shares of tokens that end no response

    def _set_shares(self) -> None:
        """The longest response has the expected maximum of geometric lengths, about 1/2 - H(rows) / log(1 - e), where
        their mean is 1/e."""
        ends = min(max(self._ends / self._tokens, LEAST_SHARE), 1.0 - LEAST_SHARE)
        longest = 0.5 - self._harmonic / math.log1p(-ends)
        self._goes_on, self._longest_goes_on = 1.0 - ends, 1.0 - 1.0 / max(longest, 1.0 / ends)

    def _extend(self, block_size: int) -> None:
        hazards, committed, of_longest = self._hazards, self._committed, self._of_longest
        known = len(hazards)
        if known >= block_size:
            return
        if not known:
            self._set_shares()
        hazard, weight = (hazards[-1], NEIGHBOUR_WEIGHT) if known else (PRIOR_HAZARD, PRIOR_WEIGHT)
        goes_on, longest_goes_on = self._goes_on, self._longest_goes_on
        survival = committed[-1] - committed[-2] if known else 1.0
        of_longest_survival = of_longest[-1] - of_longest[-2] if known else 1.0
        for position in range(known, block_size):
            if position < len(self._tested):
                hazard = (self._accepted[position] + weight * hazard) / (self._tested[position] + weight)
            survival *= hazard * goes_on
            of_longest_survival *= hazard * longest_goes_on
            hazards.append(hazard)
            committed.append(committed[-1] + survival)
            of_longest.append(of_longest[-1] + of_longest_survival)
            weight = NEIGHBOUR_WEIGHT

    def observe_ends(self, ends: int, tokens: int) -> None:
        """Count the responses that ended in a round, and its tokens."""
        keep = 0.5 ** (1 / HALF_LIFE_ENDS)
        self._ends, self._tokens = keep * self._ends + ends, keep * self._tokens + tokens
        self._forget_expectations()

    def observe(self, block_size: int, accepted: Sequence[int], ended: Sequence[bool] = ()) -> None:
        """Count a round of ``len(accepted)`` rows."""
        missing = block_size - len(self._tested)
        self._tested.extend([0.0] * missing)
        self._accepted.extend([0.0] * missing)
        self._scale(0.5 ** min(len(accepted) / HALF_LIFE_ROW_ROUNDS, 1 / HALF_LIFE_ROUNDS))
        rejected, cut = [0] * (block_size + 1), [0] * (block_size + 1)  # by drafts that were committed before
        for row, count in enumerate(accepted):
            (cut if ended and ended[row] else rejected)[count] += 1
        reaching = len(accepted)
        for position in range(block_size):
            reaching -= cut[position]
            self._tested[position] += reaching
            reaching -= rejected[position]
            self._accepted[position] += reaching

    def fade(self) -> None:
        """One round without drafts: what is known gets older."""
        if self._tested and self._tested[0] > STALE_WEIGHT:
            self._scale(STALE_DECAY)

    def _scale(self, factor: float) -> None:
        """Let all counts fade, also of positions that the window of the round did not reach.

        What is forgotten about them is replaced by the position before, so that larger windows are tried again.
        """
        self._tested = [count * factor for count in self._tested]
        self._accepted = [count * factor for count in self._accepted]
        self._forget_expectations()
