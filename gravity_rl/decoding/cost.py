"""What a round of decoding costs and yields: times by window and live rows, and the acceptance of drafts.

Both are measured while decoding and follow what they see; ``window.py`` chooses by them. Stalls of the machine only
ever add time, so slow outliers are clipped and fast measurements are believed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

#: Acceptance of an unknown drafter, worth this many tested drafts: high enough to try drafting, soon overruled.
PRIOR_HAZARD, PRIOR_WEIGHT = 0.8, 2.0
#: Tested drafts for which the hazard of the position before stands in; smooths, and extrapolates beyond the window.
NEIGHBOUR_WEIGHT = 8.0
#: Half-life of acceptance. 128 row-rounds know a hazard to 3 % and follow a new page or task within one long
#: response; at least 8 rounds, because the rows of one round say little about the next stretch of their pages.
HALF_LIFE_ROW_ROUNDS, HALF_LIFE_ROUNDS = 128, 8
#: While plain AR runs, old acceptance fades to the weight of this many row-rounds, so that few probes can revise it.
STALE_WEIGHT = 16.0
STALE_DECAY = 0.5 ** (1 / 128)

#: Before two window sizes were measured, a forward is taken to last twice as long from 512 tokens on. Optimistic for
#: a CPU: then one round over many tokens corrects it, while pessimism would never be found out.
PRIOR_SLOPE, PRIOR_SLOPE_WEIGHT = 1 / 512, 1e-3
#: A token adds at most this share of the time of an empty forward: reading the weights costs more than that.
MAX_SLOPE = 1 / 8
#: A round moves a measured time by at most 1.5 ** 0.15, that is 6 %; more than 1.5 times the expected time is a stall
#: and moves nothing, unless the round before was as slow.
CLIP, GAIN, STALE_GAIN = 1.5, 0.15, 0.5
#: Rounds that a measurement is believed without a new one, by how many there are; afterwards the window may be tried
#: again. Short at first, because warm-up slows the first rounds.
LIFETIMES = (0, 16, 64, 256)
#: The line through all measured times is fitted again after this many rounds, and whenever there is a new time.
REFIT_ROUNDS = 32
MIN_SECONDS, MAX_SECONDS = 1e-6, 1e6

#: A probe needs this many AR rounds since drafting, and takes at most this share of their time.
PROBE_ROUNDS, PROBE_SHARE = 128, 0.02
#: Accepted drafts a row beyond the expected ones that make the next round a probe as well.
SURPRISE = 0.5


class CostModel:
    """Time of a round by window and live rows, and acceptance so far: one per model, over any number of calls.

    A time is kept for each window and each doubling of live rows; where there is none, that of the nearest number of
    live rows is scaled, or the line ``forwards (a + b tokens)`` through all of them predicts it.
    """

    def __init__(self) -> None:
        self.acceptance = Acceptance()
        self.rounds = 0
        self.last_trial = 0  # its round
        self._times: dict[int, dict[int, _Time]] = {}  # by window, then by doubling of live rows
        self._rounds_at: dict[int, int] = {}  # rounds by doubling of live rows
        self._base, self._slope = 1.0, PRIOR_SLOPE
        self._ar_rounds, self._ar_seconds = 0, 0.0  # since the last drafted round

    @property
    def measured(self) -> bool:
        return self.rounds > 0

    def tokens_per_second(self, block_size: int, live_rows: int) -> float:
        """Predicted, of all rows together. Before anything was measured only the ratios mean something."""
        tokens = 2.0 + self.acceptance.expected_drafts(block_size) if block_size else 1.0
        return live_rows * tokens / self.seconds(block_size, live_rows)

    def seconds(self, block_size: int, live_rows: int) -> float:
        """Predicted time of a round."""
        times = self._times.get(block_size)
        if not times:
            return self._line(block_size, live_rows)
        here = live_rows.bit_length()
        time = times.get(here) or times[min(times, key=lambda bucket: abs(bucket - here))]
        trusted = time.trusted(self._rounds_at[time.live_rows.bit_length()])
        if trusted and time.live_rows == live_rows:
            return time.seconds
        line = self._line(block_size, live_rows)
        scaled = time.seconds * line / self._line(block_size, time.live_rows)
        return scaled if trusted else min(scaled, line)

    def settled(self, block_size: int, live_rows: int) -> bool:
        """Whether this window was measured at about these live rows, lately."""
        here = live_rows.bit_length()
        time = self._times.get(block_size, {}).get(here)
        return time is not None and time.trusted(self._rounds_at[here])

    def probe_due(self, block_size: int, live_rows: int) -> bool:
        """Whether AR has run for so long that one drafted round costs next to nothing."""
        if self._ar_rounds < PROBE_ROUNDS:
            return False
        return self.seconds(block_size, live_rows) <= PROBE_SHARE * self._ar_seconds

    def observe(self, block_size: int, live_rows: int, seconds: float, accepted: Sequence[int]) -> None:
        """Learn from a round; see ``WindowPolicy.observe``.

        Raises:
            ValueError: a count is out of range, or the time is negative or not finite.
        """
        _check_round(block_size, live_rows, seconds, accepted)
        self._time_round(block_size, live_rows, min(max(seconds, MIN_SECONDS), MAX_SECONDS))
        if block_size == 0:
            self._ar_rounds += 1
            self._ar_seconds += self.seconds(0, live_rows)
            self.acceptance.fade()
            return
        surprising = sum(accepted) / live_rows > self.acceptance.expected_drafts(block_size) + SURPRISE
        if not surprising:
            self._ar_rounds, self._ar_seconds = 0, 0.0
        self.acceptance.observe(block_size, accepted)

    def _time_round(self, block_size: int, live_rows: int, seconds: float) -> None:
        here = live_rows.bit_length()
        self.rounds += 1
        now = self._rounds_at[here] = self._rounds_at.get(here, 0) + 1
        times = self._times.setdefault(block_size, {})
        time = times.get(here)
        line = self._line(block_size, live_rows)
        if time is None:
            plausible = self.rounds > 1 and seconds <= CLIP * line
            time = times[here] = _Time(live_rows, seconds, count=int(plausible))
        else:
            time.update(live_rows, line / self._line(block_size, time.live_rows), seconds, now)
        time.expires = now + LIFETIMES[min(time.count, len(LIFETIMES) - 1)]
        if time.count <= 2 or self.rounds % REFIT_ROUNDS == 0:
            self._fit_line()

    def _line(self, block_size: int, live_rows: int) -> float:
        forward = self._base + self._slope * live_rows * (block_size + 1)
        return 2 * forward if block_size else forward

    def _fit_line(self) -> None:
        """Least squares of relative errors, which gives a stalled round next to no weight.

        ``PRIOR_SLOPE`` joins as one more equation, b = a PRIOR_SLOPE, which decides while all rounds were alike.
        """
        times = [(block_size, time) for block_size, rows in self._times.items() for time in rows.values()]
        s11 = s12 = s22 = r1 = r2 = 0.0
        for block_size, time in [entry for entry in times if entry[1].count] or times:
            tokens = time.live_rows * (block_size + 1)
            unit = (2 if block_size else 1) / time.seconds
            s11 += unit * unit
            s12 += unit * unit * tokens
            s22 += unit * unit * tokens * tokens
            r1 += unit
            r2 += unit * tokens
        weight = PRIOR_SLOPE_WEIGHT * s22
        p11, p12, p22 = s11 + weight * PRIOR_SLOPE**2, s12 - weight * PRIOR_SLOPE, s22 + weight
        determinant = p11 * p22 - p12 * p12
        base, slope = (p22 * r1 - p12 * r2) / determinant, (p11 * r2 - p12 * r1) / determinant
        if not 0 <= slope <= base * MAX_SLOPE:  # the best of the nearer limit
            ratio = 0.0 if slope < 0 <= base else MAX_SLOPE
            base = (r1 + ratio * r2) / (s11 + 2 * ratio * s12 + ratio * ratio * s22)
            slope = ratio * base
        self._base, self._slope = base, slope


class Acceptance:
    """Hazard of each draft position, h(k) = P(draft k accepted | all before it were), from decayed counts.

    A row that accepted k of B drafts tells about positions 1 … k + 1, or 1 … B if all were accepted; never about
    more. Positions with few counts lean on the one before, the first on ``PRIOR_HAZARD``.
    """

    def __init__(self) -> None:
        self._tested: list[float] = []
        self._accepted: list[float] = []
        self._hazards: list[float] = []  # as far as asked for since the last count
        self._expected: list[float] = [0.0]  # accepted drafts by window, likewise

    def hazard(self, position: int) -> float:
        """h(position), from 1 on."""
        self._extend(position)
        return self._hazards[position - 1]

    def expected_drafts(self, block_size: int) -> float:
        """Accepted drafts of a row in a round with this window: sum over k <= B of h(1) … h(k)."""
        self._extend(block_size)
        return self._expected[block_size]

    def _extend(self, block_size: int) -> None:
        hazards, expected = self._hazards, self._expected
        if len(hazards) >= block_size:
            return
        hazard, weight = (hazards[-1], NEIGHBOUR_WEIGHT) if hazards else (PRIOR_HAZARD, PRIOR_WEIGHT)
        survival = expected[-1] - expected[-2] if hazards else 1.0
        for position in range(len(hazards), block_size):
            if position < len(self._tested):
                hazard = (self._accepted[position] + weight * hazard) / (self._tested[position] + weight)
            survival *= hazard
            hazards.append(hazard)
            expected.append(expected[-1] + survival)
            weight = NEIGHBOUR_WEIGHT

    def observe(self, block_size: int, accepted: Sequence[int]) -> None:
        """Count a round of ``len(accepted)`` rows."""
        missing = block_size - len(self._tested)
        self._tested.extend([0.0] * missing)
        self._accepted.extend([0.0] * missing)
        self._scale(0.5 ** min(len(accepted) / HALF_LIFE_ROW_ROUNDS, 1 / HALF_LIFE_ROUNDS))
        ends = [0] * (block_size + 1)
        for count in accepted:
            ends[count] += 1
        reaching = len(accepted)
        for position in range(block_size):
            self._tested[position] += reaching
            reaching -= ends[position]
            self._accepted[position] += reaching

    def fade(self) -> None:
        """One round without drafts: what is known gets older."""
        if self._tested and self._tested[0] > STALE_WEIGHT:
            self._scale(STALE_DECAY)

    def _scale(self, factor: float) -> None:
        self._tested = [count * factor for count in self._tested]
        self._accepted = [count * factor for count in self._accepted]
        self._hazards, self._expected = [], [0.0]


@dataclass
class _Time:
    """Measured time of a window at about these live rows."""

    live_rows: int
    seconds: float
    count: int
    """Measurements, two of which are needed to be trusted. The first one does not count where it was the very first
    round or unexpectedly slow: that may be warm-up."""
    expires: int = 0
    """Rounds at about these live rows at which it is no longer trusted."""
    stalled: bool = False
    """The last round took much longer than expected."""

    def trusted(self, now: int) -> bool:
        return self.count > 1 and now < self.expires

    def update(self, live_rows: int, scale: float, seconds: float, now: int) -> None:
        """Add a measurement; ``scale`` is what the line predicts for the change of live rows."""
        expected = self.seconds * scale
        ratio = seconds / expected
        if self.count <= 1 or ratio < 1 / CLIP**2:
            self.seconds = min(expected, seconds)
        elif ratio <= CLIP or self.stalled:
            self.seconds = expected * min(max(ratio, 1 / CLIP), CLIP) ** (GAIN if now < self.expires else STALE_GAIN)
        else:
            self.seconds = expected
        self.stalled = ratio > CLIP
        self.live_rows = live_rows
        self.count += 1


def _check_round(block_size: int, live_rows: int, seconds: float, accepted: Sequence[int]) -> None:
    if block_size < 0 or live_rows < 1:
        raise ValueError(f"a round of window {block_size} over {live_rows} rows")
    if not (math.isfinite(seconds) and seconds >= 0):
        raise ValueError(f"seconds: {seconds} is no finite number from 0 up")
    if len(accepted) != (live_rows if block_size else 0):
        raise ValueError(f"accepted: {len(accepted)} counts for {live_rows} rows and a window of {block_size}")
    if block_size and (min(accepted) < 0 or max(accepted) > block_size):
        raise ValueError(f"accepted: counts from {min(accepted)} to {max(accepted)}, the window is {block_size}")
