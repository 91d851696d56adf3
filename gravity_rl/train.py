"""GRPO training of a document-OCR model: the entry point.

    accelerate launch gravity_rl/train.py --config configs/tiny_cpu.yaml
    accelerate launch -m gravity_rl.train --config configs/gravity_16xh100.yaml --output_dir runs/first

Checks come before anything expensive: settings, data and batch arithmetic before a model is loaded, and with
``--dry_run`` one whole step before it all stops. Held-out crops (``eval_data``) are evaluated before the
first and after the last step. ``docs/RUN_DIRECTORY.md`` describes what a run leaves behind.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from contextlib import closing, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import broadcast_object_list
from datasets import Dataset
from transformers import set_seed

from gravity_rl.checkpoint import CheckpointError
from gravity_rl.config import OCR_REWARD, GravityConfig, RunConfig, parse_block_size, parse_config
from gravity_rl.data import DataError
from gravity_rl.dry_run import dry_run, scratch_directory
from gravity_rl.evaluate import evaluate, load_split
from gravity_rl.launcher import run_entry_point
from gravity_rl.metrics import format_results
from gravity_rl.model import ModelError, load_model, load_ocr_processor, resolve_checkpoint
from gravity_rl.parsing import ConfigError
from gravity_rl.preflight import (
    check_batch_arithmetic,
    check_optimizer,
    check_prompt_count,
    check_resumable,
    check_rollout,
)
from gravity_rl.reading import Method
from gravity_rl.recorder import RunDirectory, read_json, write_json
from gravity_rl.resume import choose_checkpoint, hold_run_directory
from gravity_rl.reward_functions import RewardError, load_reward_functions
from gravity_rl.rollout import RolloutError
from gravity_rl.trainer import GravityTrainer
from rewards import score

logger = logging.getLogger(__name__)

USER_ERRORS = (ConfigError, DataError, ModelError, RewardError, RolloutError, CheckpointError)


def train(config: RunConfig) -> int:
    """Run what the configuration describes.

    Returns:
        Exit status: 0, or 128 + signal number if a signal stopped the run after a checkpoint.

    Raises:
        ConfigError, DataError, ModelError, RewardError, RolloutError, CheckpointError: what the user has to change.
    """
    training = config.training
    check_batch_arithmetic(training, training.world_size)
    check_resumable(training)
    check_optimizer(training)
    set_seed(training.seed)
    is_main = training.process_index == 0
    if training.dry_run:
        with scratch_directory(training) as scratch:
            trainer, held_out = build_trainer(config, RunDirectory(scratch, is_main=is_main))
            with closing(trainer):
                check_sharding(trainer, held_out)
                report = dry_run(trainer)
        if is_main:
            print(report)
        return 0
    output_dir = Path(training.output_dir)
    with hold_run_directory(output_dir) if is_main else nullcontext():
        return train_and_evaluate(config, RunDirectory(output_dir, is_main=is_main))


def train_and_evaluate(config: RunConfig, run: RunDirectory) -> int:
    """Start or continue the run in its directory; see :func:`train`."""
    training = config.training
    checkpoint = choose_checkpoint(config, run.path, is_main=run.is_main)
    training.distributed_state.wait_for_everyone()  # all have looked before one writes
    trainer, held_out = build_trainer(config, run)
    with closing(trainer):
        check_sharding(trainer, held_out)
        run.start(config, num_processes=training.world_size, device=str(training.device))
        before = evaluate_held_out(trainer, held_out, config, "before")
        trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
    if trainer.stop_on_signal.stopped_by is not None:
        return 128 + trainer.stop_on_signal.stopped_by
    trainer.save_final(run.final)
    after = evaluate_held_out(trainer, held_out, config, "after")
    if run.is_main and before is not None and after is not None:
        print(format_results({"before": before, "after": after}))
    return 0


def build_trainer(config: RunConfig, run: RunDirectory) -> tuple[GravityTrainer, Dataset | None]:
    """The trainer, and the held-out crops if there are any; data are checked before the model is loaded."""
    training, data = config.training, config.data
    folder = resolve_checkpoint(config.model.model_name_or_path, config.model.revision)
    processor = load_ocr_processor(folder, min_pixels=data.min_pixels, max_pixels=data.max_pixels)
    drafter = check_rollout(training.rollout, folder, processor, config.model.attn_implementation)
    reward_functions = load_reward_functions(training, config.rewards, run.slow_samples)
    train_set, held_out = load_datasets(config, processor)
    trainer = GravityTrainer(
        model=load_model(folder, config.model),
        reward_functions=reward_functions,
        args=training,
        train_dataset=train_set,
        processor=processor,
        run=run,
        settings=config.course(),
        drafter=drafter,
    )
    return trainer, held_out


def load_datasets(config: RunConfig, processor: Any) -> tuple[Dataset, Dataset | None]:
    """The training rows, one epoch for the whole run if ``max_steps`` is set, and held-out rows if there are any.

    Raises:
        DataError: something is wrong with the data; lists everything.
        ConfigError: a setting of the data is wrong.
    """
    training, data = config.training, config.data
    if training.max_steps > 0 and data.mixture_size is None:
        data = replace(data, mixture_size=prompts_of_run(training))
    options = {
        "seed": training.seed,
        "tokenizer": processor.tokenizer,
        "max_completion_length": training.max_completion_length,
        "scorer": partial(score, config=config.rewards),
    }
    # A reference that the reward refuses would stop the run in the middle, so all are scored now.
    train_set = load_split(data, split="train", check_scores=OCR_REWARD in training.reward_functions, **options)
    check_prompt_count(len(train_set), training)
    return train_set, load_split(data, split="eval", check_scores=True, **options) if data.eval_data else None


def check_sharding(trainer: GravityTrainer, held_out: Dataset | None) -> None:
    """Refuse ways to shard the model that the run would stumble over in its first or its last step.

    Raises:
        ConfigError: an 8-bit optimiser with FSDP, or held-out crops or ``ar`` or ``self_spec`` with a sharded model.
    """
    if trainer.is_fsdp_enabled and "8bit" in str(trainer.args.optim):
        raise ConfigError("8-bit optimisers do not work with FSDP: use plain data parallelism, or adamw_torch")
    plugin = trainer.accelerator.state.deepspeed_plugin
    if not (trainer.is_fsdp_enabled or (plugin is not None and plugin.zero_stage == 3)):
        return
    rollout = trainer.args.rollout
    if rollout != "transformers":
        raise ConfigError(
            f"rollout: {rollout} generates with the whole model on each device, which FSDP and ZeRO-3 do not keep: use "
            "plain data parallelism (DDP) or ZeRO-2, or set rollout: transformers"
        )
    if held_out is not None:
        raise ConfigError(
            "held-out crops are read by the unsharded model, which FSDP and ZeRO-3 do not keep: leave "
            "eval_data empty and run gravity_rl.evaluate on the final model"
        )


def prompts_of_run(training: GravityConfig) -> int:
    """Prompts that ``max_steps`` optimiser steps take, in whole generation batches."""
    passes = training.max_steps * training.gradient_accumulation_steps
    generations = -(-passes // (training.steps_per_generation * training.num_iterations))
    return generations * (training.generation_batch_size // training.num_generations)


def evaluate_held_out(
    trainer: GravityTrainer, dataset: Dataset | None, config: RunConfig, name: str
) -> dict[str, Any] | None:
    """Evaluate the current weights, or read the result that an earlier launch of the run has written."""
    if dataset is None:
        return None
    file = trainer.run.evaluation / f"{name}.json"
    earlier = [read_json(file, dict) if trainer.run.is_main and file.is_file() else None]
    broadcast_object_list(earlier)  # what the main process sees: the file may be on its machine only
    if earlier[0] is not None:
        return earlier[0]
    training = config.training
    result = evaluate(
        trainer.accelerator.unwrap_model(trainer.model),
        trainer.processing_class,
        dataset,
        config.rewards,
        seed=training.evaluation_seed,
        batch_size=training.evaluation_batch_size,
        max_new_tokens=training.max_completion_length,
        predictions_file=file.with_suffix(".parquet"),
        autocast_dtype=torch.bfloat16 if training.bf16 else torch.float16 if training.fp16 else None,
        chat_template_kwargs=training.chat_template_kwargs,
        method=Method(training.rollout, parse_block_size(training.rollout_block_size), trainer.drafter),
    )
    if trainer.run.is_main:
        write_json(file, result)
    return result


def main(argv: Sequence[str] | None = None) -> int:
    """Command line; returns the exit status."""
    return run_entry_point(lambda arguments: train(parse_config(arguments)), argv, USER_ERRORS)


if __name__ == "__main__":
    sys.exit(main())
