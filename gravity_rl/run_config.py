"""What describes a run, whatever it trains: its sections, which model, and how the whole is written down.

``gravity_rl.config`` (GRPO) and ``gravity_rl.joint.config`` (joint training) add their own training section to it.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple, Protocol

import yaml

from gravity_rl.data.config import DataConfig
from gravity_rl.parsing import ConfigError
from rewards import RewardConfig

_SECRETS = ("hub_token",)
_OF_ONE_LAUNCH = ("dry_run", "resume_from_checkpoint")  # say how a run is started, not what it is
# Settings that may differ between a run and its continuation: they do not touch the weights or the rollouts.
_FREE_TO_CHANGE = ("output_dir", "report_to", "run_name", "project", "disable_tqdm", "push_to_hub", "debug",
                   "skip_memory_metrics", "eval_data", "max_eval_rows", "image_check_workers",
                   "data_cache_dir", "reward_workers", "reward_timeout", "rollout_block_size")  # fmt: skip
#: Engines whose completions do not depend on how many are written at once.
_ROLLOUTS_WITHOUT_CHUNKS = ("ar", "self_spec")
_FREE_PREFIXES = ("logging_", "log_", "save_", "evaluation_", "dataloader_", "hub_", "trackio_")


#: Whether a value is allowed, and what is expected.
Limit = tuple[Callable[[float], bool], str]
POSITIVE: Limit = (lambda value: 0 < value < math.inf, "a positive number")
NOT_NEGATIVE: Limit = (lambda value: 0 <= value < math.inf, "a finite number that is not negative")
AT_LEAST_1: Limit = (lambda value: value >= 1, "at least 1")


def check_limits(config: Any, limits: Mapping[str, Limit]) -> None:
    """Check what settings must be, unless they are unset.

    Raises:
        ConfigError: naming the setting and what is expected.
    """
    for name, (is_within, expected) in limits.items():
        value = getattr(config, name)
        if value is not None and not is_within(value):
            raise ConfigError(f"{name}: {value} must be {expected}")


class TrainingSection(Protocol):
    """A subclass of ``TrainingArguments`` that remembers what it was given."""

    as_given: dict[str, Any]

    def is_unused(self, name: str) -> bool:
        """Whether the setting never has an effect in this kind of run."""
        ...


@dataclass
class ModelArguments:
    """Which checkpoint is trained, and in which precision it is held."""

    model_name_or_path: str = field(
        default="",
        metadata={
            "help": "Checkpoint folder, hub name, or a tiny model of this package: shipped:tiny, shipped:tiny-reader, "
            "shipped:tiny-ar."
        },
    )
    revision: str | None = field(default=None, metadata={"help": "Branch, tag or commit of a hub checkpoint."})
    dtype: str = field(
        default="float32",
        metadata={
            "help": "Precision of the weights: float32, bfloat16, float16 or auto (the checkpoint's). With "
            "bf16: true, float32 keeps master weights, without which updates at lr 3e-6 are rounded away."
        },
    )
    attn_implementation: str | None = field(
        default=None, metadata={"help": "Attention implementation of transformers, for example sdpa."}
    )

    def __post_init__(self) -> None:
        if not self.model_name_or_path:
            raise ConfigError("model_name_or_path is not set: name a checkpoint")
        if self.dtype not in ("auto", "float32", "bfloat16", "float16"):
            raise ConfigError(f"dtype: {self.dtype!r} is unknown; choose float32, bfloat16, float16 or auto")


class RunConfig(NamedTuple):
    """Everything that describes a run."""

    training: Any  # a TrainingSection
    model: ModelArguments
    data: DataConfig
    rewards: RewardConfig

    def as_dict(self) -> dict[str, dict[str, Any]]:
        """Section → setting → value as given; secrets, launch options and unused settings are left out."""
        skipped = {*_SECRETS, *_OF_ONE_LAUNCH}
        training = {
            name: value
            for name, value in self.training.as_given.items()
            if name not in skipped and not self.training.is_unused(name)
        }
        return {
            "training": training,
            "model": dataclasses.asdict(self.model),
            "data": dataclasses.asdict(self.data),
            "rewards": dataclasses.asdict(self.rewards),
        }

    def course(self) -> dict[str, Any]:
        """The settings that decide weights and rollouts, flat: a resumed run must have the same ones."""
        settings = {name: value for section in self.as_dict().values() for name, value in section.items()}
        free = set(_FREE_TO_CHANGE)
        if settings.get("rollout") in _ROLLOUTS_WITHOUT_CHUNKS:
            free.add("rollout_batch_size")  # which a run that ran out of memory has to be able to lower
        return {
            name: value for name, value in settings.items() if name not in free and not name.startswith(_FREE_PREFIXES)
        }

    def to_yaml(self) -> str:
        """A YAML file that ``--config`` reads back into an equal configuration."""
        sections = [
            f"# {name}\n" + yaml.safe_dump(values, sort_keys=False, allow_unicode=True, width=110)
            for name, values in self.as_dict().items()
        ]
        return "\n".join(sections)


def default_of(setting: dataclasses.Field[Any]) -> Any:
    """The default of a dataclass field, as YAML holds it."""
    if setting.default_factory is not dataclasses.MISSING:
        return setting.default_factory()
    return plain(setting.default)


def plain(value: Any) -> Any:
    """The value as YAML holds it."""
    return value.value if isinstance(value, Enum) else value
