"""Configuration of a GRPO run: TRL's settings with the published values as defaults, plus the project's own.

A run is described by four dataclasses, read together from one flat YAML file with command-line overrides:
``GravityConfig`` (training), ``ModelArguments``, ``DataConfig`` and ``RewardConfig``. A setting that TRL or
transformers would accept but this training path does not use is an error, so that a run never differs from
its configuration. ``docs/CONFIG.md`` lists the settings that matter.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from trl import GRPOConfig

from gravity_rl.data.config import DataConfig
from gravity_rl.decoding import MIN_TEMPERATURE
from gravity_rl.parsing import ConfigError, StrictParser
from gravity_rl.preflight import check_batch_arithmetic
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
from gravity_rl.unused import ONLY_WITH, is_unused, reason_unused, refuse_unused
from rewards import RewardConfig

#: TRL's own generation, and the two methods of ``gravity_rl.decoding``.
ROLLOUT_ENGINES = ("transformers", "ar", "self_spec")
AUTO = "auto"
OCR_REWARD = "ocr"
REWARD_TIMEOUT_S = 10.0
LOSS_TYPES = ("grpo", "bnpo", "dr_grpo", "dapo", "luspo", "cispo", "sapo", "vespo")  # as in TRL's loss
SCALE_REWARDS = ("group", "batch", "none", True, False)

_NOT_NULL = ("temperature", "top_p", "repetition_penalty", "max_completion_length", "evaluation_batch_size",
             "evaluation_seed", "reward_workers", "reward_timeout")  # fmt: skip
# What a setting must be, unless it is unset.
_LIMITS: dict[str, Limit] = {
    **dict.fromkeys(["rollout_batch_size", "evaluation_batch_size", "max_completion_length", "save_total_limit"],
                    AT_LEAST_1),
    **dict.fromkeys(["temperature", "repetition_penalty", "save_steps", "logging_steps", "num_train_epochs",
                     "reward_timeout"],
                    POSITIVE),
    **dict.fromkeys(["learning_rate", "weight_decay", "max_grad_norm", "beta", "epsilon", "top_k", "evaluation_seed",
                     "dataloader_num_workers", "reward_workers"], NOT_NEGATIVE),
    "max_steps": (lambda value: value > 0 or value == -1, "at least 1, or -1 to train for num_train_epochs"),
    "top_p": (lambda value: 0 < value <= 1, "greater than 0 and at most 1"),
    "min_p": (lambda value: 0 <= value <= 1, "between 0 and 1"),
    "seed": (lambda value: 0 <= value < 2**32, "between 0 and 2**32 - 1"),
}  # fmt: skip


@dataclass
class GravityConfig(GRPOConfig):
    """Training settings. Defaults of the RL settings are those of the published GravityOCR run."""

    output_dir: str = field(
        default="runs/grpo",
        metadata={"help": "Run directory; its contents are described in docs/RUN_DIRECTORY.md."},
    )
    learning_rate: float = field(default=3e-6, metadata={"help": "Peak learning rate."})
    lr_scheduler_type: str = field(default="cosine", metadata={"help": "Shape of the learning-rate schedule."})
    optim: str = field(
        default="adamw_8bit",
        metadata={"help": "Optimiser; adamw_8bit needs bitsandbytes, adamw_torch does not."},
    )
    max_steps: int = field(default=500, metadata={"help": "Number of optimiser steps."})
    num_generations: int = field(default=28, metadata={"help": "Completions sampled for each prompt (group)."})
    max_completion_length: int = field(default=8448, metadata={"help": "Completion limit, in tokens."})
    mask_truncated_completions: bool = field(
        default=True, metadata={"help": "Leave completions that hit the limit out of the loss."}
    )
    epsilon_high: float | None = field(default=0.28, metadata={"help": "Upper clip range of the importance ratio."})
    beta: float = field(default=1e-3, metadata={"help": "Coefficient of the KL term to the start checkpoint."})
    shuffle_dataset: bool | None = field(
        default=False,
        metadata={
            "help": "Shuffle the training rows once more. Off, because the mixture is already shuffled by "
            "the seed and keeps the task weights in every batch."
        },
    )
    logging_steps: float = field(default=1, metadata={"help": "Write metrics every this many steps."})
    logging_nan_inf_filter: bool = field(
        default=False, metadata={"help": "Hide losses that are not finite from the metrics."}
    )
    save_steps: float = field(default=50, metadata={"help": "Write a checkpoint every this many steps."})
    report_to: None | str | list[str] = field(  # noqa: RUF036 - the order that TRL's parser accepts
        default="tensorboard",
        metadata={"help": "Where metrics go beside metrics.jsonl: tensorboard, wandb, ..."},
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
    rollout: str = field(
        default="transformers",
        metadata={
            "help": "Generation engine: `transformers` for any model; for GLM-OCR `ar`, or `self_spec` with the same "
            "completions in far fewer forwards if the start checkpoint has a drafter."
        },
    )
    rollout_block_size: str = field(
        default=AUTO,
        metadata={
            "help": "Tokens that `rollout: self_spec` drafts at once, or `auto` to follow what is fastest. Completions "
            "do not depend on it."
        },
    )
    rollout_batch_size: int | None = field(
        default=None,
        metadata={
            "help": "Completions generated together on one device; none generates a device's whole share of "
            "the generation batch at once. Lower it when generation runs out of memory. With `ar` and `self_spec` "
            "the next completion takes the place of a finished one."
        },
    )
    reward_functions: list[str] = field(
        default_factory=lambda: [OCR_REWARD],
        metadata={
            "help": "Reward functions: `ocr` is the built-in OCR reward, anything else the import path "
            "`package.module:function` of a TRL reward function. The reward is their weighted sum "
            "(reward_weights)."
        },
    )
    reward_workers: int = field(
        default=0,
        metadata={
            "help": "Processes in which the OCR reward scores, for each training process: 8 ranks of a machine with "
            "4 workers each make 32 processes. 0 scores in the training process, without a deadline."
        },
    )
    reward_timeout: float = field(
        default=REWARD_TIMEOUT_S,
        metadata={
            "help": "Seconds that a worker may take for one completion. One that takes longer has no reward and is "
            "left out; it is saved in slow_samples.jsonl. Only with reward_workers."
        },
    )
    shuffle_rewards: bool = field(
        default=False,
        metadata={
            "help": "Control experiment: permute the rewards among each group's completions, so that nothing "
            "can be learned. Logged and recorded rewards stay the true ones."
        },
    )
    dry_run: bool = field(
        default=False,
        metadata={
            "help": "Check data, references, batch arithmetic and one generate, score, backward and save "
            "step, then stop."
        },
    )
    evaluation_batch_size: int = field(
        default=64, metadata={"help": "Held-out crops read together on one device before and after training."}
    )
    evaluation_seed: int = field(
        default=0, metadata={"help": "Seed of the held-out samples, the same before and after training."}
    )

    def __post_init__(self) -> None:
        #: The settings as they were given, before transformers and TRL derive others from them.
        self.as_given: dict[str, Any] = {f.name: plain(getattr(self, f.name)) for f in dataclasses.fields(self)}
        defaults = {f.name: default_of(f) for f in dataclasses.fields(self)}
        refuse_unused(self.as_given, defaults, reason_unused, ONLY_WITH)
        self._check_own()
        try:
            super().__post_init__()
        except ValueError:
            if getattr(self, "distributed_state", None) is not None:  # set once the processes are known
                check_batch_arithmetic(self, self.world_size)  # names the values that would work
            raise
        self._check_generation()

    def is_unused(self, name: str) -> bool:
        """Whether the setting never has an effect on GRPO training."""
        return is_unused(name)

    def _check_own(self) -> None:
        check_rollout_name(self.rollout)
        if not self.output_dir:
            raise ConfigError("output_dir is empty: name the folder that the run is written to")
        for name in _NOT_NULL:
            if getattr(self, name) is None:
                raise ConfigError(f"{name} must be a number, not null; leave it out for the default")
        check_limits(self, _LIMITS)
        block_size = parse_block_size(self.rollout_block_size)
        if isinstance(block_size, int) and block_size > self.max_completion_length:
            raise ConfigError(
                f"rollout_block_size: {block_size} is more than max_completion_length, which is "
                f"{self.max_completion_length}"
            )
        if self.epsilon_high is not None and not self.epsilon_high >= self.epsilon:
            raise ConfigError(f"epsilon_high: {self.epsilon_high} must be at least epsilon, which is {self.epsilon}")
        for name, values in (("loss_type", LOSS_TYPES), ("scale_rewards", SCALE_REWARDS)):
            value = getattr(self, name)
            if value not in values:
                raise ConfigError(f"{name}: {value!r} is unknown; choose one of {', '.join(map(str, values))}")
        self._check_rewards()

    def _check_generation(self) -> None:
        """Refuse what no engine takes, and what the chosen one would not do."""
        given = {} if self.generation_kwargs is None else self.generation_kwargs
        if not isinstance(given, dict):
            raise ConfigError(f"generation_kwargs: {given!r} must be a mapping of names to values")
        tokens = given.get("suppress_tokens", [])
        if not isinstance(tokens, list) or not all(type(id_) is int and id_ >= 0 for id_ in tokens):
            raise ConfigError(f"generation_kwargs: suppress_tokens: {tokens!r} must be a list of token ids")
        if self.rollout == "transformers":
            return
        others = sorted(map(str, given.keys() - {"suppress_tokens"}))
        reasons = {
            "repetition_penalty": self.repetition_penalty != 1 and "which token comes next would depend on all before",
            "cache_implementation": self.cache_implementation is not None and "it has a cache of its own",
            "generation_kwargs": bool(others) and f"of these it takes suppress_tokens, not {', '.join(others)}",
            "temperature": self.temperature < MIN_TEMPERATURE and f"the least is {MIN_TEMPERATURE}",
            "torch_compile": self.torch_compile and "the shapes of its forwards change from round to round",
        }
        for name, reason in reasons.items():
            if reason:
                raise ConfigError(
                    f"{name}: {getattr(self, name)!r} does not go with rollout: {self.rollout}: {reason}; leave it "
                    "out, or set rollout: transformers"
                )

    def _check_rewards(self) -> None:
        if not self.reward_functions:
            raise ConfigError("reward_functions is empty: name at least one, for example `ocr`")
        if len(set(self.reward_functions)) < len(self.reward_functions):
            raise ConfigError(f"reward_functions names a function twice: {', '.join(self.reward_functions)}")
        if self.reward_workers and OCR_REWARD not in self.reward_functions:
            raise ConfigError(
                f"reward_workers: {self.reward_workers} has no effect: it needs `{OCR_REWARD}` among reward_functions"
            )
        if not self.reward_workers and self.reward_timeout != REWARD_TIMEOUT_S:
            raise ConfigError(
                f"reward_timeout: {self.reward_timeout} has no effect: it needs reward_workers of at least 1"
            )
        weights = self.reward_weights
        if weights is None:
            return
        if len(weights) != len(self.reward_functions):
            raise ConfigError(
                f"reward_weights: {len(weights)} weights for {len(self.reward_functions)} reward_functions; "
                "give one for each"
            )
        if not all(map(math.isfinite, weights)):
            raise ConfigError(f"reward_weights: {weights} must be finite numbers")


def check_rollout_name(name: str) -> None:
    """Check that there is such an engine.

    Raises:
        ConfigError: there is none.
    """
    if name not in ROLLOUT_ENGINES:
        raise ConfigError(f"rollout: {name!r} is unknown; choose one of {', '.join(ROLLOUT_ENGINES)}")


def parse_block_size(value: Any) -> int | Literal["auto"]:
    """``rollout_block_size`` as decoding takes it.

    Raises:
        ConfigError: it is neither ``auto`` nor a whole number from 1 to 10**9 - 1.
    """
    if value == AUTO:
        return "auto"
    if not isinstance(value, str) or not re.fullmatch("[0-9]{1,9}", value) or int(value) < 1:
        raise ConfigError(
            f"rollout_block_size: {value!r} must be auto or a whole number of at least 1 and at most "
            "max_completion_length"
        )
    return int(value)


def parse_config(argv: Sequence[str]) -> RunConfig:
    """The configuration of a run from command-line arguments, usually ``--config FILE`` and some overrides.

    Raises:
        ConfigError: a setting is unknown, malformed, contradictory or would have no effect.
    """
    parser = StrictParser(
        [GravityConfig, ModelArguments, DataConfig, RewardConfig],
        description="GRPO training of a document-OCR vision-language model.",
        is_hidden=is_unused,
    )
    return RunConfig(*parser.parse(argv))
