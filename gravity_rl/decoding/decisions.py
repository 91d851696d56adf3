"""What ``auto`` decided lately, by live rows: how long it stands, and what a window is worth for the whole batch.

A batch passes through all numbers of live rows, in a few rounds each. Which window is best at one of them is known
less well than which is best in the batch as a whole: single rounds vary by tens of per cent, and rows that are left
over are not like the others. So what a window is worth is its speed here and, in part, its speed at the other numbers
of rows of the last rounds, also those of other calls, each with the time that was spent there. And thinking takes a
percent of short rounds, so a decision stands for some. ``CostModel`` keeps the decisions over calls, ``window.py``
makes them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

#: Of a window's worth, the part that other numbers of rows have if all time is spent there.
ELSEWHERE = 0.3
#: Half-life in rounds of the time spent at a number of rows: a batch of short responses, no more.
HALF_LIFE_TIME = 24
#: Rounds at about so many rows for which a decision stands: a new one, and one that was made before.
STANDING, STANDING_AGAIN = 4, 8


@dataclass
class Decision:
    """A window that was chosen."""

    block_size: int
    speeds: dict[int, float]
    """Tokens a second by window, as predicted then."""
    worth: dict[int, float]
    """Of windows, by which this one was chosen."""
    rounds: int
    """For which it still stands."""


class Decisions:
    """The last decision for each doubling of live rows: 1, 2 to 3, 4 to 7, …"""

    def __init__(self) -> None:
        self._last: dict[int, Decision] = {}  # by doubling
        self._seconds: dict[int, float] = {}  # by doubling; those of the last rounds

    def standing(self, live_rows: int, ladder: Sequence[int]) -> Decision | None:
        """The decision for the next round, unless it has to be made anew; each call is one round.

        Args:
            live_rows: of the next round.
            ladder: windows to choose from.
        """
        decision = self._last.get(live_rows.bit_length())
        if decision is None or decision.rounds <= 0 or tuple(decision.speeds) != tuple(ladder):
            return None
        decision.rounds -= 1
        return decision

    def last(self, live_rows: int) -> int | None:
        """The window that was decided on last for about so many rows."""
        decision = self._last.get(live_rows.bit_length())
        return None if decision is None else decision.block_size

    def worth(self, live_rows: int, speeds: dict[int, float]) -> dict[int, float]:
        """What windows are worth for so many rows: the geometric mean of their speed here and what it was predicted
        to be elsewhere. Only ratios mean something.

        Args:
            live_rows: of the next round.
            speeds: tokens a second with so many rows, by window.
        """
        here = live_rows.bit_length()
        others = {
            doubling: decision.speeds
            for doubling, decision in self._last.items()
            if doubling != here and decision.speeds.keys() == speeds.keys()
        }
        total = sum(self._seconds.get(doubling, 0.0) for doubling in (here, *others))
        if not total:
            return speeds
        weights = {doubling: ELSEWHERE * self._seconds.get(doubling, 0.0) / total for doubling in others}
        own = 1.0 - sum(weights.values())
        return {
            window: math.exp(
                own * math.log(speed)
                + sum(weights[doubling] * math.log(others[doubling][window]) for doubling in others)
            )
            for window, speed in speeds.items()
        }

    def decide(
        self, live_rows: int, block_size: int, speeds: dict[int, float], worth: dict[int, float], *, stands: bool
    ) -> None:
        """Take a window for about so many rows, for the next round or, if it ``stands``, for some."""
        rounds = STANDING_AGAIN if block_size == self.last(live_rows) else STANDING
        self._last[live_rows.bit_length()] = Decision(block_size, speeds, worth, rounds - 1 if stands else 0)

    def observe(self, live_rows: int, seconds: float) -> None:
        """Count the time of a round, as predicted: no stall has weight."""
        keep = 0.5 ** (1 / HALF_LIFE_TIME)
        for doubling in self._seconds:
            self._seconds[doubling] *= keep
        doubling = live_rows.bit_length()
        self._seconds[doubling] = self._seconds.get(doubling, 0.0) + seconds
