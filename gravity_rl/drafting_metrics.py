"""What drafting achieves during a run: metrics of every generation by task, and a warning when drafts stop fitting.

During GRPO the drafter is trained through the shared weights alone, so its drafts may come to fit less well. The
completions stay those of plain sampling whatever it proposes: only these numbers tell. They have names of their own
(``drafting/...``, ``rollout/...``), because everything else that a run logs does not depend on the engine.
"""

from __future__ import annotations

import logging
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from accelerate.utils import gather_object

from gravity_rl.decoding import BatchStats, DecodeStats
from gravity_rl.metrics import ALL_TASKS
from gravity_rl.recorder import RunDirectory, read_metrics
from gravity_rl.rollout import Completions

logger = logging.getLogger(__name__)

#: Drafts that must have been compared with the verifier before their acceptance is that of the start, or is compared
#: with it. Acceptance differs from prompt to prompt, and a hundred drafts may be those of a single one.
MIN_TESTED = 1000
#: Drafts that are enough to tell that a drafter does not work.
MIN_FIRST_TESTED = 128
#: Acceptance below which a drafter counts as one that never worked: a window of any size then has a third of an
#: accepted draft. With a wrong mask id, the shipped model still has some of its drafts accepted.
NEAR_ZERO = 0.25
_START = "acceptance_start"
_HOW_TO_TELL = (
    "The completions are right whatever is drafted, but they take longer. A wrong mask id, a wrong shift and drift all "
    "look like this. To tell them apart, run `python -m gravity_rl.joint.evaluate` on the start checkpoint: if "
    "accepted_per_round is low there too, mask id or shift are wrong (check block_diffusion.json); if it is fine there "
    "and low for a later checkpoint, the drafter has drifted: train it again from that checkpoint with "
    "gravity_rl/adapt.py."
)


def sum_by_task(tasks: Iterable[str], rows: Iterable[DecodeStats]) -> dict[str, DecodeStats]:
    """Task → the sum over its rows."""
    groups: dict[str, list[DecodeStats]] = defaultdict(list)
    for task, stats in zip(tasks, rows, strict=True):
        groups[task].append(stats)
    return {task: DecodeStats.total(groups[task]) for task in sorted(groups)}


def drafting_values(stats: DecodeStats) -> dict[str, float]:
    """Tokens a round, shares of accepted drafts, mean window and share of AR rounds; without drafts only some exist."""
    values = {
        "tokens_per_round": stats.tokens_per_round,
        "accepted_share": stats.accepted_share,
        "acceptance": stats.acceptance,
        "window": stats.drafted / stats.draft_forwards if stats.draft_forwards else math.nan,
        "ar_share": stats.ar_forwards / stats.rounds if stats.rounds else math.nan,
    }
    return {name: value for name, value in values.items() if not math.isnan(value)}


def forward_values(stats: Sequence[BatchStats]) -> dict[str, float]:
    """Forwards, tokens a forward and prefilled prompts of all batches, and seconds by phase of the slowest batch."""
    forwards = sum(batch.forwards for batch in stats)
    phases = sorted({phase for batch in stats for phase in batch.seconds})
    return {
        "forwards": float(forwards),
        "tokens_per_forward": sum(batch.tokens for batch in stats) / forwards,
        "prefills": float(sum(batch.prefills for batch in stats)),
        **{f"seconds/{phase}": max(batch.seconds.get(phase, 0.0) for batch in stats) for phase in phases},
    }


@dataclass
class _Watched:
    start: float | None = None
    accepted: int = 0
    tested: int = 0
    warned: bool = False


