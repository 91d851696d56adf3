"""What a round of decoding costs and yields: times by window and live rows, and the acceptance of drafts.

Both are measured while decoding and follow what they see; ``window.py`` chooses by them. A single round says little
about its time, so a line through all of them comes first and what deviates from it second. How fast the machine is
changes for some rounds or calls, by more than windows differ, so a round is compared with those before it. Stalls only
ever add time, so slow outliers hardly count.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from gravity_rl.decoding.acceptance import Acceptance
from gravity_rl.decoding.decisions import Decisions

#: Before rounds of different sizes were measured, 512 tokens are taken to double the time of a forward. Optimistic for
#: a CPU: then one round over many tokens corrects it, while pessimism would never be found out.
PRIOR_SLOPE, PRIOR_SLOPE_WEIGHT = 1 / 512, 1e-3
#: A token adds at most this share of the time of an empty forward: reading the weights costs more than that.
MAX_SLOPE = 1 / 8
#: Half-lives in rounds: of the line, and of what deviates from it.
HALF_LIFE_TIMES, HALF_LIFE_DEVIATIONS = 256, 96
#: Rounds that say how a window deviates from the line before half of it is believed: single rounds vary by tens of
#: per cent, real deviations are rarely more than that.
DOUBT = 9.0
#: Half-life in rounds of what deviates, without new measurements: a slow spell of the machine does not speak for ever.
HALF_LIFE_IDLE = 350
#: What deviates from the line is learned anew from this round on: the first ones of a process are slow, by window
#: differently.
WARM_UP_ROUNDS = 24
#: A single round beyond this factor is a stall of the machine, or warm-up.
MAX_DEVIATION = 1.5
#: Of the last rounds, the latest has this weight.
NEWEST = 0.5
#: At most this share of a slow spell is expected to last; half-life in rounds of what is known about that.
MOST_LASTING, HALF_LIFE_LASTING = 0.95, 128
#: Doubt that slow spells last: squared logarithms of times.
PRIOR_SQUARES = 0.05
MIN_SECONDS, MAX_SECONDS = 1e-6, 1e6
#: Rounds that are kept at most before they are learned from.
MOST_UNLEARNED = 64
#: Weight of a window's measurements at about so many live rows from which on it needs no trial: that of three lately.
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
    a window deviates from that line is learned slowly, for it and for it at about as many live rows. What is
    accepted is learned by live rows, too: the last rows of a batch are those that accept little, and often all that
    large windows are used for. Rounds are kept until something is asked, since learning from several at once takes less
    time from each of them.
    """

    def __init__(self) -> None:
        self.call_began = self.last_trial = self.last_ar = 0  # at which of the rounds
        self.decisions = Decisions()
        self._unlearned: list[_Round] = []
        self._learned = self._timed = 0  # rounds that were learned from, and those of them whose times were
        self._acceptance: dict[int, Acceptance] = {}  # by doubling of live rows
        self._line_fit = _LineFit()
        self._by_window: dict[int, _Deviation] = {}
        self._by_rows: dict[tuple[int, int], _Deviation] = {}  # by window and doubling of live rows
        self._machine = _Machine()
        self._ar_rounds, self._ar_seconds = 0, 0.0  # since the last drafted round

    @property
    def rounds(self) -> int:
        return self._learned + len(self._unlearned)

    @property
    def timed_rounds(self) -> int:
        self._learn()
        return self._timed

    def acceptance(self, live_rows: int) -> Acceptance:
        """What about so many live rows accept."""
        self._learn()
        return self._acceptance_of(live_rows)

    def _acceptance_of(self, live_rows: int) -> Acceptance:
        doubling = live_rows.bit_length()
        if doubling not in self._acceptance:
            self._acceptance[doubling] = Acceptance(rows=1 << (doubling - 1))
        return self._acceptance[doubling]

    def tokens_per_second(self, windows: Sequence[int], live_rows: int) -> dict[int, float]:
        """Predicted by window, of all rows together. Before anything was measured only the ratios mean something.

        What a round takes whatever its rows is taken until the longest response has ended, so it is divided by the
        tokens of that; what its rows add, by the tokens of all.
        """
        self._learn()
        acceptance = self._acceptance_of(live_rows)
        speeds = {}
        for block_size in windows:
            seconds_a_token = self._predict(block_size, live_rows)
            if block_size:
                shared = self._line_fit.shared(block_size, live_rows)
                longest, all_rows = acceptance.tokens_of_longest(block_size), acceptance.committed_tokens(block_size)
                seconds_a_token *= shared / longest + (1.0 - shared) / all_rows
            speeds[block_size] = live_rows / seconds_a_token
        return speeds

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
        deviation = window.mean(self._learned)
        return line * math.exp(deviation if here is None else here.mean(self._learned, deviation))

    def settled(self, block_size: int, live_rows: int) -> bool:
        """Whether this window was measured more than twice with about so many live rows, not too long ago."""
        self._learn()
        here = self._by_rows.get((block_size, live_rows.bit_length()))
        return here is not None and here.weight(self._learned) >= SETTLED

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
        self._unlearned.append((block_size, live_rows, seconds if timed else None, tuple(accepted), tuple(ended)))
        if not block_size:
            self.last_ar = self.rounds
        if len(self._unlearned) >= MOST_UNLEARNED:
            self._learn()

    def _learn(self) -> None:
        """Learn from the rounds that were kept."""
        rounds, self._unlearned = self._unlearned, []
        for block_size, live_rows, seconds, accepted, ended in rounds:
            if seconds is not None:
                self._learn_times(block_size, live_rows, min(max(seconds, MIN_SECONDS), MAX_SECONDS))
            self._learn_tokens(block_size, live_rows, accepted, ended)
            self.decisions.observe(live_rows, self._predict(block_size, live_rows))
            self._learned += 1

    def _learn_tokens(self, block_size: int, live_rows: int, accepted: Sequence[int], ended: Sequence[bool]) -> None:
        acceptance = self._acceptance_of(live_rows)
        ends = sum(ended)
        # The end is mostly the first token of a round or a draft, and the verifier's token is not committed then.
        acceptance.observe_ends(ends, sum(accepted) + (2 * live_rows - ends if block_size else live_rows))
        if block_size == 0:
            self._ar_rounds += 1
            self._ar_seconds += self._predict(0, live_rows)
            acceptance.fade()
            return
        if self._ar_rounds and sum(accepted) / live_rows <= acceptance.committed_drafts(block_size) + SURPRISE:
            self._ar_rounds, self._ar_seconds = 0, 0.0
        acceptance.observe(block_size, accepted, ended)

    def _learn_times(self, block_size: int, live_rows: int, seconds: float) -> None:
        self._timed += 1
        if self._timed == WARM_UP_ROUNDS:
            self._by_window.clear()
            self._by_rows.clear()
        surprise = math.log(seconds / self._predict(block_size, live_rows))
        seconds /= math.exp(self._machine.slowness())
        if self._timed > WARM_UP_ROUNDS:  # before, predictions are to blame
            self._machine.observe(surprise)
        self._line_fit.add(block_size, live_rows, seconds)
        deviation = math.log(seconds / self._line_fit.seconds(block_size, live_rows))
        self._by_window.setdefault(block_size, _Deviation()).add(deviation, self._learned)
        self._by_rows.setdefault((block_size, live_rows.bit_length()), _Deviation()).add(deviation, self._learned)


