"""Configuration of joint AR + block-diffusion training, with the published values as defaults.

Read like the GRPO configuration: one flat YAML file with command-line overrides, into ``JointConfig`` (training),
``ModelArguments``, ``DataConfig`` and ``RewardConfig`` (of the held-out crops). A setting that has no effect here is an
error. ``docs/JOINT.md`` explains the stages.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from transformers import TrainingArguments

from gravity_rl.data.config import DataConfig
from gravity_rl.joint.corruption import MASK_SCHEDULES
from gravity_rl.joint.masks import MASK_KINDS
from gravity_rl.parsing import ConfigError, StrictParser
from gravity_rl.run_config import (
    AT_LEAST_1,
    NOT_NEGATIVE,
    POSITIVE,
    Limit,
    ModelArguments,
    RunConfig,
    check_limits,
    default_of,
    plain,
)
from gravity_rl.unused import refuse_unused
from rewards import RewardConfig

ATTENTIONS = ("auto", *MASK_KINDS)

_HELD_OUT = "held-out crops are read every evaluation_steps; set eval_data"
_NO_EFFECT = "it has no effect on joint training"
_ROWS = "rows are packed to row_tokens, one at a time on a device; use gradient_accumulation_steps for more"
_ORDER = "the order of samples follows from seed and mixture alone"
UNUSED: dict[str, str] = {
    **dict.fromkeys(
        ["do_eval", "eval_strategy", "eval_steps", "eval_delay", "eval_on_start", "eval_accumulation_steps",
         "eval_do_concat_batches", "eval_use_gather_object", "per_device_eval_batch_size", "batch_eval_metrics",
         "include_for_metrics", "prediction_loss_only", "bf16_full_eval", "fp16_full_eval", "load_best_model_at_end",
         "metric_for_best_model", "greater_is_better"],
        _HELD_OUT,
    ),
    **dict.fromkeys(
        ["do_train", "do_predict", "label_names", "label_smoothing_factor", "local_rank", "num_train_epochs",
         "average_tokens_across_devices", "neftune_noise_alpha", "use_liger_kernel", "liger_kernel_config",
         "use_cache"],
        _NO_EFFECT,
    ),
    **dict.fromkeys(["per_device_train_batch_size", "auto_find_batch_size"], _ROWS),
    **dict.fromkeys(["data_seed", "train_sampling_strategy", "length_column_name", "dataloader_drop_last",
                     "dataloader_in_order", "ignore_data_skip", "accelerator_config"], _ORDER),
    "gradient_checkpointing": "transformers calls it activation_checkpointing now",
    "gradient_checkpointing_kwargs": "transformers calls it activation_checkpointing_kwargs now",
    "remove_unused_columns": "a row is built from all the columns that it needs",
    "disable_tqdm": "set log_level to silence a run",
    "enable_jit_checkpoint": "SIGTERM already writes a checkpoint",
    "save_only_model": "a checkpoint holds all that is needed to go on",
    **dict.fromkeys(["torch_compile", "torch_compile_backend", "torch_compile_mode"],
                    "rows differ in length; FlexAttention is compiled without it"),
    **dict.fromkeys(["fsdp", "fsdp_config"], "use plain data parallelism or ZeRO-2"),
}  # fmt: skip
ONLY_WITH: dict[str, tuple[str, tuple[Any, ...]]] = {
    "activation_checkpointing_kwargs": ("activation_checkpointing", (True,)),
}

_LIMITS: dict[str, Limit] = {
    **dict.fromkeys(["max_steps", "gradient_accumulation_steps", "block_size", "row_tokens", "max_response_tokens",
                     "evaluation_batch_size", "evaluation_max_new_tokens", "save_total_limit"], AT_LEAST_1),
    **dict.fromkeys(["learning_rate", "max_grad_norm", "save_steps", "logging_steps"], POSITIVE),
    **dict.fromkeys(["vision_learning_rate", "weight_decay", "ar_loss_weight", "diffusion_loss_weight", "warmup_steps",
                     "ar_only_steps", "curriculum_steps", "vision_warmup_steps", "evaluation_steps",
                     "dataloader_num_workers"], NOT_NEGATIVE),
    "evaluation_block_size": (lambda value: value >= 1, "at least 1"),
    "blank_glyph_weight": (lambda value: 0 < value <= 1, "greater than 0 and at most 1"),
    "seed": (lambda value: 0 <= value < 2**32, "between 0 and 2**32 - 1"),
}  # fmt: skip


@dataclass
class JointConfig(TrainingArguments):
    """Training settings. Defaults are those of the published run (paper section on joint training)."""

    output_dir: str = field(
        default="runs/joint", metadata={"help": "Run directory; its contents are described in docs/RUN_DIRECTORY.md."}
    )
    max_steps: int = field(default=40_000, metadata={"help": "Number of optimiser steps."})
    learning_rate: float = field(default=2e-5, metadata={"help": "Peak learning rate of the text decoder."})
    vision_learning_rate: float = field(default=2e-6, metadata={"help": "Peak learning rate of the vision tower."})
    warmup_steps: float = field(
        default=500,
        metadata={"help": "Steps in which the learning rate rises to its peak; below 1 a share of the run."},
    )
    gradient_accumulation_steps: int = field(default=4, metadata={"help": "Rows of each device in an optimiser step."})
    bf16: bool = field(default=True, metadata={"help": "Mixed precision: bfloat16 autocast over the weights."})
    row_tokens: int = field(
        default=10_240,
        metadata={
            "help": "Forward tokens of a packed row: the prefix of a sample counts once, its response in every stream."
        },
    )
    max_response_tokens: int = field(
        default=3_072, metadata={"help": "Samples with a longer reference are skipped and counted, in tokens."}
    )
    block_size: int = field(
        default=32,
        metadata={"help": "Response tokens of a block (B), which is also the number of appended end tokens."},
    )
    mask_schedule: str = field(
        default="uniform",
        metadata={
            "help": "`uniform` draws the share of masked tokens of each block from U(0, 1); `all` masks everything."
        },
    )
    random_block_phase: bool = field(
        default=False,
        metadata={
            "help": "Let the first block be shorter by a random number of tokens, so that drafts can start anywhere."
        },
    )
    ar_loss_weight: float = field(
        default=1.0, metadata={"help": "Weight of the AR loss. With 0 the checkpoint cannot verify its own drafts."}
    )
    diffusion_loss_weight: float = field(default=1.0, metadata={"help": "Weight of the diffusion loss (λ)."})
    supervise_every_eos: bool = field(
        default=False,
        metadata={"help": "Ablation: the AR loss counts all appended end tokens, not only the first. Costs quality."},
    )
    attention: str = field(
        default="auto",
        metadata={
            "help": "How the mask of a row is applied: `flex` (FlexAttention), `sdpa` (sample by sample), `dense` (the "
            "reference). `auto` is flex on a GPU and sdpa elsewhere."
        },
    )
    ar_only_steps: int = field(
        default=0, metadata={"help": "Train the AR path alone for the first steps; for training from nothing."}
    )
    curriculum_data: list[str] = field(
        default_factory=list, metadata={"help": "Easier sources for the first curriculum_steps, named like train_data."}
    )
    curriculum_steps: int = field(default=0, metadata={"help": "Steps on curriculum_data before those on train_data."})
    vision_warmup_steps: int = field(
        default=0,
        metadata={
            "help": "For the first steps, also ask every image token for the glyph in its square (column `glyphs`); "
            "for training from nothing."
        },
    )
    blank_glyph_weight: float = field(
        default=0.2, metadata={"help": "Weight of a square without a glyph in the vision warm-up."}
    )
    ddp_find_unused_parameters: bool | None = field(
        default=False, metadata={"help": "Search for parameters without gradient; every row uses all of them."}
    )
    logging_nan_inf_filter: bool = field(
        default=False, metadata={"help": "Hide losses that are not finite from the metrics."}
    )
    logging_steps: float = field(default=10, metadata={"help": "Write metrics every this many steps."})
    save_steps: float = field(default=500, metadata={"help": "Write a checkpoint every this many steps."})
    report_to: None | str | list[str] = field(  # noqa: RUF036 - the order that TRL's parser accepts
        default="tensorboard", metadata={"help": "Where metrics go beside metrics.jsonl: tensorboard, wandb, ..."}
    )
    resume_from_checkpoint: str | None = field(
        default=None,
        metadata={
            "nargs": "?",
            "const": "latest",
            "help": "Continue the run in output_dir: without a value (or `latest`) from its last complete "
            "checkpoint, else from the given checkpoint folder.",
        },
    )
    evaluation_steps: int = field(
        default=1_000,
        metadata={"help": "Read eval_data every this many steps, and after the last; 0 only after the last."},
    )
    evaluation_batch_size: int = field(default=64, metadata={"help": "Held-out crops read together on one device."})
    evaluation_block_size: int | None = field(
        default=None, metadata={"help": "Drafted tokens of a round on held-out crops. Default: block_size."}
    )
    evaluation_max_new_tokens: int = field(default=3_072, metadata={"help": "Completion limit on held-out crops."})

    def __post_init__(self) -> None:
        #: The settings as they were given, before transformers derives others from them.
        self.as_given: dict[str, Any] = {f.name: plain(getattr(self, f.name)) for f in dataclasses.fields(self)}
        defaults = {f.name: default_of(f) for f in dataclasses.fields(self)}
        refuse_unused(self.as_given, defaults, UNUSED.get, ONLY_WITH)
        self._check_own()
        self.per_device_train_batch_size = 1
        self.remove_unused_columns = False
        self.disable_tqdm = True  # one bar of our own
        super().__post_init__()

    def is_unused(self, name: str) -> bool:
        """Whether the setting never has an effect on joint training."""
        return name in UNUSED

    def _check_own(self) -> None:
        if not self.output_dir:
            raise ConfigError("output_dir is empty: name the folder that the run is written to")
        check_limits(self, _LIMITS)
        for name, values in (("mask_schedule", MASK_SCHEDULES), ("attention", ATTENTIONS)):
            if getattr(self, name) not in values:
                raise ConfigError(f"{name}: {getattr(self, name)!r} is unknown; choose one of {', '.join(values)}")
        if self.ar_loss_weight + self.diffusion_loss_weight == 0:
            raise ConfigError("ar_loss_weight and diffusion_loss_weight are both 0: there is nothing to train")
        if bool(self.curriculum_data) != bool(self.curriculum_steps):
            raise ConfigError("curriculum_data and curriculum_steps only work together: set both or none")
        for name in ("ar_only_steps", "curriculum_steps", "vision_warmup_steps"):
            if getattr(self, name) > self.max_steps:
                raise ConfigError(f"{name}: {getattr(self, name)} is more than max_steps, which is {self.max_steps}")
        if 3 * self.block_size >= self.row_tokens:
            raise ConfigError(
                f"row_tokens: {self.row_tokens} has no room for a sample with blocks of {self.block_size}"
            )


def parse_joint_config(argv: Sequence[str]) -> RunConfig:
    """The configuration of a run from command-line arguments, usually ``--config FILE`` and some overrides.

    Raises:
        ConfigError: a setting is unknown, malformed, contradictory or would have no effect.
    """
    parser = StrictParser(
        [JointConfig, ModelArguments, DataConfig, RewardConfig],
        description="Joint AR + block-diffusion training of a document-OCR vision-language model.",
        is_hidden=UNUSED.__contains__,
    )
    config = RunConfig(*parser.parse(argv))
    if config.data.mixture_size is not None:
        raise ConfigError("mixture_size has no effect: the mixture is as long as the run")
    if config.model.attn_implementation is not None:
        raise ConfigError("attn_implementation has no effect on joint training: set attention")
    return config