class AcceptanceWatch:
    """Compares acceptance with that of the start of the run, task by task.

    Drafts of a task are pooled over as many generations as it takes to have ``MIN_TESTED`` of them, at the start and
    later. The acceptance of one tested draft does not depend on the windows that were chosen.

    Args:
        starts: task, or ``all`` → acceptance at the start, of a run that is continued.
    """

    def __init__(self, starts: Mapping[str, float]):
        self._tasks: dict[str, _Watched] = defaultdict(_Watched)
        for task, start in starts.items():
            self._tasks[task].start = start

    @property
    def starts(self) -> dict[str, float]:
        """Task → acceptance at the start, as far as it is known."""
        return {task: watched.start for task, watched in self._tasks.items() if watched.start is not None}

    def check(self, task: str, stats: DecodeStats) -> str | None:
        """What is wrong, if acceptance is near zero at the start, or has fallen under half, and was not yet said."""
        watched = self._tasks[task]
        watched.accepted += stats.accepted_drafts
        watched.tested += stats.tested
        start = watched.start
        if watched.tested < (MIN_FIRST_TESTED if start is None else MIN_TESTED):
            return None
        now = watched.accepted / watched.tested
        if watched.tested >= MIN_TESTED:
            watched.start = now if start is None else start
            watched.accepted = watched.tested = 0
        is_bad = now < NEAR_ZERO if start is None else start >= NEAR_ZERO and now < start / 2
        was_known, watched.warned = watched.warned, is_bad
        if was_known or not is_bad:
            return None
        which = "all tasks" if task == ALL_TASKS else f"task {task!r}"
        if start is None:
            return f"drafting of {which}: only {now:.0%} of the first drafts were accepted: the drafter hardly works"
        return (
            f"drafting of {which}: {now:.0%} of tested drafts are accepted, less than half of the {start:.0%} at the "
            "start of the run"
        )


class DraftingLog:
    """Turns what the processes' completions took into metrics, and warns in the console of the main process.

    Args:
        run: the run directory, whose ``metrics.jsonl`` has the acceptance that a continued run started with.
        drafts: whether the run drafts.
    """

    def __init__(self, run: RunDirectory, *, drafts: bool):
        self.run, self.drafts = run, drafts
        self._watch: AcceptanceWatch | None = None

    def metrics(self, tasks: Sequence[str], completions: Completions) -> dict[str, float]:
        """Metrics of one generation of all processes; none for an engine that counts nothing.

        Args:
            tasks: (N,) task of each completion of this process.
            completions: this process's.
        """
        if completions.row_stats is None or completions.stats is None:
            return {}
        by_task = sum_by_task(*zip(*gather_object(list(zip(tasks, completions.row_stats, strict=True))), strict=True))
        by_task[ALL_TASKS] = DecodeStats.total(by_task.values())
        metrics = {
            f"drafting/{task}/{name}": value
            for task, stats in by_task.items()
            for name, value in drafting_values(stats).items()
        }
        metrics |= {f"rollout/{name}": value for name, value in _gathered_forwards(completions.stats).items()}
        if self.drafts and self.run.is_main:
            metrics |= self._watched(by_task)
        return metrics

    def _watched(self, by_task: Mapping[str, DecodeStats]) -> dict[str, float]:
        """Acceptance at the start, for the tasks at hand; warns."""
        if self._watch is None:
            self._watch = AcceptanceWatch(recorded_starts(self.run))
        found = [self._watch.check(task, stats) for task, stats in by_task.items()]
        faults = [fault for fault in found if fault is not None]
        if faults:
            logger.warning("%s. %s", "; ".join(faults), _HOW_TO_TELL)
        return {f"drafting/{task}/{_START}": start for task, start in self._watch.starts.items() if task in by_task}


def _gathered_forwards(stats: BatchStats) -> dict[str, float]:
    """:func:`forward_values` of all processes; the windows that were chosen stay where they are, they are many."""
    return forward_values(gather_object([replace(stats, choices=[])]))


def recorded_starts(run: RunDirectory) -> dict[str, float]:
    """Task → acceptance at the start of a run that is continued, from its ``metrics.jsonl``."""
    lines: list[dict[str, Any]] = read_metrics(run.path) if run.metrics_file.is_file() else []
    return {
        name.split("/")[1]: value
        for line in lines
        for name, value in line.items()
        if name.startswith("drafting/") and name.endswith(f"/{_START}") and value is not None
    }