class _Machine:
    """How much slower the machine is for the moment: what the last rounds took beyond their predictions (logarithms),
    in the share in which such values have lasted until the next round."""

    def __init__(self) -> None:
        self._last = 0.0  # mean of the last rounds
        self._squares = self._products = 0.0

    def slowness(self) -> float:
        share = self._products / (self._squares + PRIOR_SQUARES)
        return min(max(share, 0.0), MOST_LASTING) * self._last

    def observe(self, surprise: float) -> None:
        limit = math.log(MAX_DEVIATION)
        surprise = min(max(surprise, -limit), limit)
        keep = 0.5 ** (1 / HALF_LIFE_LASTING)
        self._squares = keep * self._squares + self._last * self._last
        self._products = keep * self._products + surprise * self._last
        self._last += NEWEST * (surprise - self._last)


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

    def shared(self, block_size: int, live_rows: int) -> float:
        """The share of a round that does not depend on its rows."""
        return self._base / (self._base + self._slope * live_rows * (block_size + 1))

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
    """Mean logarithm of measured over predicted times, from counts that decay, drawn towards a prior by doubt.

    ``now`` is a number of rounds of any window.
    """

    def __init__(self) -> None:
        self._weight = self._sum = 0.0
        self._last = 0  # when the last one was counted
        self._beyond = 0  # whether it was far above (1) or below (-1) the mean

    def weight(self, now: int) -> float:
        return self._weight * self._remembered(now)

    def mean(self, now: int, prior: float = 0.0) -> float:
        remembered = self._remembered(now)
        return (self._sum * remembered + DOUBT * prior) / (self._weight * remembered + DOUBT)

    def add(self, deviation: float, now: int) -> None:
        """Count a round. One that is far off is a stall and counts nothing, two in a row are a change."""
        limit, mean = math.log(MAX_DEVIATION), self.mean(now)
        before, self._beyond = self._beyond, (deviation > mean + limit) - (deviation < mean - limit)
        if self._beyond and self._beyond != before:
            return
        keep = 0.5 ** (1 / HALF_LIFE_DEVIATIONS) * self._remembered(now)
        self._weight = keep * self._weight + 1.0
        self._sum = keep * self._sum + deviation
        self._last = now

    def _remembered(self, now: int) -> float:
        return 0.5 ** ((now - self._last) / HALF_LIFE_IDLE)


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
