"""Simulated decoding with measured round times, to judge choices of the window: no model, no clock.

Simulated seconds are exact; what the policy is told of them is noisy and has stalls. Whether a draft is right depends
on its row and position only, so that all policies decode the same responses and can be compared closely.
"""

from __future__ import annotations

import math
import random
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence

from gravity_rl.decoding.window import WindowPolicy, ladder

Hazard = Callable[[int], float]

LADDER = ladder(16)
WIDTHS = (1, 3, 5, 9, 17)  # positions of a row in a forward
#: Milliseconds of a forward by live rows and width: a tiny model on one CPU thread, and a GPU that is nearly flat.
CPU = {
    1: (2.0, 2.2, 2.5, 2.6, 3.0),
    4: (2.3, 3.0, 3.2, 3.8, 4.2),
    28: (3.5, 5.4, 6.2, 8.8, 14.5),
    56: (4.2, 8.4, 10.6, 15.9, 27.0),
}
GPU = {1: (8.0, 8.1, 8.15, 8.2, 8.3), 8: (8.0, 8.1, 8.15, 8.2, 8.3), 64: (8.3, 8.6, 9.0, 9.4, 10.2)}
Times = Mapping[int, tuple[float, ...]]


def interpolate(xs: Sequence[int], ys: Sequence[float], x: float) -> float:
    i = min(max(bisect_right(xs, x) - 1, 0), len(xs) - 2)
    return ys[i] + (ys[i + 1] - ys[i]) * (x - xs[i]) / (xs[i + 1] - xs[i])


def round_seconds(times: Times, block_size: int, live_rows: int) -> float:
    by_rows = [interpolate(WIDTHS, forward, block_size + 1) for forward in times.values()]
    forward = interpolate(list(times), by_rows, live_rows)
    return (2 * forward + 0.3 + 0.01 * live_rows if block_size else forward + 0.25) / 1e3


def constant(hazard: float) -> Hazard:
    return lambda position: hazard


def ragged(rows: int, call: int) -> list[int]:
    """Lengths of responses, with a long tail."""
    rng = random.Random(f"{rows} {call}")
    return [max(4, min(1500, int(rng.lognormvariate(math.log(150), 0.8)))) for _ in range(rows)]


class Simulation:
    """A model: its round times, its drafter, and noise in what is observed of them."""

    def __init__(self, times: Times, hazard: Hazard, *, stall_share: float = 1 / 300, seed: int = 0):
        self.times, self.hazard, self.stall_share = times, hazard, stall_share
        self.noise = random.Random(seed)

    def observed(self, seconds: float) -> float:
        stalled = self.noise.random() < self.stall_share
        return seconds * math.exp(self.noise.gauss(0, 0.05)) * (self.noise.choice((3, 100, 10_000)) if stalled else 1)

    def decode(
        self,
        policy: WindowPolicy,
        lengths: Sequence[int],
        *,
        call: int = 0,
        max_rounds: int | None = None,
        slow_rounds: Sequence[float] = (),
    ) -> tuple[float, int]:
        """Seconds and tokens. ``slow_rounds``: factors on the observed times of the first rounds."""
        drafts = random.Random(call)
        draws = [[drafts.random() for _ in range(length + 32)] for length in lengths]
        written = [0] * len(lengths)
        live = list(range(len(lengths)))
        total, rounds = 0.0, 0
        while live and rounds != max_rounds:
            block_size = policy.choose(len(live))
            seconds = round_seconds(self.times, block_size, len(live))
            accepted = [self.agreed(draws[row], written[row], block_size) for row in live] if block_size else []
            ended = []
            for at, (row, count) in enumerate(zip(live, accepted or [-1] * len(live), strict=True)):
                room = lengths[row] - written[row]
                written[row] += count + 2
                ended.append(written[row] >= lengths[row])
                if accepted:
                    accepted[at] = min(count, max(room - 1, 0))
            slow = slow_rounds[rounds] if rounds < len(slow_rounds) else 1
            policy.observe(block_size, len(live), self.observed(seconds) * slow, accepted, ended)
            total += seconds
            rounds += 1
            live = [row for row in live if written[row] < lengths[row]]
        return total, sum(map(min, written, lengths))

    def agreed(self, draws: list[float], start: int, block_size: int) -> int:
        count = 0
        while count < block_size and draws[start + count] < self.hazard(count + 1):
            count += 1
        return count


def speed(results: Sequence[tuple[float, int]]) -> float:
    return sum(tokens for _, tokens in results) / sum(seconds for seconds, _ in results)


def windows_by_round(policy: WindowPolicy) -> list[int]:
    return [choice.block_size for choice in policy.choices for _ in range(choice.rounds)]


def share(policy: WindowPolicy, windows: Sequence[int]) -> float:
    """Share of rounds with any of these windows."""
    chosen = windows_by_round(policy)
    return sum(map(chosen.count, windows)) / len(chosen)
