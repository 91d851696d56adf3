"""The acceptance of drafts by position, and how often responses end, from the rounds so far."""

from __future__ import annotations

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
#: Half-life in rounds of the share of ends.
HALF_LIFE_ENDS = 256


class Acceptance:
    """Hazard of each draft position, h(k) = P(draft k accepted | all before it were), from decayed counts.

    A row that accepted k of B drafts tells about positions 1 … k + 1, or 1 … k if all were accepted or the response
    ended there; never about more. Positions with few counts lean on the one before, the first on ``PRIOR_HAZARD``.
    Drafts behind the end of a response are worth nothing, so windows are judged with the share of tokens that end one.
    That share is counted over all rounds: those that draft are often the last ones of a batch.
    """

    def __init__(self) -> None:
        self._tested: list[float] = []
        self._accepted: list[float] = []
        self._hazards: list[float] = []  # as far as asked for since the last count
        self._expected: list[float] = [0.0]  # accepted and committed drafts by window, likewise
        self._committed: list[float] = [0.0]
        self._ends, self._tokens = PRIOR_ENDS

    def hazard(self, position: int) -> float:
        """h(position), from 1 on."""
        self._extend(position)
        return self._hazards[position - 1]

    def accepted_drafts(self, block_size: int) -> float:
        """Accepted drafts of a row in a round with this window, if its response goes on: sum over k <= B of
        h(1) … h(k)."""
        self._extend(block_size)
        return self._expected[block_size]

    def committed_drafts(self, block_size: int) -> float:
        """The same if it may end: sum over k <= B of h(1) … h(k) (1 - e)^k, where e is the share of tokens that end a
        response."""
        self._extend(block_size)
        return self._committed[block_size]

    def committed_tokens(self, block_size: int) -> float:
        """Tokens of a row in a drafted round, if its response may end: the first one, and if that is not the last of
        the response, drafts and the verifier's token behind them: 1 + (1 - e) (1 + committed drafts)."""
        return 1.0 + (1.0 - self._ends / self._tokens) * (1.0 + self.committed_drafts(block_size))

    def _extend(self, block_size: int) -> None:
        hazards, expected, committed = self._hazards, self._expected, self._committed
        if len(hazards) >= block_size:
            return
        hazard, weight = (hazards[-1], NEIGHBOUR_WEIGHT) if hazards else (PRIOR_HAZARD, PRIOR_WEIGHT)
        accepted = expected[-1] - expected[-2] if hazards else 1.0
        goes_on = 1.0 - self._ends / self._tokens
        for position in range(len(hazards), block_size):
            if position < len(self._tested):
                hazard = (self._accepted[position] + weight * hazard) / (self._tested[position] + weight)
            accepted *= hazard
            hazards.append(hazard)
            expected.append(expected[-1] + accepted)
            committed.append(committed[-1] + accepted * goes_on ** (position + 1))
            weight = NEIGHBOUR_WEIGHT

    def observe_ends(self, ends: int, tokens: int) -> None:
        """Count the responses that ended in a round, and its tokens."""
        keep = 0.5 ** (1 / HALF_LIFE_ENDS)
        self._ends, self._tokens = keep * self._ends + ends, keep * self._tokens + tokens
        self._hazards, self._expected, self._committed = [], [0.0], [0.0]

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
        self._hazards, self._expected, self._committed = [], [0.0], [0.0]
