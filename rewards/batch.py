"""Scores many samples at once: what a training step or an evaluation calls.

The adapters for training libraries are built on `score_batch`. Samples are scored one after the other in this
process. Equal samples, of which a group of completions has many early and late in training, are scored once.
"""

from __future__ import annotations

from collections.abc import Sequence

from rewards import score
from rewards.types import PUBLISHED, RewardConfig, Score, require_strings

Sample = tuple[str, str, str]  # task, prediction, reference


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
    known: dict[Sample, Score] = {}
    scores = []
    for index, sample in enumerate(samples(task, predictions, references)):
        if sample not in known:
            try:
                known[sample] = score(*sample, config)
            except ValueError as error:
                raise ValueError(f"sample {index}: {error}") from error
        scores.append(known[sample])
    return scores


def samples(task: Sequence[str], predictions: Sequence[str], references: Sequence[str]) -> list[Sample]:
    """Task, prediction and reference of each sample. Raises what `score_batch` does for arguments of other types."""
    for name, values in (("task", task), ("predictions", predictions), ("references", references)):
        if isinstance(values, str):
            raise TypeError(f"{name} must be a sequence of strings, not one string")
    lengths = len(task), len(predictions), len(references)
    if len(set(lengths)) > 1:
        raise ValueError("task, predictions and references differ in length: {}, {}, {}".format(*lengths))
    found = list(zip(task, predictions, references, strict=True))
    for index, (name, prediction, reference) in enumerate(found):
        try:
            if not isinstance(name, str):
                raise TypeError(f"task must be a str, not {type(name).__name__}")
            require_strings(prediction, reference)
        except TypeError as error:
            raise TypeError(f"sample {index}: {error}") from error
    return found
