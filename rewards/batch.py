"""Scores many samples at once: what a training step or an evaluation calls.

The adapters for training libraries are built on `score_batch`. Samples are scored one after the other in this
process. Equal samples, of which a group of completions has many early and late in training, are scored once.
"""

from __future__ import annotations

from collections.abc import Sequence

from rewards import score
from rewards.types import PUBLISHED, RewardConfig, Score, require_strings


def score_batch(
    task: Sequence[str],
    predictions: Sequence[str],
    references: Sequence[str],
    config: RewardConfig = PUBLISHED,
) -> list[Score]:
    """The score of each sample, in order. Equal samples share one `Score` object.

    Args:
        task: `text`, `table` or `formula` for each sample.
        predictions: the completions.
        references: what is written in the crops.
        config: the profile and its constants.

    Raises:
        TypeError: an argument is one string instead of a sequence of them, or a sample holds something else than
            strings.
        ValueError: the lengths differ, or `rewards.score` refuses a sample. Errors of a sample begin with
            `sample <index>:`, counted from 0.
    """
    for name, values in (("task", task), ("predictions", predictions), ("references", references)):
        if isinstance(values, str):
            raise TypeError(f"{name} must be a sequence of strings, not one string")
    lengths = len(task), len(predictions), len(references)
    if len(set(lengths)) > 1:
        raise ValueError("task, predictions and references differ in length: {}, {}, {}".format(*lengths))
    known: dict[tuple[str, str, str], Score] = {}
    scores = []
    for index, sample in enumerate(zip(task, predictions, references, strict=True)):
        try:
            scores.append(_score_once(known, sample, config))
        except TypeError as error:
            raise TypeError(f"sample {index}: {error}") from error
        except ValueError as error:
            raise ValueError(f"sample {index}: {error}") from error
    return scores


def _score_once(known: dict[tuple[str, str, str], Score], sample: tuple[str, str, str], config: RewardConfig) -> Score:
    task, prediction, reference = sample
    if not isinstance(task, str):
        raise TypeError(f"task must be a str, not {type(task).__name__}")
    require_strings(prediction, reference)  # before they are hashed
    if sample not in known:
        known[sample] = score(task, prediction, reference, config)
    return known[sample]
