"""The way from a perfect copy to a reward, as steps that each change the value, and its lines for a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


def counted(number: int, noun: str) -> str:
    """`1 edit`, `2 edits`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


class Step(NamedTuple):
    """The reward after a factor, and what the factor is."""

    after: float
    cause: str


def waterfall_lines(steps: Sequence[Step]) -> list[str]:
    """A line for each step: the reward after it, the change, and the cause. The first step is the start."""
    lines = []
    before = None
    for step in steps:
        change = "" if before is None else f"{step.after - before:+.4f}" if step.after != before else "."
        lines.append(f"  {step.after:7.4f}  {change:>7}  {step.cause}")
        before = step.after
    return lines
