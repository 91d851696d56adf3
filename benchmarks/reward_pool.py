"""How the reward pool scales: batches as training makes them, scored by 1 and by more workers in turn.

    python benchmarks/reward_pool.py [--workers 2] [--rounds 5]

Needs psutil. Batches have 24 references x 28 completions, 92% tables of 100 to 200 cells; each round has another one,
which no pool has seen. Two ratios to one worker are printed. `wall`: of the seconds of the fastest round of each, which
other programs on the machine disturb least. `cpu`: all CPU time of one worker by that of the busiest of several, the
median of the rounds; what the wall ratio would be if each worker had a core for itself, since it shows how evenly the
work is shared.
"""

from __future__ import annotations

import argparse
import statistics
import time
from dataclasses import dataclass, field

import psutil
from reward_samples import Sample, training_batch

from rewards.batch import score_batch
from rewards.workers import RewardPool

TIMEOUT_S = 60.0


@dataclass
class Timings:
    """Of each round, in seconds: wall time, CPU time of all workers, of the busiest, and of the calling process."""

    wall: list[float] = field(default_factory=list)
    workers: list[float] = field(default_factory=list)
    busiest: list[float] = field(default_factory=list)
    caller: list[float] = field(default_factory=list)


class TimedPool:
    """A pool whose processes are known."""

    def __init__(self, workers: int):
        others = set(psutil.Process().children())
        self.pool = RewardPool(workers, TIMEOUT_S)
        self._processes = [process for process in psutil.Process().children() if process not in others]
        self.timings = Timings()

    def score(self, batch: list[Sample]) -> list:
        columns = [list(column) for column in zip(*batch, strict=True)]
        before = [_cpu_seconds(process) for process in self._processes]
        wall, caller = time.perf_counter(), time.process_time()
        scores = self.pool.score_batch(*columns)
        self.timings.wall.append(time.perf_counter() - wall)
        self.timings.caller.append(time.process_time() - caller)
        spent = [_cpu_seconds(process) - start for process, start in zip(self._processes, before, strict=True)]
        self.timings.workers.append(sum(spent))
        self.timings.busiest.append(max(spent))
        return scores


def _cpu_seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, nargs="+", default=[2], help="numbers of workers besides 1")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    pools = {workers: TimedPool(workers) for workers in [1, *arguments.workers]}
    here = []
    for seed in range(arguments.rounds):
        batch = training_batch(seed)
        start = time.process_time()
        expected = score_batch(*[list(column) for column in zip(*batch, strict=True)])
        here.append(time.process_time() - start)
        for pool in pools.values():
            assert pool.score(batch) == expected
    for pool in pools.values():
        pool.pool.close()
    print(f"{len(batch)} completions a batch, {arguments.rounds} rounds, in seconds: fastest wall, medians of the rest")
    print(f"without a pool: {statistics.median(here[1:] or here):.2f} of CPU time")
    print("workers    wall  cpu of workers  of the busiest  of the caller   ratio: wall     cpu")
    one = pools[1].timings
    for workers, pool in pools.items():
        timings = pool.timings
        median = {name: statistics.median(values) for name, values in vars(timings).items()}
        wall = min(timings.wall)
        cpu = statistics.median(a / b for a, b in zip(one.workers, timings.busiest, strict=True))
        print(
            f"{workers:7}{wall:8.2f}{median['workers']:16.2f}{median['busiest']:16.2f}"
            f"{median['caller']:15.2f}{min(one.wall) / wall:15.2f}{cpu:8.2f}"
        )


if __name__ == "__main__":
    main()
