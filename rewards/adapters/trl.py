"""The rewards as a reward function for TRL's `GRPOTrainer`.

    GRPOTrainer(..., reward_funcs=[OCRReward()], train_dataset=dataset)  # columns: task, reference

Each completion is scored by the reward of its task. The means of the components go to the trainer's metrics
(`table/teds_s`, `text/ned`, ...) and the components themselves to its completions table.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

from rewards import RewardConfig, Score
from rewards.batch import score_batch
from rewards.completions import Completion, completion_texts
from rewards.types import require_config


class OCRReward:
    """A picklable callable with TRL's reward signature. Without a configuration, the published rewards."""

    def __init__(self, config: RewardConfig | None = None) -> None:
        self.config = RewardConfig() if config is None else config
        require_config(self.config)
        self.__name__ = "ocr_reward"  # the name of TRL's metrics for this reward

    def scores(self, completions: Sequence[Completion], task: Sequence[str], reference: Sequence[str]) -> list[Score]:
        """The score of each completion, with its parts. Raises what `completion_texts` and `score_batch` raise."""
        return score_batch(task, completion_texts(completions), reference, self.config)

    def __call__(
        self,
        prompts: Sequence[Any],
        completions: Sequence[Completion],
        completion_ids: Sequence[Sequence[int]] | None = None,
        *,
        task: Sequence[str],
        reference: Sequence[str],
        log_metric: Callable[[str, float], None] | None = None,
        log_extra: Callable[[str, list[Any]], None] | None = None,
        **columns: Any,
    ) -> list[float]:
        """The reward of each completion, in [0, 1]. Prompts, token ids and other columns are ignored."""
        scores = self.scores(completions, task, reference)
        if log_metric is not None:
            for name, mean in component_means(scores, task).items():
                log_metric(name, mean)
        if log_extra is not None:
            log_extra("task", list(task))
            log_extra("parts", [json.dumps(scored.parts) for scored in scores])
        return [scored.value for scored in scores]


def component_means(scores: Sequence[Score], task: Sequence[str]) -> dict[str, float]:
    """Mean of each component by task, under `task/component`; that of the value under `task/reward`."""
    values: defaultdict[str, list[float]] = defaultdict(list)
    for scored, name in zip(scores, task, strict=True):
        for part, value in {"reward": scored.value, **scored.parts}.items():
            values[f"{name}/{part}"].append(float(value))
    return {name: sum(found) / len(found) for name, found in values.items()}
