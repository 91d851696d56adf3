"""Scores batches in worker processes, with a deadline for each sample: `RewardPool`.

    with RewardPool(workers=8, timeout_s=10.0) as pool:
        scores = pool.score_batch(tasks, predictions, references)  # in order; None for a sample over its deadline

A pathological completion costs one sample and not the run: its worker is killed and replaced. A group of completions
goes to one worker as long as that keeps all of them busy, because a worker caches what depends on the reference.

Each worker has a thread here that hands it samples, chunk by chunk, and waits for the answers. The threads know nothing
of the pool, so that a pool that is dropped without `close` is collected, and its workers end.
"""

from __future__ import annotations

import json
import logging
import math
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from types import TracebackType

from rewards.types import PUBLISHED, RewardConfig, Score, require_config
from rewards.workers.link import START_LIMIT_S, PoolError, WorkerDied, WorkerLate, WorkerLink, search_path
from rewards.workers.process import BUILT_IN
from rewards.workers.queue import Batch, Group, Sample, WorkQueue

__all__ = ["PoolError", "RewardPool"]

logger = logging.getLogger(__name__)

_START_ATTEMPTS = 3
_MOST_DEATHS = 2  # a sample whose worker dies is tried once more
_LONGEST_TIMEOUT_S = 1e9  # thirty years
_CLOSE_LIMIT_S = 5.0


class RewardPool:
    """Worker processes that score samples; to be closed, or used as a context manager.

    The constructor returns when all workers are up. Workers are new interpreters with the search path that the
    caller has then; the caller's main module is not imported. They end with the pool and with the process, however
    that ends.

    Args:
        workers: number of processes.
        timeout_s: seconds that one sample may take, from the moment when its scoring starts.
        config: the profile and its constants.
        slow_samples: JSONL file to which samples without a score are appended, with `task`, `prediction`,
            `reference`, `seconds` and `outcome` (`timeout` or `death`). Several processes may share it.
        scorer: import path `module:function` of what is called as `rewards.score` is, and returns a `Score`.

    Raises:
        TypeError: `config` is no `RewardConfig`, or `slow_samples` no path.
        ValueError: `workers` is not at least 1, `timeout_s` not a positive number, or `scorer` no import path.
        PoolError: a worker does not come up.
    """

    def __init__(
        self,
        workers: int,
        timeout_s: float,
        config: RewardConfig = PUBLISHED,
        slow_samples: Path | str | None = None,
        *,
        scorer: str = BUILT_IN,
    ) -> None:
        if not isinstance(workers, int) or workers < 1:
            raise ValueError(f"workers must be an integer of at least 1: {workers!r}")
        if not isinstance(timeout_s, int | float) or not 0 < timeout_s < math.inf:
            raise ValueError(f"timeout_s must be a positive number of seconds: {timeout_s!r}")
        if not isinstance(scorer, str) or not all(scorer.partition(":")):
            raise ValueError(f"scorer must be an import path of the form module:function: {scorer!r}")
        require_config(config)
        self._timeout_s = float(min(timeout_s, _LONGEST_TIMEOUT_S))
        start = partial(WorkerLink, {"config": asdict(config), "scorer": scorer}, search_path())
        file = None if slow_samples is None else Path(slow_samples)
        self._owner = os.getpid()
        self._queue = WorkQueue(workers)
        drivers = [_Driver(worker, self._queue, start, self._timeout_s, file) for worker in range(workers)]
        self._stop = weakref.finalize(self, _stop, self._queue, drivers, self._owner)  # runs at exit, too
        self._threads = [threading.Thread(target=driver.run, daemon=True) for driver in drivers]
        for thread in self._threads:
            thread.start()
        if not self._queue.wait_until_ready():
            self.close()
            self._queue.raise_if_stopped()

    def score_batch(
        self, task: Sequence[str], predictions: Sequence[str], references: Sequence[str]
    ) -> list[Score | None]:
        """The score of each sample, in order; None for one over its deadline or whose worker died twice.

        Equal samples are scored once. Several threads may call this at the same time.

        Args:
            task: `text`, `table` or `formula` for each sample.
            predictions: the completions.
            references: what is written in the crops.

        Raises:
            TypeError, ValueError: as `rewards.batch.score_batch`. The rest of the batch is scored first.
            RuntimeError: the scoring function raised another error, which the message names.
            PoolError: the pool is closed, or a worker that died could not be replaced.
        """
        found: list[Score | None] = []
        for place, outcome in enumerate(self.outcomes(task, predictions, references)):
            if isinstance(outcome, Exception):
                error = type(outcome)(f"sample {place}: {outcome}")
                error.__notes__ = outcome.__notes__
                raise error
            found.append(outcome)
        return found

    def outcomes(
        self, task: Sequence[str], predictions: Sequence[str], references: Sequence[str]
    ) -> list[Score | Exception | None]:
        """As `score_batch`, but with the error of a sample in its place instead of raised, without its number."""
        if os.getpid() != self._owner:
            raise PoolError("the pool belongs to the process that made it, and this is a fork of that one")
        batch = Batch(task, predictions, references)
        self._queue.run(batch)
        if batch.timeouts or batch.deaths:
            logger.warning(
                "%d of %d samples have no score: %d took over %g s, and the workers of %d died",
                batch.timeouts + batch.deaths, len(predictions), batch.timeouts, self._timeout_s, batch.deaths,
            )  # fmt: skip
        return batch.outcomes

    @property
    def timeouts(self) -> int:
        """Samples that have no score because they took too long."""
        return self._queue.timeouts

    @property
    def deaths(self) -> int:
        """Samples that have no score because two workers died of them."""
        return self._queue.deaths

    def close(self) -> None:
        """End all workers, and let batches that still run fail with `PoolError`.

        May be called twice, and by a signal handler. If that has interrupted `score_batch` at a bad moment, the
        workers are killed and the threads end later: this waits for a few seconds and not for ever.
        """
        self._stop()
        if os.getpid() == self._owner:
            deadline = time.monotonic() + _CLOSE_LIMIT_S
            for thread in self._threads:
                thread.join(max(0.0, deadline - time.monotonic()))

    def __enter__(self) -> RewardPool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _stop(queue: WorkQueue, drivers: Sequence[_Driver], owner: int) -> None:
    if os.getpid() == owner:  # not in a fork, which shares the workers and has none of the threads
        queue.stop("the pool is closed")
        for driver in drivers:
            driver.kill()


