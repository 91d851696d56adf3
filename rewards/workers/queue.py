"""The bookkeeping of `rewards.workers`: which samples wait, which worker gets which, and what became of them.

Nothing here knows of processes. A batch is cut into groups of samples with the same reference; workers take chunks of
a group, keep to their group while it lasts, and help with the largest one when no untouched group is left. Chunks
shrink towards the end of a batch, so that no worker is left with a long tail.
"""

from __future__ import annotations

import heapq
import itertools
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
    """The waiting samples of a batch that share task and reference.

    Attributes:
        cost: their length, in characters.
        worker: the one that has taken samples of it last.
    """

    batch: Batch
    task: str
    reference: str
    waiting: deque[Sample] = field(default_factory=deque)
    cost: int = 0
    worker: int | None = None

    def count(self, added: Sequence[Sample] | deque[Sample], sign: int = 1) -> None:
        """Keep the cost right when samples come, or go with `sign` -1."""
        self.cost += sign * sum(len(sample.prediction) + len(self.reference) for sample in added)


class Batch:
    """What one call has asked for, and what is known of it so far.

    Attributes:
        waiting: distinct samples that no worker has.
        left: distinct samples without an outcome.
        timeouts, deaths: samples without a score, by reason.
        outcomes: of each place, the score or the error; None where there is neither, or not yet.

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
            group.count([sample])
        self.left = self.waiting = len(known)
        self.timeouts = self.deaths = 0
        self.outcomes: list[Score | Exception | None] = [None] * len(predictions)
        self._untouched = deque(sorted(groups.values(), key=lambda group: group.cost, reverse=True))
        self._own: dict[int, Group] = {}  # which a worker has taken samples of last
        self._by_cost: list[tuple[int, int, Group]] = []  # heap of those begun; holds entries of the past, too
        self._pushes = itertools.count()

    def take(self, worker: int, workers: int) -> tuple[Group, list[Sample]]:
        """Some of the waiting samples, of one group; there must be some. `workers` is how many share the batch."""
        group = self._choose(worker)
        size = min(_MOST_IN_CHUNK, max(1, self.waiting // (4 * workers)), len(group.waiting))
        chunk = [group.waiting.popleft() for _ in range(size)]
        group.count(chunk, -1)
        group.worker, self._own[worker] = worker, group
        self.waiting -= size
        self._push(group)
        return group, chunk

    def put_back(self, group: Group, chunk: deque[Sample]) -> None:
        """Have samples that were taken and not scored wait again."""
        group.waiting.extendleft(reversed(chunk))
        group.count(chunk)
        self.waiting += len(chunk)
        self._push(group)

    def _choose(self, worker: int) -> Group:
        """The worker's own group, else the largest that is untouched, else the largest."""
        own = self._own.get(worker)
        if own is not None and own.waiting and own.worker == worker:
            return own
        if self._untouched:
            return self._untouched.popleft()
        while True:
            cost, _, group = heapq.heappop(self._by_cost)
            if group.waiting and group.cost == -cost:
                return group

    def _push(self, group: Group) -> None:
        if group.waiting:
            heapq.heappush(self._by_cost, (-group.cost, next(self._pushes), group))

    def set_answer(self, sample: Sample, answer: Sequence[Any]) -> None:
        """Take what a worker has answered: `score` with value and parts, or `error`."""
        self.left -= 1
        outcome: Score | Exception
        if answer[0] == "score":
            outcome = Score(*answer[1:])
        else:
            kind, message, trace = answer[1:]
            outcome = _ERRORS.get(kind, RuntimeError)(message)
            outcome.add_note(f"In the worker:\n{trace}")
        for place in sample.places:
            self.outcomes[place] = outcome


class WorkQueue:
    """The batches that threads wait for, oldest first. Every method may be called from any thread.

    Attributes:
        timeouts, deaths: samples of all batches without a score, by reason.
        stopped: why no worker takes samples any more; None while they do.
    """

    def __init__(self, workers: int) -> None:
        self.timeouts = self.deaths = 0
        self.stopped: str | None = None
        self._changed = threading.Condition(threading.RLock())  # a signal handler may stop the queue
        self._batches: list[Batch] = []
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
            self._batches.append(batch)
            self._changed.notify_all()
            try:
                self._changed.wait_for(lambda: self.stopped or not batch.left)
                if batch.left:
                    self.raise_if_stopped()
            finally:
                self._batches.remove(batch)

    def take(self, worker: int) -> tuple[Group, list[Sample]]:
        """Wait for samples and take some of one group. Raises PoolError when there will be none."""
        with self._changed:
            self._changed.wait_for(lambda: self.stopped or any(batch.waiting for batch in self._batches))
            self.raise_if_stopped()
            oldest = next(batch for batch in self._batches if batch.waiting)
            return oldest.take(worker, self._workers)

    def put_back(self, group: Group, chunk: deque[Sample]) -> None:
        """Return samples that were taken and not scored."""
        with self._changed:
            if chunk and group.batch in self._batches:  # not of a batch that was interrupted
                group.batch.put_back(group, chunk)
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
