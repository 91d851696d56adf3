"""What a round of decoding costs and yields: times by window and live rows, and the acceptance of drafts.

Both are measured while decoding and follow what they see; ``window.py`` chooses by them. A single round says little
about its time, so a line through all of them comes first and what deviates from it second. Stalls of the machine only
ever add time, so slow outliers hardly count.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from gravity_rl.decoding.acceptance import Acceptance

#: Before two window sizes were measured, a forward is taken to last twice as long from 512 tokens on. Optimistic for
#: a CPU: then one round over many tokens corrects it, while pessimism would never be found out.
PRIOR_SLOPE, PRIOR_SLOPE_WEIGHT = 1 / 512, 1e-3
#: A token adds at most this share of the time of an empty forward: reading the weights costs more than that.
MAX_SLOPE = 1 / 8
#: Half-lives in rounds: of the line, and of what deviates from it.
HALF_LIFE_TIMES, HALF_LIFE_DEVIATIONS = 256, 32
#: Rounds that say how a window deviates from the line before half of it is believed: single rounds vary by tens of
#: per cent, real deviations are rarely more than that.
DOUBT = 6.0
#: A single round beyond this factor is a stall of the machine, or warm-up.
MAX_DEVIATION = 1.5
MIN_SECONDS, MAX_SECONDS = 1e-6, 1e6
#: Measurements of a window from which on it needs no trial.
SETTLED = 2.0

#: A probe needs this many AR rounds since drafting, and takes at most this share of their time.
PROBE_ROUNDS, PROBE_SHARE = 128, 0.02
#: Accepted drafts a row beyond the expected ones that make the next round a probe as well.
SURPRISE = 0.5


#: Window, live rows, seconds if they count, accepted drafts and ends by row.
_Round = tuple[int, int, float | None, Sequence[int], Sequence[bool]]


class CostModel:
    """Time of a round by window and live rows, and acceptance so far: one per model, over any number of calls.

    A round of ``forwards`` over ``tokens`` each is taken to last ``forwards (a + b tokens)``, fitted to all rounds. How
    a window deviates from that line is learned slowly, for it and for it at about as many live rows. Rounds are kept
    until something is asked, since learning from several at once takes less time from each of them.
    """

    def __init__(self) -> None:
        self.rounds = 0
        self.last_trial = 0  # its round
        self._unlearned: list[_Round] = []
        self._acceptance = Acceptance()
        self._line_fit = _LineFit()
        self._by_window: dict[int, _Deviation] = {}
        self._by_rows: dict[tuple[int, int], _Deviation] = {}  # by window and doubling of live rows
        self._ar_rounds, self._ar_seconds = 0, 0.0  # since the last drafted round

    @property
    def measured(self) -> bool:
        return self.rounds > 0

    @property
    def acceptance(self) -> Acceptance:
        self._learn()
        return self._acceptance

    def tokens_per_second(self, block_size: int, live_rows: int) -> float:
        """Predicted, of all rows together. Before anything was measured only the ratios mean something."""
        tokens = 2.0 + self.acceptance.expected_drafts(block_size) if block_size else 1.0
        return live_rows * tokens / self.seconds(block_size, live_rows)

    def seconds(self, block_size: int, live_rows: int) -> float:
        """Predicted time of a round."""
        self._learn()
        return self._predict(block_size, live_rows)

    def _predict(self, block_size: int, live_rows: int) -> float:
        line = self._line_fit.seconds(block_size, live_rows)
        window = self._by_window.get(block_size)
        if window is None:
            return line
        here = self._by_rows.get((block_size, live_rows.bit_length()))
        return line * math.exp(window.mean if here is None else here.shrunk_to(window.mean))

    def settled(self, block_size: int) -> bool:
        """Whether this window was measured, with whatever number of rows."""
        self._learn()
        window = self._by_window.get(block_size)
        return window is not None and window.weight >= SETTLED

    def probe_due(self, block_size: int, live_rows: int) -> bool:
        """Whether AR has run for so long that one drafted round costs next to nothing."""
        self._learn()
        if self._ar_rounds < PROBE_ROUNDS:
            return False
        return self.seconds(block_size, live_rows) <= PROBE_SHARE * self._ar_seconds

    def observe(
        self,
        block_size: int,
        live_rows: int,
        seconds: float,
        accepted: Sequence[int],
        ended: Sequence[bool] = (),
        *,
        timed: bool = True,
    ) -> None:
        """A round to learn from; see ``WindowPolicy.observe``. Unless it is ``timed``, its seconds say nothing.

        Raises:
            ValueError: a count is out of range, or the time is negative or not finite.
        """
        _check_round(block_size, live_rows, seconds, accepted, ended)
        self.rounds += 1
        self._unlearned.append((block_size, live_rows, seconds if timed else None, accepted, ended))

    def _learn(self) -> None:
        """Learn from the rounds that were kept."""
        rounds, self._unlearned = self._unlearned, []
        for block_size, live_rows, seconds, accepted, ended in rounds:
            if seconds is not None:
                self._learn_times(block_size, live_rows, min(max(seconds, MIN_SECONDS), MAX_SECONDS))
            self._learn_tokens(block_size, live_rows, accepted, ended)

    def _learn_tokens(self, block_size: int, live_rows: int, accepted: Sequence[int], ended: Sequence[bool]) -> None:
        self._acceptance.observe_ends(sum(ended), sum(accepted) + live_rows * (2 if block_size else 1))
        if block_size == 0:
            self._ar_rounds += 1
            self._ar_seconds += self._predict(0, live_rows)
            self._acceptance.fade()
            return
        surprising = sum(accepted) / live_rows > self._acceptance.expected_drafts(block_size) + SURPRISE
        if not surprising:
            self._ar_rounds, self._ar_seconds = 0, 0.0
        self._acceptance.observe(block_size, accepted, ended)

    def _learn_times(self, block_size: int, live_rows: int, seconds: float) -> None:
        self._line_fit.add(block_size, live_rows, seconds)
        deviation = math.log(seconds / self._line_fit.seconds(block_size, live_rows))
        self._by_window.setdefault(block_size, _Deviation()).add(deviation)
        self._by_rows.setdefault((block_size, live_rows.bit_length()), _Deviation()).add(deviation)


class _LineFit:
    """``forwards (a + b tokens)`` by least squares of relative errors, which gives a stalled round next to no weight.

    ``PRIOR_SLOPE`` joins as one more equation, b = a PRIOR_SLOPE, which decides while all rounds were alike.
    """

    def __init__(self) -> None:
        self._base, self._slope = 1.0, PRIOR_SLOPE
        self._s11 = self._s12 = self._s22 = self._r1 = self._r2 = 0.0

    def seconds(self, block_size: int, live_rows: int) -> float:
        forward = self._base + self._slope * live_rows * (block_size + 1)
        return 2 * forward if block_size else forward

    def add(self, block_size: int, live_rows: int, seconds: float) -> None:
        tokens = live_rows * (block_size + 1)
        unit = (2 if block_size else 1) / seconds
        keep = 0.5 ** (1 / HALF_LIFE_TIMES)
        self._s11 = keep * self._s11 + unit * unit
        self._s12 = keep * self._s12 + unit * unit * tokens
        self._s22 = keep * self._s22 + unit * unit * tokens * tokens
        self._r1 = keep * self._r1 + unit
        self._r2 = keep * self._r2 + unit * tokens
        self._solve()

    def _solve(self) -> None:
        weight = PRIOR_SLOPE_WEIGHT * self._s22
        p11 = self._s11 + weight * PRIOR_SLOPE**2
        p12, p22 = self._s12 - weight * PRIOR_SLOPE, self._s22 + weight
        determinant = p11 * p22 - p12 * p12
        base = (p22 * self._r1 - p12 * self._r2) / determinant
        slope = (p11 * self._r2 - p12 * self._r1) / determinant
        if not 0 <= slope <= base * MAX_SLOPE:
            ratio = 0.0 if slope < 0 <= base else MAX_SLOPE
            base = (self._r1 + ratio * self._r2) / (self._s11 + 2 * ratio * self._s12 + ratio * ratio * self._s22)
            slope = ratio * base
        self._base, self._slope = base, slope


class _Deviation:
    """Mean logarithm of measured over predicted times, from decayed counts, drawn towards a prior by doubt."""

    def __init__(self) -> None:
        self.weight = 0.0
        self._sum = 0.0
        self._beyond = 0  # whether the last one was far above (1) or below (-1) the mean

    @property
    def mean(self) -> float:
        return self.shrunk_to(0.0)

    def shrunk_to(self, prior: float) -> float:
        return (self._sum + DOUBT * prior) / (self.weight + DOUBT)

    def add(self, deviation: float) -> None:
        """Count a round. One that is far off is a stall and counts nothing, two in a row are a change."""
        limit, mean = math.log(MAX_DEVIATION), self.mean
        before, self._beyond = self._beyond, (deviation > mean + limit) - (deviation < mean - limit)
        if self._beyond and self._beyond != before:
            return
        keep = 0.5 ** (1 / HALF_LIFE_DEVIATIONS)
        self.weight = keep * self.weight + 1.0
        self._sum = keep * self._sum + deviation


def _check_round(
    block_size: int, live_rows: int, seconds: float, accepted: Sequence[int], ended: Sequence[bool]
) -> None:
    if block_size < 0 or live_rows < 1:
        raise ValueError(f"a round of window {block_size} over {live_rows} rows")
    if not (math.isfinite(seconds) and seconds >= 0):
        raise ValueError(f"seconds: {seconds} is no finite number from 0 up")
    if len(accepted) != (live_rows if block_size else 0):
        raise ValueError(f"accepted: {len(accepted)} counts for {live_rows} rows and a window of {block_size}")
    if len(ended) not in (0, live_rows):
        raise ValueError(f"ended: {len(ended)} flags for {live_rows} rows")
    if block_size and (min(accepted) < 0 or max(accepted) > block_size):
        raise ValueError(f"accepted: counts from {min(accepted)} to {max(accepted)}, the window is {block_size}")
