"""Joint AR + block-diffusion training: gives a GLM-OCR-class checkpoint its drafter.

    accelerate launch gravity_rl/adapt.py --config configs/adapt_tiny_cpu.yaml
    accelerate launch -m gravity_rl.adapt --config configs/adapt_16xh100.yaml --output_dir runs/joint

One forward of a packed row trains two paths of the same weights: the AR path, and the diffusion path that drafts blocks
for it (paper section 2). The result is a checkpoint that stock transformers loads, with ``block_diffusion.json`` beside
it. ``docs/JOINT.md`` explains the method and every stage, ``docs/RUN_DIRECTORY.md`` what a run leaves behind.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import broadcast_object_list
from datasets import Dataset
from transformers import set_seed

from gravity_rl.checkpoint import CheckpointError
from gravity_rl.data import DataError
from gravity_rl.data.config import DataConfig
from gravity_rl.evaluate import load_split
from gravity_rl.joint.config import JointConfig, parse_joint_config
from gravity_rl.joint.drafter import BlockDiffusion, add_mask_token, load_glm_ocr, read_block_diffusion, require_glm_ocr
from gravity_rl.joint.evaluate import Decoding, format_table, read_crops, summarise, write_crops
from gravity_rl.joint.modeling import JointGlmOcr, LossSettings
from gravity_rl.joint.prompts import PromptRenderer
from gravity_rl.joint.rows import PackedRows, RowSettings
from gravity_rl.joint.stages import build_stages
from gravity_rl.joint.tokens import decoding_tokens, require_trainable
from gravity_rl.joint.trainer import JointTrainer
from gravity_rl.launcher import run_entry_point
from gravity_rl.model import ModelError, load_ocr_processor, resolve_checkpoint
from gravity_rl.parsing import ConfigError
from gravity_rl.preflight import check_optimizer
from gravity_rl.recorder import RunDirectory, read_json, write_json
from gravity_rl.resume import choose_checkpoint, hold_run_directory
from gravity_rl.run_config import RunConfig
from rewards import score

USER_ERRORS = (ConfigError, DataError, ModelError, CheckpointError)


def adapt(config: RunConfig) -> int:
    """Run what the configuration describes.

    Returns:
        Exit status: 0, or 128 + signal number if a signal stopped the run after a checkpoint.

    Raises:
        ConfigError, DataError, ModelError, CheckpointError: what the user has to change.
    """
    training = config.training
    check_optimizer(training)
    set_seed(training.seed)
    is_main = training.process_index == 0
    output_dir = Path(training.output_dir)
    with hold_run_directory(output_dir) if is_main else nullcontext():
        run = RunDirectory(output_dir, is_main=is_main)
        checkpoint = choose_checkpoint(config, run.path, is_main=is_main)
        training.distributed_state.wait_for_everyone()  # all have looked before one writes
        trainer, read_held_out = build_trainer(config, run)
        run.start(config, num_processes=training.world_size, device=str(training.device))
        trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
        if trainer.stop_on_signal.stopped_by is not None:
            return 128 + trainer.stop_on_signal.stopped_by
        trainer.save_final(run.final)
        if read_held_out is not None:
            print_held_out(read_held_out, trainer)
    return 0


def build_trainer(config: RunConfig, run: RunDirectory) -> tuple[JointTrainer, HeldOut | None]:
    """The trainer, and what reads the held-out crops if there are any; data are checked before the model is loaded."""
    training, data = config.training, config.data
    mask_kind = resolve_attention(training)
    folder = resolve_checkpoint(config.model.model_name_or_path, config.model.revision)
    require_glm_ocr(folder)
    existing = read_block_diffusion(folder)
    processor = load_ocr_processor(folder, min_pixels=data.min_pixels, max_pixels=data.max_pixels)
    renderer = PromptRenderer(processor)
    load = partial(load_split, split="train", seed=training.seed, tokenizer=processor.tokenizer)
    stages = build_stages(training, data, load, renderer)
    held_out = load_held_out(config) if data.eval_data else None
    model = load_glm_ocr(folder, config.model, JointGlmOcr)
    require_trainable(model, processor)
    mask_id = add_mask_token(model, processor, training.seed, existing)
    if held_out is not None:
        decoding_tokens(model, processor, mask_id)  # what is wrong with them is said before training
    drafter = BlockDiffusion(training.block_size, mask_id, training.ar_loss_weight, training.mask_schedule)
    model.set_loss(
        LossSettings(
            ar_loss_weight=training.ar_loss_weight,
            diffusion_loss_weight=training.diffusion_loss_weight,
            mask_kind=mask_kind,
            blank_id=processor.tokenizer.convert_tokens_to_ids(" "),
            blank_weight=training.blank_glyph_weight,
        )
    )
    settings = RowSettings(
        block_size=training.block_size,
        mask_schedule=training.mask_schedule,
        random_phase=training.random_block_phase,
        supervise_every_eos=training.supervise_every_eos,
        mask_id=mask_id,
        eos_id=processor.tokenizer.eos_token_id,
        image_token_id=model.config.image_token_id,
        merge_size=processor.image_processor.merge_size,
        seed=training.seed,
        padded_tokens=training.row_tokens if mask_kind == "flex" else None,
    )
    rows_of_step = training.gradient_accumulation_steps * training.world_size
    rows = PackedRows(stages, renderer, settings, warm_up_rows=training.vision_warmup_steps * rows_of_step)
    reader = None if held_out is None else HeldOut(held_out, config, drafter, run)
    trainer = JointTrainer(
        model=model,
        args=training,
        rows=rows,
        processor=processor,
        drafter=drafter if trains_drafter(training) else existing,
        run=run,
        read_held_out=reader,
        settings=config.course(),
    )
    return trainer, reader


def trains_drafter(training: JointConfig) -> bool:
    """Whether any step of the run trains the prediction of masked tokens."""
    return training.ar_only_steps < training.max_steps and training.diffusion_loss_weight > 0


def resolve_attention(training: JointConfig) -> str:
    """The form of the mask: as configured, or flex on a GPU and sdpa elsewhere.

    Raises:
        ConfigError: flex is asked for on a CPU, where FlexAttention has no backward.
    """
    on_gpu = training.device.type == "cuda"
    if training.attention == "flex" and not on_gpu:
        raise ConfigError("attention: flex needs a GPU to train; set sdpa, or leave auto")
    if training.attention != "auto":
        return training.attention
    return "flex" if on_gpu else "sdpa"


def load_held_out(config: RunConfig) -> Dataset:
    """The held-out crops, whose references have to score 1 against themselves."""
    data: DataConfig = config.data
    return load_split(data, split="eval", check_scores=True, scorer=partial(score, config=config.rewards))


class HeldOut:
    """Reads the held-out crops greedily with the current weights and writes what came out.

    Args:
        dataset: the crops.
        config: of the run.
        drafter: how the checkpoint drafts.
        run: gets ``evaluation/step_N.json`` and ``.parquet``.
    """

    def __init__(self, dataset: Dataset, config: RunConfig, drafter: BlockDiffusion, run: RunDirectory):
        self.dataset, self.config, self.drafter, self.run = dataset, config, drafter, run

    def file(self, step: int) -> Path:
        """The result after ``step`` optimiser steps."""
        return self.run.evaluation / f"step_{step:06d}.json"

    def __call__(self, trainer: Any, step: int) -> dict[str, float]:
        """Metrics ``heldout/<task>/<name>`` of the trainer's model after ``step`` optimiser steps."""
        training = self.config.training
        decoding = Decoding(
            drafter=self.drafter,
            block_size=training.evaluation_block_size or training.block_size,
            batch_size=training.evaluation_batch_size,
            max_new_tokens=training.evaluation_max_new_tokens,
            autocast_dtype=torch.bfloat16 if training.bf16 else torch.float16 if training.fp16 else None,
        )
        model = trainer.accelerator.unwrap_model(trainer.model)
        with model.decoding():
            crops = read_crops(model, trainer.processing_class, self.dataset, self.config.rewards, decoding)
        result = summarise(crops)
        if self.run.is_main:
            try:
                write_crops(self.file(step).with_suffix(".parquet"), crops)
                write_json(self.file(step), result)
            except OSError as error:
                raise CheckpointError(f"could not write {self.file(step)}: {error}") from error
        return {f"heldout/{task}/{name}": value for task, values in result.items() for name, value in values.items()}


def print_held_out(held_out: HeldOut, trainer: JointTrainer) -> None:
    """Print the result after the last step; read the crops if a kill came between that step and its result."""
    file = held_out.file(trainer.args.max_steps)
    is_there = [file.is_file()]
    broadcast_object_list(is_there)  # what the main process sees: the file may be on its machine only
    if not is_there[0]:
        held_out(trainer, trainer.args.max_steps)
    if held_out.run.is_main:
        print(format_table({"greedy": read_json(file, dict)}))


def main(argv: Sequence[str] | None = None) -> int:
    """Command line; returns the exit status."""
    return run_entry_point(lambda arguments: adapt(parse_joint_config(arguments)), argv, USER_ERRORS)


if __name__ == "__main__":
    sys.exit(main())
