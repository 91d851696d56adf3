"""The bookkeeping of `rewards.workers`: which samples wait, which worker gets which, and what became of them.

Nothing here knows of processes. A batch is cut into groups of samples with the same reference; workers take chunks of
a group, keep to their group while it lasts, and help with the largest one when no untouched group is left. Chunks
shrink towards the end of a batch, so that no worker is left with a long tail.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from rewards.batch import samples
from rewards.types import Score
from rewards.workers.link import PoolError

_MOST_IN_CHUNK = 8
_ERRORS = {"TypeError": TypeError, "ValueError": ValueError}


@dataclass(eq=False)
class Sample:
    """One prediction. `places` are its positions in the batch, several for equal samples."""

    prediction: str
    places: list[int]
    deaths: int = 0


@dataclass(eq=False)
class Group:
    """The waiting samples of a batch that share task and reference; `cost` is their length, in characters."""

    batch: Batch
    task: str
    reference: str
    waiting: deque[Sample] = field(default_factory=deque)
    cost: int = 0
    worker: int | None = None


class Batch:
    """What one call has asked for, and what is known of it so far.

    Attributes:
        groups: the samples.
        left: distinct samples without an outcome.
        timeouts, deaths: samples without a score, by reason.

    Raises:
        TypeError: an argument is one string, or a sample holds something else than strings.
        ValueError: the lengths differ.
    """

    def __init__(self, task: Sequence[str], predictions: Sequence[str], references: Sequence[str]) -> None:
        groups: dict[tuple[str, str], Group] = {}
        known: dict[tuple[str, str, str], Sample] = {}
        for place, (name, prediction, reference) in enumerate(samples(task, predictions, references)):
            sample = known.get((name, prediction, reference))
            if sample is not None:
                sample.places.append(place)
                continue
            sample = known[name, prediction, reference] = Sample(prediction, [place])
            group = groups.setdefault((name, reference), Group(self, name, reference))
            group.waiting.append(sample)
            group.cost += len(prediction) + len(reference)
        self.groups = list(groups.values())
        self.left = len(known)
        self.timeouts = self.deaths = 0
        self._scores: list[Score | None] = [None] * len(predictions)
        self._errors: dict[int, Exception] = {}

    def set_answer(self, sample: Sample, answer: Sequence[Any]) -> None:
        """Take what a worker has answered: `score` with value and parts, or `error`."""
        self.left -= 1
        if answer[0] == "score":
            score = Score(*answer[1:])
            for place in sample.places:
                self._scores[place] = score
            return
        kind, message, trace = answer[1:]
        error = _ERRORS.get(kind, RuntimeError)(f"sample {sample.places[0]}: {message}")
        error.add_note(f"In the worker:\n{trace}")
        self._errors[sample.places[0]] = error

    def results(self) -> list[Score | None]:
        """The scores of a finished batch; raises the error of its first bad sample, if there is one."""
        if self._errors:
            raise self._errors[min(self._errors)]
        return self._scores


class WorkQueue:
    """The batches that threads wait for, oldest first. Every method may be called from any thread.

    Attributes:
        timeouts, deaths: samples of all batches without a score, by reason.
        stopped: why no worker takes samples any more; None while they do.
    """

    def __init__(self, workers: int) -> None:
        self.timeouts = self.deaths = 0
        self.stopped: str | None = None
        self._changed = threading.Condition()
        self._groups: list[Group] = []  # those with waiting samples, by batch
        self._workers = workers
        self._ready = 0

    def stop(self, reason: str) -> None:
        """Let waiting callers and workers go; only the first reason counts."""
        with self._changed:
            self.stopped = self.stopped or reason
            self._changed.notify_all()

    def add_ready_worker(self) -> None:
        with self._changed:
            self._ready += 1
            self._changed.notify_all()

    def wait_until_ready(self) -> bool:
        """Wait for the first start of every worker. False if one fails, which stops the queue."""
        with self._changed:
            self._changed.wait_for(lambda: self.stopped or self._ready >= self._workers)
            return self.stopped is None

    def raise_if_stopped(self) -> None:
        """Raises PoolError with the reason."""
        if self.stopped is not None:
            raise PoolError(self.stopped)

    def run(self, batch: Batch) -> None:
        """Have the workers score a batch and wait for it. Raises PoolError if they stop before it is done."""
        with self._changed:
            self.raise_if_stopped()
            self._groups += batch.groups
            self._changed.notify_all()
            try:
                self._changed.wait_for(lambda: self.stopped or not batch.left)
                if batch.left:
                    self.raise_if_stopped()
            finally:
                batch.groups.clear()  # so that an interrupted batch gets nothing put back
                self._groups = [group for group in self._groups if group.batch is not batch]

    def take(self, worker: int) -> tuple[Group, list[Sample]]:
        """Wait for samples and take some of one group. Raises PoolError when there will be none."""
        with self._changed:
            self._changed.wait_for(lambda: self.stopped or self._groups)
            self.raise_if_stopped()
            oldest = self._groups[0].batch
            choices = [group for group in self._groups if group.batch is oldest]
            group = max(choices, key=lambda group: (group.worker == worker, group.worker is None, group.cost))
            share = sum(len(group.waiting) for group in choices) // (4 * self._workers)
            size = min(_MOST_IN_CHUNK, max(1, share), len(group.waiting))
            chunk = [group.waiting.popleft() for _ in range(size)]
            group.worker = worker
            group.cost -= sum(len(sample.prediction) + len(group.reference) for sample in chunk)
            if not group.waiting:
                self._groups.remove(group)
            return group, chunk

    def put_back(self, group: Group, chunk: deque[Sample]) -> None:
        """Return samples that were taken and not scored."""
        with self._changed:
            if not chunk or group not in group.batch.groups:
                return
            if not group.waiting:
                self._groups.insert(0, group)
            group.waiting.extendleft(reversed(chunk))
            group.cost += sum(len(sample.prediction) + len(group.reference) for sample in chunk)
            self._changed.notify_all()

    def set_answer(self, group: Group, sample: Sample, answer: Sequence[Any]) -> None:
        """Record a worker's answer; see `Batch.set_answer`."""
        with self._changed:
            group.batch.set_answer(sample, answer)
            self._notify_if_done(group.batch)

    def give_up(self, group: Group, sample: Sample, outcome: str) -> None:
        """Leave a sample without a score, because of a `timeout` or a `death`."""
        with self._changed:
            batch, count = group.batch, len(sample.places)
            if outcome == "timeout":
                self.timeouts, batch.timeouts = self.timeouts + count, batch.timeouts + count
            else:
                self.deaths, batch.deaths = self.deaths + count, batch.deaths + count
            batch.left -= 1
            self._notify_if_done(batch)

    def _notify_if_done(self, batch: Batch) -> None:
        if not batch.left:
            self._changed.notify_all()
