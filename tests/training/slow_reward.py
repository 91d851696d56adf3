"""Scoring functions for test_reward_pool.py: the OCR reward, but some samples never end, or end the worker."""

from __future__ import annotations

import time

import rewards


def score(task: str, prediction: str, reference: str, config: rewards.RewardConfig) -> rewards.Score:
    """As `rewards.score`, but with tables it does not get done."""
    if task == "table":
        time.sleep(600)
    return rewards.score(task, prediction, reference, config)


def score_some(task: str, prediction: str, reference: str, config: rewards.RewardConfig) -> rewards.Score:
    """As `rewards.score`, but not for predictions of an even length."""
    if len(prediction) % 2 == 0:
        time.sleep(600)
    return rewards.score(task, prediction, reference, config)


def die(task: str, prediction: str, reference: str, config: rewards.RewardConfig) -> rewards.Score:
    raise SystemExit(4)
