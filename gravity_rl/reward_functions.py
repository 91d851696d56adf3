"""The reward functions of a run: the built-in OCR reward, and those that a user names by import path.

A user's function may fail in any way; what reaches the trainer is a list of numbers or an error that names the
function, the step and the line. Values that are no numbers are judged by the trainer, which records the rollouts first.
"""

from __future__ import annotations

import importlib
import numbers
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from trl.trainer.utils import get_callable_name, is_async_callable

from gravity_rl.config import OCR_REWARD, GravityConfig
from gravity_rl.parsing import ConfigError
from rewards import RewardConfig, Score
from rewards.adapters.trl import OCRReward
from rewards.completions import completion_texts
from rewards.workers import PoolError, RewardPool

RewardFunction = Callable[..., Any]


class RewardError(ValueError):
    """A reward function failed, or returned something that is no reward."""


class RecordedOCRReward:
    """The OCR reward as a TRL reward function that keeps the components of the batch it scored last.

    Args:
        config: the profile of the rewards and its constants.
        pool: worker processes that score, with the same configuration; without, this process does.

    Attributes:
        parts: for each completion of the last call, component of the reward → value; empty without a reward.
    """

    __name__ = OCR_REWARD

    def __init__(self, config: RewardConfig, pool: RewardPool | None = None):
        self.config = config
        self._reward = OCRReward(config)
        self._pool = pool
        self.parts: list[dict[str, float]] = []

    def __call__(
        self, completions: Sequence[Any], task: Sequence[str], reference: Sequence[str], **columns: Any
    ) -> list[float | None]:
        """The reward of each completion; None for one that a worker could not score in time.

        Raises:
            RewardError: the workers cannot work any more.
        """
        scores = self._scores(completions, task, reference)
        self.parts = [
            {} if score is None else {name: float(value) for name, value in score.parts.items()} for score in scores
        ]
        return [None if score is None else score.value for score in scores]

    def _scores(
        self, completions: Sequence[Any], task: Sequence[str], reference: Sequence[str]
    ) -> Sequence[Score | None]:
        if self._pool is None:
            return self._reward.scores(completions, task, reference)
        try:
            return self._pool.score_batch(task, completion_texts(completions), reference)
        except PoolError as error:
            raise RewardError(f"reward function {OCR_REWARD!r}: {error}") from error

    def close(self) -> None:
        """End the worker processes, if there are any."""
        if self._pool is not None:
            self._pool.close()


def load_reward_functions(
    config: GravityConfig, rewards: RewardConfig, slow_samples: Path | None = None
) -> list[RewardFunction]:
    """The callables that ``reward_functions`` names, in its order; starts the ``reward_workers`` of this process.

    Args:
        config: the training settings.
        rewards: the profile of the OCR reward and its constants.
        slow_samples: JSONL file for completions that the workers could not score.

    Raises:
        ConfigError: an import path is malformed, does not import or names nothing callable.
        RewardError: the workers do not come up.
    """
    functions = [
        None if path == OCR_REWARD else checked_reward(_import_callable(path)) for path in config.reward_functions
    ]
    return [function or _load_ocr_reward(config, rewards, slow_samples) for function in functions]


def _load_ocr_reward(config: GravityConfig, rewards: RewardConfig, slow_samples: Path | None) -> RecordedOCRReward:
    if not config.reward_workers:
        return RecordedOCRReward(rewards)
    try:
        pool = RewardPool(config.reward_workers, config.reward_timeout, rewards, slow_samples)
    except PoolError as error:
        raise RewardError(f"reward_workers: {config.reward_workers}: {error}") from error
    return RecordedOCRReward(rewards, pool)


def _import_callable(path: str) -> RewardFunction:
    module_name, separator, name = path.partition(":")
    if not separator or not module_name or not name:
        raise ConfigError(f"reward_functions: {path!r} is neither `{OCR_REWARD}` nor of the form package.module:name")
    try:
        function = getattr(importlib.import_module(module_name), name)
    except Exception as error:  # the module is the user's and may raise anything
        raise ConfigError(f"reward_functions: cannot import {path!r}: {error}") from error
    if not callable(function):
        raise ConfigError(f"reward_functions: {path!r} is not callable")
    return function


def checked_reward(function: RewardFunction) -> RewardFunction:
    """A user's reward function, plain or async, as one that raises :class:`RewardError` whenever it fails.

    The returned function has the name of the given one and returns a list of B floats or Nones.
    """
    name = get_callable_name(function)

    def of_plain(*, completions: Sequence[Any], trainer_state: Any, **columns: Any) -> list[float | None]:
        step = trainer_state.global_step + 1
        try:
            values = function(completions=completions, trainer_state=trainer_state, **columns)
        except Exception as error:  # the function is the user's and may raise anything
            raise _raised(name, step, error) from error
        return _as_rewards(values, len(completions), name, step)

    async def of_async(*, completions: Sequence[Any], trainer_state: Any, **columns: Any) -> list[float | None]:
        step = trainer_state.global_step + 1
        try:
            values = await function(completions=completions, trainer_state=trainer_state, **columns)
        except Exception as error:  # as above
            raise _raised(name, step, error) from error
        return _as_rewards(values, len(completions), name, step)

    checked: RewardFunction = of_async if is_async_callable(function) else of_plain
    checked.__name__ = name
    return checked


def _raised(name: str, step: int, error: Exception) -> RewardError:
    frames = traceback.extract_tb(error.__traceback__)
    frame = frames[min(1, len(frames) - 1)]  # the first is the call in this file
    return RewardError(
        f"reward function {name!r} raised {type(error).__name__} in step {step} "
        f"({frame.filename}, line {frame.lineno}): {error}"
    )


def _as_rewards(values: Any, count: int, name: str, step: int) -> list[float | None]:
    """What a reward function returned for `count` completions, as floats; None stays None.

    Raises:
        RewardError: it is no list of that length, or an item is neither a real number nor None.
    """
    failure = f"reward function {name!r} returned {{}} in step {step}; it must return one number for each completion"
    if isinstance(values, torch.Tensor | np.ndarray):
        values = values.tolist()
    if not isinstance(values, list | tuple):
        raise RewardError(failure.format(f"{type(values).__name__} instead of a list of {count} numbers"))
    if len(values) != count:
        raise RewardError(failure.format(f"{len(values)} values for {count} completions"))
    rewards: list[float | None] = []
    for index, given in enumerate(values):
        value = given.item() if isinstance(given, torch.Tensor | np.ndarray) and given.ndim == 0 else given
        if value is not None and not isinstance(value, numbers.Real | np.bool_):
            raise RewardError(failure.format(f"{type(value).__name__} {value!r:.80} as value {index}"))
        try:
            rewards.append(None if value is None else float(value))
        except OverflowError as error:
            raise RewardError(failure.format(f"a number too large for a float as value {index}")) from error
    return rewards
