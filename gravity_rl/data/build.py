"""From a `DataConfig` to the dataset that the trainer reads: read, validate, mix, assemble.

The result has the columns that TRL's `GRPOTrainer` expects (`prompt` as a conversation, `image`) and those
that the rewards and the rollout record need (`task`, `reference`, `id`, `source`), and `glyphs` where a row
has them. It is a plain `datasets.Dataset`: it can be sharded, selected from, pickled and read by dataloader
workers.
"""

import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import datasets

from gravity_rl.data.config import DataConfig
from gravity_rl.data.contract import DataError, Problem, Record, describe_problems
from gravity_rl.data.images import decode_rgb
from gravity_rl.data.mixture import mixture_order
from gravity_rl.data.prompts import load_prompts, prompt_file
from gravity_rl.data.rows import Source
from gravity_rl.data.sources import read_sources
from gravity_rl.data.summary import summarise
from gravity_rl.data.validate import (
    SPECIAL_IN_PROMPT,
    Scorer,
    is_main_process,
    special_tokens,
    validate_sources,
)
from rewards import score

logger = logging.getLogger(__name__)

Split = Literal["train", "eval"]
COLUMNS = ("prompt", "image", "task", "reference", "id", "source")
_STRING_COLUMNS = ("task", "reference", "id", "source", "glyphs")

_TEXT_FEATURES = datasets.Features(
    {
        "prompt": datasets.List({"role": datasets.Value("string"), "content": datasets.Value("string")}),
        **{name: datasets.Value("string") for name in _STRING_COLUMNS},
    }
)
# Held-out rows must not change with the training seed, or runs could not be compared.
_EVAL_SEED = 0


def load_ocr_dataset(
    config: DataConfig,
    *,
    split: Split,
    seed: int = 0,
    tokenizer: Any = None,
    max_completion_length: int | None = None,
    check_scores: bool = False,
    scorer: Scorer = score,
) -> datasets.Dataset:
    """Read and validate the sources of a split and return its dataset.

    Args:
        config: sources, weights and limits.
        split: `train` mixes the tasks by their weights; `eval` keeps the rows in their order.
        seed: decides the order of the training rows; evaluation rows do not depend on it.
        tokenizer: counts reference tokens for the length check and the summary.
        max_completion_length: longest allowed reference in tokens, the end token included.
        check_scores: also require that every reference scores 1 against itself.
        scorer: what `check_scores` scores with.

    Returns:
        Dataset with the columns `COLUMNS`. `prompt` is `[{"role": "user", "content": …}]`, `image` is decoded
        to an RGB PIL image when a row is read, the others are strings. If any row of the sources has `glyphs`,
        that is a column as well, null for the rows without. The same arguments give the same rows in the same
        order on every rank.

    Raises:
        DataError: some data cannot be used; lists everything that is wrong.
        ValueError: the split has no sources, a prompt file is missing, or a completion limit comes without a
            tokenizer.
    """
    specs = config.train_data if split == "train" else config.eval_data
    if not specs:
        raise ValueError(f"{split}_data names no source")
    sources, problems = read_sources(specs, config.data_cache_dir)
    return build_ocr_dataset(
        sources,
        config,
        split=split,
        seed=seed,
        tokenizer=tokenizer,
        max_completion_length=max_completion_length,
        scorer=scorer if check_scores else None,
        problems=problems,
    )


def build_ocr_dataset(
    sources: Sequence[Source],
    config: DataConfig,
    *,
    split: Split,
    seed: int = 0,
    tokenizer: Any = None,
    max_completion_length: int | None = None,
    scorer: Scorer | None = None,
    problems: Sequence[Problem] = (),
) -> datasets.Dataset:
    """Like `load_ocr_dataset`, for sources that have been read or made in memory.

    Args:
        scorer: requires that every reference scores 1 against itself; None skips the check.
        problems: sources that could not be read, to be reported with the rest.
    """
    prompts = load_prompts(config.prompts_dir)
    if tokenizer is not None:
        problems = [*problems, *_prompt_file_problems(prompts, config, tokenizer)]
    validation = validate_sources(
        sources,
        image_workers=config.image_check_workers,
        tokenizer=tokenizer,
        max_completion_length=max_completion_length,
        scorer=scorer,
    )
    main = is_main_process()
    if validation.warnings and main:
        logger.warning("not stopping for this: %s", describe_problems(validation.warnings))
    problems = [*problems, *validation.problems]
    if problems and (config.on_bad_rows == "error" or any(problem.row is None for problem in problems)):
        raise DataError(problems)
    bad = validation.bad_rows
    if bad and main:
        logger.warning("dropping %d rows: %s", len(bad), describe_problems(problems))

    sources = [source for source in sources if source.records]
    records = [record for source in sources for record in source.records]
    rows = [index for index, record in enumerate(records) if (record.origin, record.row) not in bad]
    usable = [records[index] for index in rows]
    if not usable:
        raise DataError([Problem(f"{split}_data", None, "source", "no usable rows left")])
    order = _train_order(usable, config, seed) if split == "train" else _eval_order(usable, config)
    if main:
        logger.info("%s", summarise(f"{split} data", sources, usable, order, validation.token_counts))
    return _assemble(sources, prompts).select([rows[index] for index in order]).with_transform(decode_rgb)


def _prompt_file_problems(prompts: dict[str, str], config: DataConfig, tokenizer: Any) -> Iterator[Problem]:
    for task, prompt in prompts.items():
        inside = [token for token in special_tokens(tokenizer) if token in prompt]
        if inside:
            file = str(prompt_file(task, config.prompts_dir))
            yield Problem(file, None, "prompt", SPECIAL_IN_PROMPT, ", ".join(inside))


def _train_order(usable: Sequence[Record], config: DataConfig, seed: int) -> list[int]:
    tasks = [record.task for record in usable]
    available = Counter(tasks)
    for task, weight in (config.weights or {}).items():
        if weight > 0 and not available[task]:
            message = "positive, but there are no usable rows of this task"
            raise DataError([Problem("train_data", None, f"{task}_weight", message)])
        if weight == 0 and available[task] and is_main_process():
            logger.warning("%s_weight is 0: leaving out %d rows", task, available[task])
    return mixture_order(tasks, config.weights, seed=seed, size=config.mixture_size)


def _eval_order(usable: Sequence[Record], config: DataConfig) -> list[int]:
    if config.max_eval_rows is None or config.max_eval_rows >= len(usable):
        return list(range(len(usable)))
    tasks = [record.task for record in usable]
    return sorted(mixture_order(tasks, None, seed=_EVAL_SEED, size=config.max_eval_rows))


def _assemble(sources: Sequence[Source], prompts: dict[str, str]) -> datasets.Dataset:
    """Put text and images of all rows, bad ones included, side by side without copying image bytes."""
    parts = []
    for source in sources:
        text = {
            "prompt": [
                [{"role": "user", "content": record.prompt or prompts.get(record.task, "")}]
                for record in source.records
            ],
            **{name: [getattr(record, name) for record in source.records] for name in _STRING_COLUMNS},
        }
        images = source.images.cast_column("image", datasets.Image())
        text_columns = datasets.Dataset.from_dict(text, features=_TEXT_FEATURES)
        parts.append(datasets.concatenate_datasets([text_columns, images], axis=1))
    has_glyphs = any(record.glyphs is not None for source in sources for record in source.records)
    columns = [*COLUMNS, "glyphs"] if has_glyphs else list(COLUMNS)
    return datasets.concatenate_datasets(parts).select_columns(columns)
