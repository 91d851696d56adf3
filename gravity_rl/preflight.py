"""Do optimiser, schedule and rollout engine run here, and does the arithmetic of batches and checkpoints work out?

Runs with every start, before data or model are touched, and says which values would do. TRL checks some of this later
and names no way out.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from transformers import AutoConfig, Trainer, get_scheduler

from gravity_rl.decoding import ATTENTIONS
from gravity_rl.joint.drafter import BlockDiffusion, check_mask_id, read_block_diffusion, require_drafter
from gravity_rl.model import ModelError, refusing
from gravity_rl.parsing import ConfigError

if TYPE_CHECKING:
    from gravity_rl.config import GravityConfig

_GLM_OCR = "glm_ocr"
# Settings under which a resumed run would not be the same run, and why.
_NOT_RESUMABLE = {
    "save_only_model": "the optimizer would start anew",
    "ignore_data_skip": "it would see the first rows of the epoch again",
    "sync_ref_model": "checkpoints do not hold the reference model, which would be the start checkpoint again",
}


def check_batch_arithmetic(config: GravityConfig, world_size: int) -> None:
    """Check that prompts, completions, processes and checkpoints divide evenly.

    Args:
        config: training settings; whether TRL has derived the generation batch from them does not matter.
        world_size: number of processes.

    Raises:
        ConfigError: with the numbers that clash and the nearest values that would not.
    """
    group = _check_positive(config)
    if config.as_given["generation_batch_size"] is None:
        steps = config.as_given["steps_per_generation"] or config.gradient_accumulation_steps
    else:
        steps = _check_generation_batch(config, config.per_device_train_batch_size * world_size, group)
    _check_groups(config, world_size, steps, group)
    _check_boundaries(config, steps * config.num_iterations)


def _check_positive(config: GravityConfig) -> int:
    """The size of a group, after the lower bounds of all sizes have been checked."""
    lowest = {
        "per_device_train_batch_size": 1,
        "gradient_accumulation_steps": 1,
        "num_generations": 2,  # an advantage is a difference within a group
        "num_iterations": 1,
        "steps_per_generation": 1,
        "generation_batch_size": 1,
    }
    for name, least in lowest.items():
        value = config.as_given[name]
        if value is not None and value < least:
            raise ConfigError(f"{name}: {value} is too small, the least is {least}")
    if config.num_generations is None:
        raise ConfigError("num_generations is not set: say how many completions each prompt gets")
    return config.num_generations


def _check_generation_batch(config: GravityConfig, per_pass: int, group: int) -> int:
    """The passes that ``generation_batch_size`` feeds, with `per_pass` completions in each."""
    total = config.as_given["generation_batch_size"]
    if config.as_given["steps_per_generation"] is not None:
        raise ConfigError("generation_batch_size and steps_per_generation say the same thing: set one of the two")
    if total % per_pass:
        works = _nearest_multiples(total, math.lcm(per_pass, group))
        raise ConfigError(
            f"batch sizes do not divide: generation_batch_size {total} is not a multiple of {per_pass}, the "
            "completions in one pass (per_device_train_batch_size x processes). "
            f"What would work: generation_batch_size {_either(works)}"
        )
    return total // per_pass


def _check_groups(config: GravityConfig, world_size: int, steps: int, group: int) -> None:
    per_device = config.per_device_train_batch_size
    total = per_device * world_size * steps
    if total % group == 0:
        return
    name = "steps_per_generation"
    if config.as_given["generation_batch_size"] is None and config.as_given["steps_per_generation"] is None:
        name = "gradient_accumulation_steps"
    per_device_works = _nearest_multiples(per_device, _missing_factor(group, total // per_device))
    steps_works = _nearest_multiples(steps, _missing_factor(group, total // steps))
    raise ConfigError(
        f"batch sizes do not divide: {per_device} (per_device_train_batch_size) x {steps} ({name}) x "
        f"{world_size} (processes) = {total} completions in a generation batch, which is no multiple of "
        f"num_generations {group}. "
        f"What would work, each on its own: per_device_train_batch_size {_either(per_device_works)}; "
        f"{name} {_either(steps_works)}; num_generations {_either(_nearest_divisors(total, group))}"
    )


def _check_boundaries(config: GravityConfig, micro_batches: int) -> None:
    """Checkpoints have to fall where a generation batch is used up, see :mod:`gravity_rl.checkpoint`.

    Args:
        micro_batches: forward and backward passes that one generation batch serves.
    """
    accumulation = config.gradient_accumulation_steps
    if accumulation % micro_batches and micro_batches % accumulation:
        works = sorted({math.gcd(accumulation, micro_batches), *_nearest_multiples(accumulation, micro_batches)})
        raise ConfigError(
            f"a generation batch serves {micro_batches} passes (steps_per_generation x num_iterations) and "
            f"an optimizer step takes {accumulation} (gradient_accumulation_steps): one has to be a multiple "
            "of the other, or generations end in the middle of a step. "
            f"What would work: gradient_accumulation_steps {_either(works)}"
        )
    every = max(micro_batches // accumulation, 1)
    interval = config.save_steps
    if interval < 1:  # a share of the run
        interval = math.ceil(config.max_steps * interval)
    for name, value, used in (
        ("save_steps", int(interval), config.save_strategy == "steps"),
        ("max_steps", config.max_steps, config.max_steps > 0),
    ):
        if used and value % every:
            raise ConfigError(
                f"{name}: {value} is not a multiple of {every}, the optimizer steps that one generation "
                "batch serves; a checkpoint in between would lose the completions that are still to be used. "
                f"What would work: {name} {_either(_nearest_multiples(value, every))}"
            )


def check_resumable(config: GravityConfig) -> None:
    """Check that a run can be continued from its checkpoints.

    Raises:
        ConfigError: a setting would make the resumed run another one.
    """
    for name, why in _NOT_RESUMABLE.items():
        if config.as_given[name]:
            raise ConfigError(f"{name}: {config.as_given[name]!r} is not supported: after resuming, {why}")


def check_prompt_count(rows: int, config: GravityConfig) -> None:
    """Check that the training data fill at least one generation batch.

    Raises:
        ConfigError: there are fewer rows than prompts in a generation batch, so that an epoch would be empty.
    """
    completions, group = config.generation_batch_size, config.num_generations
    if completions is None or group is None or rows * group >= completions:
        return
    prompts = completions // group
    raise ConfigError(
        f"too few training rows: {rows}, but a generation batch takes {prompts} prompts ({completions} "
        f"completions / num_generations {group}); set mixture_size to at least {prompts}, or shrink the batch"
    )


def _missing_factor(group: int, others: int) -> int:
    """The least number that, times `others`, is a multiple of `group`."""
    return group // math.gcd(group, others)


def _nearest_multiples(value: int, base: int) -> list[int]:
    below = value // base * base
    return [candidate for candidate in (below, below + base) if candidate > 0]


def _nearest_divisors(total: int, value: int) -> list[int]:
    """The divisors of `total`, at least 2, next to `value`."""
    divisors = [divisor for divisor in range(2, total + 1) if total % divisor == 0]
    below = [divisor for divisor in divisors if divisor < value]
    above = [divisor for divisor in divisors if divisor > value]
    return below[-1:] + above[:1]


def _either(values: list[int]) -> str:
    return " or ".join(map(str, values)) or "(none)"


def check_optimizer(config: Any) -> None:
    """Make sure that the configured optimiser and schedule run here, by one step on a small tensor.

    Args:
        config: ``TrainingArguments`` that remember ``as_given`` what they were given.

    Raises:
        ConfigError: the optimiser needs a package that is missing or does not run, or the schedule does not take
            its ``lr_scheduler_kwargs``.
    """
    name = str(config.as_given["optim"])
    advice = "set `optim: adamw_torch` (fp32 states) to train without it"
    weight = torch.nn.Parameter(torch.zeros(4096, device=config.device))
    weight.grad = torch.ones_like(weight)
    try:
        if "8bit" in name:
            import bitsandbytes

            bitsandbytes.optim.AdamW8bit([weight], lr=1e-3, min_8bit_size=1).step()
        Trainer.get_optimizer_cls_and_kwargs(config)
    except (ImportError, OSError, RuntimeError, AttributeError, NotImplementedError, ValueError) as error:
        package = "bitsandbytes, which does not run here" if "8bit" in name else "what is missing here"
        raise ConfigError(f"optim: {name} needs {package} ({type(error).__name__}: {error}); {advice}") from error
    _check_schedule(config, torch.optim.SGD([weight], lr=1e-3))


def _check_schedule(config: Any, optimizer: torch.optim.Optimizer) -> None:
    try:
        get_scheduler(
            config.lr_scheduler_type, optimizer, num_warmup_steps=1, num_training_steps=10,
            scheduler_specific_kwargs=dict(config.lr_scheduler_kwargs or {}),
        )  # fmt: skip
    except (TypeError, ValueError) as error:
        name, given = (config.as_given[key] for key in ("lr_scheduler_type", "lr_scheduler_kwargs"))
        raise ConfigError(f"lr_scheduler_type: {name} does not take lr_scheduler_kwargs: {given} ({error})") from error


def check_rollout(rollout: str, folder: Path, processor: Any, attn_implementation: str | None) -> BlockDiffusion | None:
    """Check that an engine takes the model of a checkpoint, before its weights are read.

    Args:
        rollout: one of ``ROLLOUT_ENGINES``.
        folder: checkpoint folder.
        processor: the checkpoint's.
        attn_implementation: as the settings name it; None for transformers' own choice.

    Returns:
        The checkpoint's drafter; None if it has none.

    Raises:
        ConfigError: the engine does not take this attention.
        ModelError: it does not take the checkpoint, there is no drafter that it needs, or there is one whose mask
            token is another token of the tokenizer, which would be banned.
    """
    drafter = read_block_diffusion(folder)
    if rollout != "transformers":
        _check_decoding(rollout, folder, attn_implementation)
    if drafter is not None:
        check_mask_id(processor.tokenizer, drafter.mask_id)
    return drafter


def _check_decoding(rollout: str, folder: Path, attn_implementation: str | None) -> None:
    """What only ``ar`` and ``self_spec`` ask for."""
    if attn_implementation not in (None, *ATTENTIONS):
        raise ConfigError(
            f"attn_implementation: {attn_implementation!r} does not take the masks of rollout: {rollout}; choose one "
            f"of {', '.join(ATTENTIONS)}, or rollout: transformers"
        )
    config = _read_model_config(folder)
    if config.model_type != _GLM_OCR:
        raise ModelError(
            f"{folder}/config.json: model_type is {config.model_type!r}, but rollout: {rollout} needs {_GLM_OCR!r}, "
            "class GlmOcrForConditionalGeneration; set rollout: transformers"
        )
    if rollout == "self_spec":
        try:
            require_drafter(folder, config.text_config.vocab_size)
        except ModelError as error:
            raise ModelError(f"rollout: self_spec: {error} (rollout: ar)") from error


def default_rollout(folder: Path) -> str:
    """The fastest engine that takes a checkpoint.

    Raises:
        ModelError: its ``config.json`` or ``block_diffusion.json`` cannot be read.
    """
    if _read_model_config(folder).model_type != _GLM_OCR:
        return "transformers"
    drafter = read_block_diffusion(folder)
    return "self_spec" if drafter is not None and drafter.ar_loss_weight > 0 else "ar"


def _read_model_config(folder: Path) -> Any:
    with refusing(f"{folder}/config.json cannot be read"):
        return AutoConfig.from_pretrained(folder, trust_remote_code=False)
