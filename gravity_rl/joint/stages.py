"""From a configuration to the rows of the run: which data and which streams, step by step.

A run on an existing checkpoint has one stage. Training from nothing can have several: easier data first
(``curriculum_data``), the AR path alone first (``ar_only_steps``). Both are counted in optimiser steps, and rows are
planned for each stage by itself.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise

from datasets import Dataset

from gravity_rl.data.config import DataConfig
from gravity_rl.data.contract import DataError, Problem
from gravity_rl.joint.config import JointConfig
from gravity_rl.joint.lengths import RowBudget, SampleLengths, check_glyphs, measure
from gravity_rl.joint.packing import RowPlan, plan_rows
from gravity_rl.joint.prompts import PromptRenderer
from gravity_rl.joint.rows import Stage

logger = logging.getLogger(__name__)


def row_budget(training: JointConfig) -> RowBudget:
    """What a sample may take under the configuration."""
    return RowBudget(training.row_tokens, training.max_response_tokens, training.block_size, training.mask_schedule)


def stage_bounds(training: JointConfig) -> list[tuple[int, int]]:
    """First step and end of each stage."""
    changes = {0, training.curriculum_steps, training.ar_only_steps, training.max_steps}
    return list(pairwise(sorted(changes)))


def build_stages(
    training: JointConfig, data: DataConfig, load: Callable[[DataConfig], Dataset], renderer: PromptRenderer
) -> list[Stage]:
    """The stages of a run.

    Args:
        training: settings.
        data: sources and weights of the mixture.
        load: reads and checks the training sources of a ``DataConfig``, each row once.
        renderer: counts tokens.

    Raises:
        DataError: nothing usable is left of a source, or a task of the mixture is missing.
    """
    budget = row_budget(training)
    # The mixture is drawn here, over the whole run, so every row is loaded once, in its natural share.
    unweighted = replace(data, table_weight=None, text_weight=None, formula_weight=None)
    sources = {"train_data": unweighted}
    if training.curriculum_data:
        sources["curriculum_data"] = replace(unweighted, train_data=training.curriculum_data)
    measured: dict[str, tuple[Dataset, SampleLengths]] = {}
    for name, config in sources.items():
        dataset = load(config)
        lengths = measure(dataset, renderer, budget, threads=data.image_check_workers)
        if training.process_index == 0:
            report_skipped(name, lengths)
        measured[name] = (dataset, lengths)
    for name in warmed_up(training):
        check_glyphs(name, *measured[name])
    if training.process_index == 0:
        logger.info("planning the rows of %d steps; task weights apply from here on", training.max_steps)
    stages: list[Stage] = []
    rows_of_step = training.gradient_accumulation_steps * training.world_size
    for number, (first, end) in enumerate(stage_bounds(training)):
        name = "curriculum_data" if first < training.curriculum_steps else "train_data"
        dataset, lengths = measured[name]
        tasks = dataset.with_format(None)["task"][:]  # the dataset's own transform would decode every image
        corrupted = first >= training.ar_only_steps
        try:
            plan = plan_rows(
                _forward_tokens(lengths, budget, corrupted), tasks, data.weights, budget=training.row_tokens,
                rows=(end - first) * rows_of_step, seed=training.seed * 1_000 + number,
            )  # fmt: skip
        except ValueError as error:
            raise DataError([Problem(name, None, "source", str(error), _skipped(lengths))]) from error
        if training.process_index == 0:
            report_plan(f"{name}, steps {first + 1} to {end}", plan, tasks)
        offset = stages[-1].draw_offset + int(stages[-1].plan.draws.max()) + 1 if stages else 0
        stages.append(Stage(dataset, plan, corrupted, offset))
    return stages


def warmed_up(training: JointConfig) -> list[str]:
    """The sources that the vision warm-up draws from."""
    sources = {
        "curriculum_data": (0, training.curriculum_steps),
        "train_data": (training.curriculum_steps, training.max_steps),
    }
    return [name for name, (first, end) in sources.items() if first < min(end, training.vision_warmup_steps)]


def _forward_tokens(lengths: SampleLengths, budget: RowBudget, corrupted: bool) -> Sequence[int]:
    count = budget.joint_tokens if corrupted else budget.ar_tokens
    return [
        count(prefix, response) if usable else 0
        for prefix, response, usable in zip(lengths.prefix, lengths.response, lengths.usable, strict=True)
    ]


def report_skipped(name: str, lengths: SampleLengths) -> None:
    """Say how many samples there are and how many are skipped, by reason."""
    total = len(lengths.usable)
    logger.info("%s: %d samples, %d skipped", name, total, total - sum(lengths.usable))
    for reason, count in sorted(lengths.skipped.items()):
        logger.warning("%s: skipping %d samples: %s", name, count, reason)


def report_plan(name: str, plan: RowPlan, tasks: Sequence[str]) -> None:
    """Say what a stage trains on: rows, samples of each task, and how often each is seen."""
    drawn, available = Counter(tasks[sample] for sample in plan.samples), Counter(tasks)
    shares = ", ".join(
        f"{task} {count / len(plan.samples):.0%} ({count / available[task]:.2f} passes)"
        for task, count in sorted(drawn.items())
    )
    logger.info("%s: %d rows of about %.1f samples: %s", name, len(plan), len(plan.samples) / max(1, len(plan)), shares)


def _skipped(lengths: SampleLengths) -> str:
    return "; ".join(f"{count} samples skipped: {reason}" for reason, count in sorted(lengths.skipped.items()))
