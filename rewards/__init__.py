"""Exact OCR rewards for text, table and formula crops: the published rewards of GravityOCR, without torch.

    from rewards import score
    score("table", prediction, reference).value

`docs/REWARDS.md` has the formulas, where they come from and what they miss.
"""

from __future__ import annotations

from rewards.formula import formula_reward
from rewards.table import table_reward
from rewards.text import text_reward
from rewards.types import PUBLISHED, RewardConfig, Score

__all__ = ["RewardConfig", "Score", "formula_reward", "score", "table_reward", "text_reward"]

_REWARDS = {"text": text_reward, "table": table_reward, "formula": formula_reward}


def score(task: str, prediction: str, reference: str, config: RewardConfig = PUBLISHED) -> Score:
    """The reward of one prediction.

    Args:
        task: `text`, `table` or `formula`.
        prediction: the completion, any string.
        reference: what is written in the crop. HTML for a table, LaTeX for a formula.
        config: the constants; by default the published ones.

    Raises:
        TypeError: the prediction or the reference is not a string.
        ValueError: the task is unknown, or the reference of a table or formula holds none.
    """
    if task not in _REWARDS:
        raise ValueError(f"task must be one of {', '.join(_REWARDS)}: {task!r}")
    return _REWARDS[task](prediction, reference, config)
