"""How many tokens to draft in the next round, from measured times and acceptance.

A window B > 0 is a draft-and-verify round: two forwards over n (B + 1) tokens, 2 to B + 2 tokens a row, fewer where a
response ends. B = 0 is a plain AR step: one forward over n tokens, one token a row. Tokens never depend on the
choice, so it may change at every round; what is fastest depends on the machine, the live rows and the drafter, and is
found while decoding:

    cost_model = CostModel()                            # one per model, kept over calls
    policy = AutoWindow(cost_model, ladder(16))         # one per call
    block_size = policy.choose(live_rows)               # then run the round and
    policy.observe(block_size, live_rows, seconds, accepted)

Exploring is nearly free: a window that was hardly measured lately at about so many rows is tried where it comes near
the best, at most every eighth round; AR now and then anyway, and drafting after long stretches of AR. "About so many
rows" is the same power of two: 1, 2 to 3, 4 to 7, …
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Literal, Protocol

from gravity_rl.decoding.cost import CostModel

Reason = Literal["fixed", "start", "fastest", "trial", "probe"]

#: A trial needs a window whose worth is within this share of the chosen one's, which is well measured itself, and the
#: last trial this many rounds ago.
REACH, TRIAL_GAP = 0.12, 8
#: The window stays unless another one is worth more by this share.
HYSTERESIS = 0.025
#: Without a plain AR step for so many rounds one is tried, whatever is predicted: it says most about AR, and is short.
AR_GAP = 256
#: Calls of fewer rounds make the next call time its first round as well, and allow a trial there. So does no call
#: before.
SHORT_CALL = 6
#: Decisions stand for several rounds once so many were timed.
LEARNING = 32


@dataclass(frozen=True)
class WindowChoice:
    """Consecutive rounds with the same window, chosen for the same reason."""

    first_round: int
    """Counted from 0 within the call."""
    rounds: int
    live_rows: int
    """At the first of these rounds."""
    block_size: int
    """Drafted tokens; 0 is a plain AR step."""
    reason: Reason
    """"fixed" by the caller; "start": nothing was measured yet; "fastest": worth most, or nearly, and used before;
    "trial": hardly measured yet, worth nearly as much; "probe": AR for long, is drafting worth it again?"""
    tokens_per_second: dict[int, float] = field(default_factory=dict)
    """By window, as predicted when this was decided, for about as many live rows; empty for "fixed" and "start"."""
    worth: dict[int, float] = field(default_factory=dict)
    """The same with other numbers of live rows in mind, see ``Decisions.worth``: what is decided by."""


class WindowPolicy(Protocol):
    """Chooses the window of every round of one call of ``generate``."""

    def choose(self, live_rows: int) -> int:
        """Drafted tokens of the next round, 0 for a plain AR step; each call is one round."""

    def observe(
        self, block_size: int, live_rows: int, seconds: float, accepted: Sequence[int], ended: Sequence[bool] = ()
    ) -> None:
        """Report a round.

        Args:
            block_size: its window B, 0 for an AR step.
            live_rows: rows in it.
            seconds: it took.
            accepted: for each live row the drafts (0 … B) that were committed; empty for an AR step.
            ended: for each live row whether its response ended in this round; empty if none did.
        """

    @property
    def choices(self) -> list[WindowChoice]:
        """All rounds so far, in order."""


class FixedWindow:
    """The same window at every round; 0 is plain AR decoding.

    Raises:
        ValueError: the window is negative.
    """

    def __init__(self, block_size: int):
        if block_size < 0:
            raise ValueError(f"block_size: {block_size} is negative")
        self._block_size = block_size
        self._log = _ChoiceLog()

    def choose(self, live_rows: int) -> int:
        return self._log.add(live_rows, self._block_size, "fixed")

    def observe(
        self, block_size: int, live_rows: int, seconds: float, accepted: Sequence[int], ended: Sequence[bool] = ()
    ) -> None:
        """Nothing to learn."""

    @property
    def choices(self) -> list[WindowChoice]:
        return self._log.choices()


class AutoWindow:
    """The window that is worth most, by predicted tokens a second, and rare trials of others.

    Args:
        cost_model: what is known about the model; learns from every round, but no times from the first one of a call
            unless the call before it was short.
        ladder: windows to choose from, ascending, starting with 0, such as ``ladder(16)``.

    Raises:
        ValueError: ``ladder`` is not ascending from 0.
    """

    def __init__(self, cost_model: CostModel, ladder: Sequence[int]):
        self._ladder = tuple(ladder)
        if self._ladder[:1] != (0,) or any(b <= a for a, b in zip(self._ladder, self._ladder[1:], strict=False)):
            raise ValueError(f"ladder: {list(ladder)} does not ascend from 0 (plain AR)")
        self._cost = cost_model
        self._favourite: int | None = None  # of this call
        short = cost_model.rounds - cost_model.call_began < SHORT_CALL
        cost_model.call_began = cost_model.rounds
        self._warming_up = not short  # in the first round of a call, which computes noise for many positions
        self._log = _ChoiceLog()

    def choose(self, live_rows: int) -> int:
        decisions = self._cost.decisions
        standing = decisions.standing(live_rows, self._ladder)
        if standing is not None:
            self._favourite = standing.block_size
            return self._log.add(live_rows, standing.block_size, "fastest", standing.speeds, standing.worth)
        speeds = self._cost.tokens_per_second(self._ladder, live_rows)
        if not self._cost.timed_rounds:
            return self._log.add(live_rows, max(speeds, key=speeds.__getitem__), "start")
        worth = decisions.worth(live_rows, speeds)
        self._favourite = self._best(worth, live_rows)
        exploration = self._exploration(worth, self._favourite, live_rows)
        stands = exploration is None and self._cost.timed_rounds >= LEARNING
        decisions.decide(live_rows, self._favourite, speeds, worth, stands=stands)
        return self._log.add(live_rows, *(exploration or (self._favourite, "fastest")), speeds, worth)

    def _best(self, worth: dict[int, float], live_rows: int) -> int:
        best = max(worth, key=worth.__getitem__)
        last = self._cost.decisions.last(live_rows) if self._favourite is None else self._favourite
        return last if last in worth and worth[last] * (1 + HYSTERESIS) >= worth[best] else best

    def _exploration(self, worth: dict[int, float], favourite: int, live_rows: int) -> tuple[int, Reason] | None:
        """Another window for one round, to learn about it."""
        if favourite == 0 and len(self._ladder) > 1 and self._cost.probe_due(self._ladder[1], live_rows):
            return self._ladder[1], "probe"
        trial = None if self._warming_up else self._trial(worth, favourite, live_rows)
        if trial is None:
            return None
        self._cost.last_trial = self._cost.rounds
        return trial, "trial"

    def _trial(self, worth: dict[int, float], favourite: int, live_rows: int) -> int | None:
        if self._cost.rounds - self._cost.last_trial < TRIAL_GAP or not self._cost.settled(favourite, live_rows):
            return None
        limit = worth[favourite] * (1 - REACH)
        untried = [
            block_size
            for block_size, value in worth.items()
            if (value >= limit or (block_size == 0 and self._cost.rounds - self._cost.last_ar >= AR_GAP))
            and block_size != favourite
            and not self._cost.settled(block_size, live_rows)
        ]
        return max(untried, key=worth.__getitem__, default=None)

    def observe(
        self, block_size: int, live_rows: int, seconds: float, accepted: Sequence[int], ended: Sequence[bool] = ()
    ) -> None:
        self._cost.observe(block_size, live_rows, seconds, accepted, ended, timed=not self._warming_up)
        self._warming_up = False

    @property
    def choices(self) -> list[WindowChoice]:
        return self._log.choices()


def ladder(max_block: int) -> tuple[int, ...]:
    """0, 2, 4, 8, … and ``max_block``; (0,) is plain AR only.

    Raises:
        ValueError: ``max_block`` is negative.
    """
    if max_block < 0:
        raise ValueError(f"max_block: {max_block} is negative")
    powers = [2**k for k in range(1, max_block.bit_length()) if 2**k < max_block]
    return (0, *powers, *([max_block] if max_block else []))


class _ChoiceLog:
    """Run-length coded choices."""

    def __init__(self) -> None:
        self._starts: list[WindowChoice] = []
        self._lengths: list[int] = []
        self._rounds = 0

    def add(
        self,
        live_rows: int,
        block_size: int,
        reason: Reason,
        speeds: Mapping[int, float] = MappingProxyType({}),
        worth: Mapping[int, float] = MappingProxyType({}),
    ) -> int:
        last = self._starts[-1] if self._starts else None
        if last is None or last.block_size != block_size or last.reason != reason:
            self._starts.append(WindowChoice(self._rounds, 1, live_rows, block_size, reason, dict(speeds), dict(worth)))
            self._lengths.append(0)
        self._lengths[-1] += 1
        self._rounds += 1
        return block_size

    def choices(self) -> list[WindowChoice]:
        return [replace(start, rounds=rounds) for start, rounds in zip(self._starts, self._lengths, strict=True)]