class _Driver:
    """What the thread of one worker does: starts it, hands it samples, watches the clock, replaces it."""

    def __init__(
        self,
        worker: int,
        queue: WorkQueue,
        start: Callable[[], WorkerLink],
        timeout_s: float,
        slow_samples: Path | None,
    ) -> None:
        self._worker = worker
        self._queue = queue
        self._start_worker = start
        self._timeout_s = timeout_s
        self._slow_samples = slow_samples
        self._link: WorkerLink | None = None
        self._is_fresh = True  # the worker has been given no samples yet

    def run(self) -> None:
        """Score samples until the queue is stopped; stops it if the worker cannot be started."""
        try:
            link = self._start()
            self._queue.add_ready_worker()
            while True:
                group, chunk = self._queue.take(self._worker)
                if link.has_ended():  # while it had nothing to do
                    link = self._replace(link)
                if not self._score(link, group, chunk):
                    link = self._replace(link)
        except (PoolError, OSError) as error:  # OSError: of the file of slow samples
            self._queue.stop(str(error))
        finally:
            self._queue.stop("a thread of the pool has ended by an error; its traceback says which")
            if self._link is not None:
                self._link.close()

    def kill(self) -> None:
        """End the worker, from any thread."""
        if self._link is not None:
            self._link.kill()

    def _start(self) -> WorkerLink:
        for _ in range(_START_ATTEMPTS):
            link = self._link = self._start_worker()
            self._queue.raise_if_stopped()  # after the link is known: `kill` may have come before
            try:
                link.wait_until_ready()
            except WorkerDied:
                link.close()
                continue
            self._is_fresh = True
            return link
        raise PoolError(f"a reward worker was killed {_START_ATTEMPTS} times while it started")

    def _replace(self, link: WorkerLink) -> WorkerLink:
        link.close()
        return self._start()

    def _score(self, link: WorkerLink, group: Group, chunk: list[Sample]) -> bool:
        """Have samples scored. False if the worker has to be replaced; what is left of them waits again by then."""
        remaining = deque(chunk)
        started, is_scoring = time.monotonic(), False
        try:
            link.send([group.task, group.reference, [sample.prediction for sample in chunk]])
            link.receive(START_LIMIT_S)
            is_scoring, self._is_fresh = True, False
            while remaining:
                started = time.monotonic()
                answer = link.receive(self._timeout_s)
                self._queue.set_answer(group, remaining.popleft(), answer)
            return True
        except (WorkerLate, WorkerDied) as error:
            self._queue.raise_if_stopped()  # then the worker was killed on purpose
            if isinstance(error, WorkerDied) and not is_scoring and not self._is_fresh:  # while it had nothing to do
                self._queue.put_back(group, remaining)
                return False
            outcome = "timeout" if is_scoring and isinstance(error, WorkerLate) else "death"
        sample = remaining.popleft()
        sample.deaths += outcome == "death"
        if outcome == "death" and sample.deaths < _MOST_DEATHS:
            remaining.appendleft(sample)
        else:
            self._save(group, sample, time.monotonic() - started, outcome)
            self._queue.give_up(group, sample, outcome)
        self._queue.put_back(group, remaining)
        return False

    def _save(self, group: Group, sample: Sample, seconds: float, outcome: str) -> None:
        if self._slow_samples is None:
            return
        values = {"task": group.task, "prediction": sample.prediction, "reference": group.reference}
        line = json.dumps(values | {"seconds": round(seconds, 3), "outcome": outcome}) + "\n"  # ASCII: always writable
        self._slow_samples.parent.mkdir(parents=True, exist_ok=True)
        with self._slow_samples.open("ab", buffering=0) as stream:  # one write a line: other processes append as well
            stream.write(line.encode())
