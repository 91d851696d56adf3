"""Per-task metrics of a set of scored completions, for the training log and for held-out evaluation.

Rewards of different tasks live on different scales, and a mean over a mixture hides that one of them
collapses. The functions are pure: the same records give the same metrics on every rank.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

DECODINGS = ("sampled", "greedy")
ALL_TASKS = "all"


@dataclass(frozen=True, slots=True)
class Rollout:
    """One completion with everything that is known about it.

    Attributes:
        step: optimiser step that the completion is used in, from 1.
        id: dataset row.
        source: dataset source of the row.
        task: ``text``, ``table`` or ``formula``.
        prompt_id: group within the step, from 0: completions of one prompt share it.
        completion: decoded completion without special tokens.
        reference: the row's reference.
        reward: weighted sum of ``rewards``, before any shuffling.
        rewards: reward function → value; None stands for a value that is not finite or missing.
        parts: component of the OCR reward → value (``teds_s``, ``gate``, ...); empty without the OCR reward.
        advantage: advantage that the loss uses; None if the run stopped before it was computed.
        length: tokens of the completion, the end token included.
        truncated: the completion was cut by the limit.
    """

    step: int
    id: str
    source: str
    task: str
    prompt_id: int
    completion: str
    reference: str
    reward: float | None
    rewards: Mapping[str, float | None]
    parts: Mapping[str, float] = field(default_factory=dict)
    advantage: float | None = None
    length: int = 0
    truncated: bool = False


@dataclass(frozen=True, slots=True)
class Prediction:
    """One scored completion of a held-out crop; ``row`` is its position in the dataset, ``length`` is in
    tokens."""

    decoding: str
    row: int
    id: str
    source: str
    task: str
    completion: str
    reference: str
    reward: float
    parts: Mapping[str, float]
    length: int
    truncated: bool


def rollout_metrics(rollouts: Sequence[Rollout]) -> dict[str, float]:
    """Metrics of one generation, by task. Completions without a reward count for length and truncation only.

    For each task: ``rewards/<task>/mean`` and ``rewards/<task>/std`` (over completions, population),
    ``<task>/length`` (tokens), ``<task>/truncated``, ``<task>/gated`` (gate below 1),
    ``<task>/zero_variance_groups`` (shares), and ``<task>/<part>``, the mean of each component of the OCR
    reward over the completions that have it.
    """
    metrics: dict[str, float] = {}
    for task, rows in _by_task(rollouts).items():
        rewards = [row.reward for row in rows if row.reward is not None]
        groups: dict[int, set[float]] = {row.prompt_id: set() for row in rows}
        for row in rows:
            if row.reward is not None:
                groups[row.prompt_id].add(row.reward)
        if rewards:
            metrics[f"rewards/{task}/mean"] = statistics.fmean(rewards)
            metrics[f"rewards/{task}/std"] = statistics.pstdev(rewards)
        metrics[f"{task}/length"] = statistics.fmean(row.length for row in rows)
        metrics[f"{task}/truncated"] = share(row.truncated for row in rows)
        metrics[f"{task}/zero_variance_groups"] = share(len(values) < 2 for values in groups.values())
        metrics |= {f"{task}/{name}": value for name, value in part_means([row.parts for row in rows]).items()}
    return metrics


def part_means(parts: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Mean of every reward component over the completions that have it, and ``gated``, the share with gate <
    1."""
    values: dict[str, list[float]] = defaultdict(list)
    for row in parts:
        for name, value in row.items():
            values[name].append(float(value))
    means = {name: statistics.fmean(column) for name, column in sorted(values.items())}
    if "gate" in values:
        means["gated"] = share(value < 1.0 for value in values["gate"])
    return means


def share(flags: Iterable[bool]) -> float:
    """Share of true values; the input must not be empty."""
    return statistics.fmean(map(float, flags))


def _by_task(rollouts: Sequence[Rollout]) -> dict[str, list[Rollout]]:
    tasks: dict[str, list[Rollout]] = defaultdict(list)
    for rollout in rollouts:
        tasks[rollout.task].append(rollout)
    return dict(sorted(tasks.items()))


def summarise(predictions: Sequence[Prediction]) -> dict[str, Any]:
    """Decoding → task or ``all`` → means; see :func:`gravity_rl.evaluate.evaluate`."""
    result: dict[str, Any] = {}
    for decoding in DECODINGS:
        of_decoding = [prediction for prediction in predictions if prediction.decoding == decoding]
        result[decoding] = {ALL_TASKS: _means(of_decoding)}
        for task in sorted({prediction.task for prediction in of_decoding}):
            of_task = [prediction for prediction in of_decoding if prediction.task == task]
            result[decoding][task] = _means(of_task) | part_means([prediction.parts for prediction in of_task])
    return result


def _means(predictions: Sequence[Prediction]) -> dict[str, float]:
    rewards = [prediction.reward for prediction in predictions]
    return {
        "crops": len(predictions),
        "reward": statistics.fmean(rewards),
        "reward_std": statistics.pstdev(rewards),
        "length": statistics.fmean(prediction.length for prediction in predictions),
        "truncated": share(prediction.truncated for prediction in predictions),
    }


def format_results(results: Mapping[str, Mapping[str, Any]]) -> str:
    """A table of rewards: one line a task, one column for each decoding of each named result."""
    names = [(decoding, name) for decoding in DECODINGS for name in results]
    first = next(iter(results.values()))
    tasks = [task for task in first["sampled"] if task != ALL_TASKS] + [ALL_TASKS]
    lines = [f"{'held-out reward':<16}{'crops':>6}" + "".join(f"{f'{d} {n}':>17}" for d, n in names)]
    for task in tasks:
        values = "".join(f"{results[name][decoding][task]['reward']:>17.4f}" for decoding, name in names)
        lines.append(f"{task:<16}{first['sampled'][task]['crops']:>6}{values}")
    return "\n".join(lines)
