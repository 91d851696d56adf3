"""The rewards as a custom reward function for verl.

    reward.custom_reward_function.path=pkg://rewards.adapters.verl
    +reward.custom_reward_function.reward_kwargs.profile=robust

The first line is all that verl (0.9) needs; the second, and others like it, set fields of `RewardConfig`. verl calls
the function once for each completion and logs every entry of the dictionary that it returns.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from rewards import RewardConfig, score

# A reference of each task that scores 1.
_EXAMPLES = {"text": "x", "table": "<table><tr><td>x</td></tr></table>", "formula": "x"}


def compute_score(
    data_source: str,
    solution_str: str,
    ground_truth: str,
    extra_info: Mapping[str, Any] | None = None,
    *,
    reward_router_address: Any = None,
    reward_model_tokenizer: Any = None,
    **constants: Any,
) -> dict[str, float | None]:
    """The reward of one completion as `score`, and its parts.

    All tasks have the same keys, as verl makes an array of each: a part of another task is None, which it skips.

    Args:
        data_source: where the sample is from. Its last word names the task (`ocr/table`, `table`) if extra_info does
            not.
        solution_str: the completion.
        ground_truth: what is written in the crop.
        extra_info: `task`, if present and not None, is `text`, `table` or `formula`. The rest is ignored.
        reward_router_address: ignored, as is reward_model_tokenizer; verl passes both if it runs a reward model.
        **constants: fields of `RewardConfig`, from verl's `reward_kwargs`.

    Raises:
        TypeError: the completion or the ground truth is not a string, or a constant is unknown or no number.
        ValueError: there is no such task, the ground truth holds no table or formula, a constant is out of range.
    """
    config = _config(tuple(sorted(constants.items())))
    scored = score(_task(data_source, extra_info), solution_str, ground_truth, config)
    parts = {name: float(value) for name, value in scored.parts.items()}
    return {"score": float(scored.value), **dict.fromkeys(_part_names(config)), **parts}


def _task(data_source: str, extra_info: Mapping[str, Any] | None) -> str:
    task = (extra_info or {}).get("task")
    if task is None:
        task = re.split(r"[^a-z]+", str(data_source).lower())[-1]
    if task not in _EXAMPLES:
        raise ValueError(
            f"no task for data_source {data_source!r}: extra_info['task'] or its last word must be one of "
            f"{', '.join(_EXAMPLES)}, not {task!r}"
        )
    return str(task)


@lru_cache(maxsize=8)
def _config(constants: tuple[tuple[str, Any], ...]) -> RewardConfig:
    return RewardConfig(**dict(constants))


@lru_cache(maxsize=8)
def _part_names(config: RewardConfig) -> tuple[str, ...]:
    """The parts of all tasks, by scoring an example of each."""
    names = [name for task, example in _EXAMPLES.items() for name in score(task, example, example, config).parts]
    return tuple(dict.fromkeys(names))
