"""What ``--dry_run`` does once data and references are validated: one generation batch, for real.

The trainer itself generates, scores, trains and saves a checkpoint, in a hidden folder that is removed
afterwards. What comes out is a report of memory, of the seconds that each phase took, and of how long the
whole run would take.
"""

from __future__ import annotations

import resource
import shutil
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from transformers import TrainerCallback

from gravity_rl.resume import make_output_directory
from gravity_rl.reward_functions import RecordedOCRReward

if TYPE_CHECKING:
    from gravity_rl.config import GravityConfig
    from gravity_rl.trainer import GravityTrainer

SCRATCH = ".dry_run"
# Phase of a step -> the trainer's method for it. "pass" contains "prepare", which contains the first two.
_PHASES = {
    "generate": "_generate",
    "score": "_calculate_rewards",
    "prepare": "_generate_and_score_completions",
    "pass": "training_step",
    "save": "_save_checkpoint",
}


@contextmanager
def scratch_directory(config: GravityConfig) -> Iterator[Path]:
    """Let the context run in a hidden folder of ``output_dir``, without TensorBoard and the like.

    Yields:
        The folder, to which ``config.output_dir`` points meanwhile. It is removed afterwards, and so is an
        ``output_dir`` that did not exist before.

    Raises:
        ConfigError: ``output_dir`` cannot be created or written to.
    """
    output_dir, report_to = Path(str(config.output_dir)), config.report_to
    is_main = config.distributed_state.is_main_process
    is_new = is_main and make_output_directory(output_dir)
    config.output_dir, config.report_to = str(output_dir / SCRATCH), []
    try:
        yield output_dir / SCRATCH
    finally:
        config.distributed_state.wait_for_everyone()
        if is_main:
            shutil.rmtree(output_dir / SCRATCH, ignore_errors=True)
            if is_new:
                output_dir.rmdir()
        config.output_dir, config.report_to = str(output_dir), report_to


def dry_run(trainer: GravityTrainer) -> str:
    """Train on one generation batch, checkpoint included, and describe what it took.

    Args:
        trainer: a trainer whose ``output_dir`` is that of :func:`scratch_directory`.

    Returns:
        A report of several lines. Times are those of a first step, which is the slowest as a rule; the
        estimate for the whole run leaves out the evaluation of held-out crops.
    """
    optimizer = _OptimizerTimer()
    trainer.add_callback(optimizer)
    trainer.add_callback(_StopAfterGeneration(trainer))
    seconds: dict[str, float] = defaultdict(float)
    for phase, method in _PHASES.items():
        _time_calls(trainer, method, phase, seconds)
    started = time.perf_counter()
    trainer.train()
    elapsed = time.perf_counter() - started
    phases = {
        "generate": seconds["generate"],
        "score": seconds["score"],
        "reference log-probabilities": seconds["prepare"] - seconds["generate"] - seconds["score"],
        "forward and backward": seconds["pass"] - seconds["prepare"],
        "optimizer": optimizer.seconds,
        "save checkpoint": seconds["save"],
    }
    memory = torch.tensor([_peak_memory()], device=trainer.accelerator.device)
    return _report(trainer, phases, elapsed, trainer.accelerator.gather(memory).amax(dim=0).tolist())


class _StopAfterGeneration(TrainerCallback):
    """Saves and stops as soon as one generation batch is used up."""

    def __init__(self, trainer: GravityTrainer):
        self.trainer = trainer

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.trainer.generation_is_used_up:
            control.should_log = control.should_save = control.should_training_stop = True


class _OptimizerTimer(TrainerCallback):
    """Seconds spent in the optimizer's own step."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._started = 0.0

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._started = _now()

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.seconds += _now() - self._started


def _time_calls(trainer: GravityTrainer, method: str, phase: str, seconds: dict[str, float]) -> None:
    original: Callable[..., Any] = getattr(trainer, method)

    def timed(*args: Any, **kwargs: Any) -> Any:
        started = _now()
        result = original(*args, **kwargs)
        seconds[phase] += _now() - started
        return result

    setattr(trainer, method, timed)


def _now() -> float:
    """Seconds on a clock that waits for the GPU's queue to be done."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()


def _peak_memory() -> list[float]:
    """GiB at the peak so far: resident in main memory, reserved on this process's GPU (0 without one)."""
    unit = 1 if sys.platform == "darwin" else 1024  # bytes of ru_maxrss
    resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    reserved = torch.cuda.max_memory_reserved() if torch.cuda.is_available() else 0
    return [resident / 2**30, reserved / 2**30]


def _report(trainer: GravityTrainer, phases: Mapping[str, float], elapsed: float, memory: list[float]) -> str:
    args = trainer.args
    steps, processes = trainer.state.global_step, trainer.accelerator.num_processes
    prompts = args.generation_batch_size // args.num_generations
    tasks = Counter(trainer.train_dataset.with_format(None)["task"])
    gpu = f", {memory[1]:.2f} GiB GPU" if memory[1] else ""
    lines = [
        "dry run passed",
        f"  batch: {args.per_device_train_batch_size} per device x {args.steps_per_generation} passes x "
        f"{processes} process{'es' if processes > 1 else ''} = {args.generation_batch_size} completions a "
        f"generation, {prompts} prompts x {args.num_generations}",
        f"  optimizer steps a generation: {steps}",
        "  training rows: " + ", ".join(f"{task} {count}" for task, count in sorted(tasks.items())),
        "  rewards: " + ", ".join(map(_reward, trainer.reward_funcs, trainer.reward_func_names)),
        "  completions: " + _completions(trainer),
        f"  peak memory of a process: {memory[0]:.2f} GiB main memory{gpu}",
        f"  seconds, optimizer steps: {steps}, checkpoints: 1 ({elapsed:.1f} in all):",
        *(f"    {name:<28}{value:8.2f}" for name, value in phases.items()),
    ]
    saving = phases["save checkpoint"]
    per_step = (sum(phases.values()) - saving) / steps
    saves = trainer.state.max_steps // trainer.state.save_steps if args.save_strategy == "steps" else 1
    total = per_step * trainer.state.max_steps + saving * saves
    lines.append(
        f"  estimate for {trainer.state.max_steps} steps and {saves} checkpoints: {_duration(total)}, if "
        "completions stay as long as these"
    )
    return "\n".join(lines)


def _reward(function: Callable[..., Any], name: str) -> str:
    return f"{name} ({function.config.profile} profile)" if isinstance(function, RecordedOCRReward) else name


def _completions(trainer: GravityTrainer) -> str:
    log = next(entry for entry in trainer.state.log_history if "completions/mean_length" in entry)
    return (
        f"{log['completions/mean_length']:.0f} tokens on average, {log['completions/max_length']:.0f} at "
        f"most, {log['completions/clipped_ratio']:.0%} cut at the limit; reward {log['reward']:.3f}"
    )


def _duration(seconds: float) -> str:
    minutes = round(seconds / 60)
    return f"{seconds:.0f} s" if seconds < 120 else f"{minutes // 60} h {minutes % 60:02d} min"
