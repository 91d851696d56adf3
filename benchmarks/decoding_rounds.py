"""Typical times of rounds, which tell what a contender's windows are worth, whatever the machine did meanwhile.

The speed of a machine that others use changes by a quarter for some rounds, which moves the ratio of two contenders
that do the same by a tenth. So ``decoding.py`` also gives every round the time that such rounds took in all contenders:

    typical = TypicalTimes(rounds)              # of all contenders on a workload
    typical.total(rounds_of_one)                # seconds that these rounds take
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import fmean

import numpy as np

MOST_DEGREE = 3
#: Of the rounds of a window and a number of rows, this share of the shortest and of the longest counts for nothing:
#: stalls. A median would jump where a machine that others use is at one of two speeds.
TRIMMED = 0.2


@dataclass(frozen=True)
class Round:
    """A round of a contender; window 0 is an AR step."""

    window: int
    live_rows: int
    seconds: float


class TypicalTimes:
    """Seconds of a round by window and live rows: for each window a polynomial through trimmed means.

    Args:
        rounds: of all contenders.
    """

    def __init__(self, rounds: Iterable[Round]):
        seconds: dict[int, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
        for one in rounds:
            seconds[one.window][one.live_rows].append(one.seconds)
        self._polynomials = {window: _fit(by_rows) for window, by_rows in seconds.items()}

    def total(self, rounds: Iterable[Round]) -> float:
        """Seconds that the rounds take together."""
        return sum(float(np.polyval(self._polynomials[one.window], one.live_rows)) for one in rounds)


def _fit(seconds: dict[int, list[float]]) -> np.ndarray:
    """Least squares of relative errors; means of more rounds weigh more."""
    means = np.array([_trimmed_mean(values) for values in seconds.values()])
    weights = np.array([len(values) ** 0.5 for values in seconds.values()]) / means
    return np.polyfit(np.array(list(seconds)), means, min(MOST_DEGREE, len(seconds) - 1), w=weights)


def _trimmed_mean(values: list[float]) -> float:
    cut = min(max(1, int(TRIMMED * len(values))), (len(values) - 1) // 2)
    return fmean(sorted(values)[cut : len(values) - cut])
