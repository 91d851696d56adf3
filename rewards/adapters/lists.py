"""The rewards for plain lists: for a training loop of one's own, or any library that takes such a function.

compute_rewards("table", predictions, references)
"""

from __future__ import annotations

from collections.abc import Sequence

from rewards import RewardConfig
from rewards.batch import score_batch
from rewards.types import PUBLISHED


def compute_rewards(
    task: str | Sequence[str],
    predictions: Sequence[str],
    references: Sequence[str],
    config: RewardConfig = PUBLISHED,
) -> list[float]:
    """The reward of each prediction, in [0, 1]. `rewards.batch.score_batch` returns the parts as well.

    Args:
        task: `text`, `table` or `formula` for each sample, or one of them for all.
        predictions: the completions.
        references: what is written in the crops.
        config: the profile and its constants.

    Raises:
        TypeError: as `score_batch`.
        ValueError: as `score_batch`.
    """
    tasks = [task] * len(predictions) if isinstance(task, str) else task
    return [scored.value for scored in score_batch(tasks, predictions, references, config)]
