"""The summary of a scored file: a table with a column for each task, from sums that do not grow with the file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from rewards import Score

# Quartiles are read from counts of values in steps of this.
_STEP = 0.001


class TaskSummary:
    """What is kept of the scores of one task.

    Attributes:
        rows: how many there were, those over their deadline included.
        late: how many were over their deadline and have no score.
        gated: how many the gate marked down.
        total: sum of the rewards.
        parts: sums of the parts.
    """

    def __init__(self) -> None:
        self.rows = self.late = self.gated = 0
        self.total = 0.0
        self.parts: Counter[str] = Counter()
        self._values: Counter[int] = Counter()

    def add(self, scored: Score | None) -> None:
        """Counts a score, or None for one that was over its deadline."""
        self.rows += 1
        if scored is None:
            self.late += 1
            return
        self.total += scored.value
        self.gated += scored.parts["gate"] < 1.0
        self.parts.update(scored.parts)
        self._values[round(scored.value / _STEP)] += 1

    @property
    def scored(self) -> int:
        """How many have a score."""
        return self.rows - self.late

    def quantile(self, share: float) -> float:
        """The smallest reward that at least this share of the rewards does not exceed, to 0.001."""
        wanted = max(1.0, share * self.scored)
        seen = 0
        for step in sorted(self._values):
            seen += self._values[step]
            if seen >= wanted:
                break
        return step * _STEP


_QUANTILES = {"min": 0.0, "25%": 0.25, "median": 0.5, "75%": 0.75, "max": 1.0}


def summary_lines(summaries: Mapping[str, TaskSummary]) -> list[str]:
    """A line for each quantity and a column for each task that occurs; the parts are means."""
    present = {task: summary for task, summary in summaries.items() if summary.rows}
    if not present:
        return ["no lines scored"]
    columns = present.values()
    rows = {"": list(present), "lines": [str(summary.rows) for summary in columns]}
    if any(summary.late for summary in columns):
        rows["over the deadline"] = [str(summary.late) for summary in columns]
    rows["gate below 1"] = [str(summary.gated) for summary in columns]
    rows["mean reward"] = [_mean(summary, summary.total) for summary in columns]
    for name, share in _QUANTILES.items():
        rows[f"  {name}"] = [f"{summary.quantile(share):.3f}" if summary.scored else "" for summary in columns]
    names = dict.fromkeys(name for summary in columns for name in summary.parts)
    for name in names:
        rows[f"mean {name}"] = [_mean(s, s.parts[name]) if name in s.parts else "" for s in columns]
    width = max(map(len, rows))
    return [" ".join([name.ljust(width), *(cell.rjust(9) for cell in cells)]).rstrip() for name, cells in rows.items()]


def _mean(summary: TaskSummary, total: float) -> str:
    return f"{total / summary.scored:.3f}" if summary.scored else ""
