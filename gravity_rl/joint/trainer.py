"""The trainer of joint training: a plain ``Trainer`` over packed rows, with two learning rates and its own metrics.

Rows come in the order of the plan, one at a time on a device. Metrics are sums over all rows and processes since the
last log line, so that accuracies are those of tokens, not means of means. Checkpoints and resuming are those of the
GRPO run (``gravity_rl.checkpoint``).
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Sampler, SequentialSampler
from tqdm import tqdm
from transformers import TrainerCallback

from gravity_rl.checkpoint import AtomicCheckpointMixin
from gravity_rl.joint.config import JointConfig
from gravity_rl.joint.drafter import BlockDiffusion
from gravity_rl.joint.modeling import SHARE_BUCKETS, JointGlmOcr
from gravity_rl.joint.rows import PackedRows
from gravity_rl.recorder import RunDirectory

# What a row counts besides the outputs of the model, which are sums of the same kind.
_COUNTS = ("rows", "samples", "forward_tokens", "ar_targets", "diffusion_targets", "glyph_rows")
_SUMS = ("ar_loss", "ar_correct", "diffusion_loss", "glyph_loss")
_BUCKETS = tuple(f"{kind}/{bucket}" for kind in ("denoised", "masked") for bucket in SHARE_BUCKETS)
STATISTICS = (*_COUNTS, *_SUMS, *_BUCKETS)

HeldOutReader = Callable[["JointTrainer", int], dict[str, float]]


def the_row(rows: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Collator: a batch is one row, which needs no padding."""
    (row,) = rows
    return row


