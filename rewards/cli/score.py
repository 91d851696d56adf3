"""`python -m rewards score`: adds the reward and its parts to each line of a JSONL file.

Lines are scored as they are read and written at once, so memory does not grow with the file. The output gets its name
at the end: what is there under the final name is complete.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

from rewards import RewardConfig, Score, score
from rewards.cli.rows import TASKS, Problem, Progress, Row, open_input, read_rows
from rewards.cli.streams import open_output
from rewards.cli.summary import TaskSummary, summary_lines
from rewards.explain.steps import counted
from rewards.workers import RewardPool

# Rows that are scored together where there are workers, and the bytes that end a batch before that.
_BATCH_ROWS = 512
_BATCH_BYTES = 8 << 20

Outcome = Score | None | Problem
Scorer = Callable[[Sequence[Row]], Iterable[Outcome]]


def score_file(source: str, target: str, config: RewardConfig, workers: int, timeout_s: float) -> int:
    """Scores a file, prints a summary, and returns the exit status: 1 if a line could not be scored.

    Args:
        source: path of the input, or `-`.
        target: path of the output, or `-`, in which case the summary goes to stderr.
        config: the constants.
        workers: number of processes; 0 scores in this one.
        timeout_s: seconds a line may take in a worker.

    Raises:
        UsageError: a file cannot be opened, or input and output are the same.
    """
    summaries = {task: TaskSummary() for task in TASKS}
    with (
        open_input(source) as stream,
        open_output(target, stream) as sink,
        _scorer(config, workers, timeout_s) as scorer,
        Progress(source, stream, "scoring") as progress,
    ):
        rows = read_rows(stream, ("task", "prediction", "reference"), progress.advance)
        for batch in _batches(rows, progress.report, _BATCH_ROWS if workers else 1):
            for row, outcome in zip(batch, scorer(batch), strict=True):
                if isinstance(outcome, Problem):
                    progress.report(outcome)
                elif (line := _encode(row, outcome)) is None:
                    progress.report(Problem(row.number, None, "nested too deeply"))
                else:
                    sink.write(line)
                    summaries[row.fields["task"]].add(outcome)
        sink.flush()
    for text in summary_lines(summaries):
        print(text, file=sys.stderr if target == "-" else sys.stdout)
    count = sum(summary.rows for summary in summaries.values())
    print(
        f"{counted(count, 'line')} scored in {progress.seconds:.1f} s, {progress.problems} malformed", file=sys.stderr
    )
    return 1 if progress.problems else 0


def _batches(rows: Iterable[Row | Problem], report: Callable[[Problem], None], most: int) -> Iterator[list[Row]]:
    """The rows in batches; problems are reported as they come."""
    batch: list[Row] = []
    size = 0
    for row in rows:
        if isinstance(row, Problem):
            report(row)
            continue
        batch.append(row)
        size += row.size
        if len(batch) == most or size >= _BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _encode(row: Row, scored: Score | None) -> str | None:
    """A line of the output, or None for an object that nests too deeply to be written.

    Escapes make it readable again whatever its strings hold, lone surrogates included.
    """
    added = {"reward": scored.value if scored else None, "parts": scored.parts if scored else None}
    try:
        return json.dumps({**row.fields, **added}, allow_nan=False) + "\n"
    except RecursionError:
        return None


@contextmanager
def _scorer(config: RewardConfig, workers: int, timeout_s: float) -> Iterator[Scorer]:
    """What turns rows into their scores, None for one over its deadline, or a problem."""
    if not workers:
        yield lambda rows: [_score_row(row, config) for row in rows]
        return
    with RewardPool(workers, timeout_s, config) as pool:
        yield lambda rows: _score_in_pool(rows, pool)


def _score_row(row: Row, config: RewardConfig) -> Outcome:
    try:
        return score(row.fields["task"], row.fields["prediction"], row.fields["reference"], config)
    except ValueError as error:
        return _problem(row, error)


def _score_in_pool(rows: Sequence[Row], pool: RewardPool) -> list[Outcome]:
    columns = ([row.fields[name] for row in rows] for name in ("task", "prediction", "reference"))
    return [
        _problem(row, found) if isinstance(found, Exception) else found
        for row, found in zip(rows, pool.outcomes(*columns), strict=True)
    ]


def _problem(row: Row, error: Exception) -> Problem:
    """What is wrong with an unusable reference. Any other error is one of the rewards and raised."""
    if not isinstance(error, ValueError) or not str(error).startswith("reference"):
        raise error
    return Problem(row.number, "reference", str(error).removeprefix("reference "))