class JointTrainer(AtomicCheckpointMixin):
    """Trains ``JointGlmOcr`` on packed rows.

    Args:
        model: the model, with its losses set.
        args: training settings.
        rows: the rows of the whole run.
        processor: saved with the model.
        drafter: written into every checkpoint; None for a run whose checkpoints have no drafter.
        run: the run directory.
        read_held_out: called with trainer and step every ``evaluation_steps`` and after the last; returns metrics.
        settings: what a resumed run must have in common with this one.
    """

    args: JointConfig
    model: JointGlmOcr
    optimizer: Any

    def __init__(
        self,
        *,
        model: JointGlmOcr,
        args: JointConfig,
        rows: PackedRows,
        processor: Any,
        drafter: BlockDiffusion | None,
        run: RunDirectory,
        read_held_out: HeldOutReader | None = None,
        settings: dict[str, Any] | None = None,
    ):
        self._metrics = {"train": defaultdict(list)}
        self._sums: Tensor | None = None
        self._speed = _Speed()
        self._vision_rate = 0.0
        super().__init__(
            model=model, args=args, train_dataset=rows, data_collator=the_row, processing_class=processor,
            settings=settings, drafter=drafter,
        )  # fmt: skip
        if read_held_out is not None:
            self.add_callback(_HeldOutCallback(self, read_held_out))
        run.attach(self, ProgressBar())

    def create_optimizer(self, model: Any = None) -> torch.optim.Optimizer:
        """The optimiser with a group for the decoder and one for the vision tower."""
        if self.optimizer is None:
            is_vision = {id(parameter) for parameter in self.model.model.visual.parameters()}
            parameters = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
            groups = [
                {"params": [p for p in parameters if id(p) not in is_vision], "lr": self.args.learning_rate},
                {"params": [p for p in parameters if id(p) in is_vision], "lr": self.args.vision_learning_rate},
            ]
            kind, options = self.get_optimizer_cls_and_kwargs(self.args, self.model)
            self.optimizer = kind(groups, **options | {"weight_decay": self.args.weight_decay})
        return self.optimizer

    def compute_loss(self, model: Any, inputs: dict[str, Tensor], *args: Any, **kwargs: Any) -> Tensor:
        """Joint loss of a row."""
        counts = {name: inputs.pop(name) for name in ("samples", "forward_tokens")}
        outputs = model(**inputs)
        counts |= {"ar_targets": inputs["ar"].size(1), "diffusion_targets": inputs["diffusion"].size(1), "rows": 1}
        counts["glyph_rows"] = int("glyph_loss" in outputs)
        self._count(counts | outputs)
        return outputs["loss"]

    def _count(self, values: dict[str, Any]) -> None:
        """Add a row's statistics to those of the step; on the device, without waiting for it."""
        for kind in ("denoised", "masked"):
            values |= {f"{kind}/{bucket}": value for bucket, value in zip(SHARE_BUCKETS, values[kind], strict=True)}
        device = self.accelerator.device
        row = torch.stack(
            [torch.as_tensor(values.get(name, 0.0), dtype=torch.float32, device=device) for name in STATISTICS]
        )
        self._sums = row if self._sums is None else self._sums + row

    def training_step(self, *args: Any, **kwargs: Any) -> Tensor:
        """One row; at the last of an optimiser step, its statistics are added up over the processes."""
        self._vision_rate = self.optimizer.param_groups[1]["lr"]  # of this step; the schedule moves on before log
        loss = super().training_step(*args, **kwargs)
        if self.accelerator.sync_gradients and self._sums is not None:
            totals = self.accelerator.reduce(self._sums, reduction="sum").tolist()
            for name, value in zip(STATISTICS, totals, strict=True):
                self._metrics["train"][name].append(value)
            self._speed.tokens += self._metrics["train"]["forward_tokens"][-1]
            self._sums = None
        return loss

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Log with the metrics of the rows since the last log line of training."""
        if "loss" in logs:
            totals = {name: sum(values) for name, values in self._metrics["train"].items()}
            logs = logs | row_metrics(totals, self.args.row_tokens)
            logs["tokens_per_second"] = self._speed.read()
            logs["vision_learning_rate"] = self._vision_rate
            self._metrics["train"].clear()
        super().log(logs, start_time)

    def train(self, resume_from_checkpoint: str | None = None, **kwargs: Any) -> Any:
        """See ``AtomicCheckpointMixin.train``."""
        self._speed = _Speed()
        return super().train(resume_from_checkpoint, **kwargs)

    def _get_train_sampler(self, dataset: Any = None) -> Sampler[int]:
        return SequentialSampler(self.train_dataset)


def row_metrics(totals: dict[str, float], row_tokens: int) -> dict[str, float]:
    """Metrics of the rows that ``totals`` sums up, by name; those without a target are left out.

    Args:
        totals: statistic of ``STATISTICS`` → its sum.
        row_tokens: room of a row.
    """
    pairs = {
        "ar_loss": ("ar_loss", "ar_targets"),
        "ar_accuracy": ("ar_correct", "ar_targets"),
        "diffusion_loss": ("diffusion_loss", "diffusion_targets"),
        "glyph_loss": ("glyph_loss", "glyph_rows"),
        "samples_per_row": ("samples", "rows"),
        **{f"denoising_accuracy/{bucket}": (f"denoised/{bucket}", f"masked/{bucket}") for bucket in SHARE_BUCKETS},
    }
    metrics = {name: totals[part] / totals[whole] for name, (part, whole) in pairs.items() if totals[whole]}
    return metrics | {"packing_efficiency": totals["forward_tokens"] / (totals["rows"] * row_tokens)}


class _Speed:
    """Forward tokens a second since it was last read, of this launch alone and without reading held-out crops."""

    def __init__(self) -> None:
        self.tokens = 0.0
        self._since = time.monotonic()

    def read(self) -> float:
        now = time.monotonic()
        speed = self.tokens / (now - self._since)
        self.tokens, self._since = 0.0, now
        return speed

    @contextmanager
    def paused(self) -> Iterator[None]:
        started = time.monotonic()
        yield
        self._since += time.monotonic() - started


class _HeldOutCallback(TrainerCallback):
    """Reads the held-out crops every ``evaluation_steps`` and after the last step."""

    def __init__(self, trainer: JointTrainer, read_held_out: HeldOutReader):
        self.trainer, self.read_held_out = trainer, read_held_out

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        every = args.evaluation_steps
        if state.global_step == state.max_steps or (every and state.global_step % every == 0):
            should_log = control.should_log  # of the training metrics, which the next line would take for done
            with self.trainer._speed.paused():
                self.trainer.log(self.read_held_out(self.trainer, state.global_step))
            control.should_log = should_log


class ProgressBar(TrainerCallback):
    """A bar with the time left, and the last losses beside it."""

    def __init__(self) -> None:
        self.bar: tqdm | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.is_world_process_zero:
            self.bar = tqdm(total=state.max_steps, initial=state.global_step, desc="joint training", unit="step")

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.bar is not None:
            self.bar.update()

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        shown = {"ar_loss": "ar", "diffusion_loss": "diffusion", "ar_accuracy": "accuracy", "glyph_loss": "glyph"}
        if self.bar is not None and "loss" in logs:
            self.bar.set_postfix({short: f"{logs[name]:.3f}" for name, short in shown.items() if name in logs})

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.bar is not None:
            self.bar.close()
