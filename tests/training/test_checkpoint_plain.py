"""Atomic checkpoints of a plain ``transformers.Trainer``, without TRL: exact resumption and a clean stop."""

from __future__ import annotations

import json
import os
import signal
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers import TrainerCallback, TrainingArguments

from gravity_rl.checkpoint import AtomicCheckpointMixin
from gravity_rl.recorder import RunDirectory
from gravity_rl.resume import complete_checkpoints

ROWS = [{"x": [float(index), 1.0], "row": index} for index in range(6)]


class Net(nn.Module):
    """Dropout makes every step depend on the state of the random generator."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 1)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": self.linear(nn.functional.dropout(x, 0.5)).square().mean()}


class PlainTrainer(AtomicCheckpointMixin):
    """Gathers which rows it saw, as its metric, and logs their mean."""

    saves_at: int | None = None

    def __init__(self, *args: Any, **kwargs: Any):
        self.seen: list[list[float]] = []
        self._metrics = {"train": defaultdict(list)}
        super().__init__(*args, **kwargs)

    @property
    def may_save(self) -> bool:
        return self.saves_at in (None, self.state.global_step)

    def compute_loss(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        rows = inputs.pop("row").tolist()
        self.seen.append(rows)
        self._metrics["train"]["row"] += rows
        return super().compute_loss(model, inputs, *args, **kwargs)

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        gathered = self._metrics["train"]
        super().log(logs | {name: sum(values) for name, values in gathered.items()}, start_time)
        gathered.clear()


class SignalAt(TrainerCallback):
    def __init__(self, step: int):
        self.step = step

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == self.step:
            os.kill(os.getpid(), signal.SIGTERM)


def make_trainer(folder: Path, *callbacks: TrainerCallback) -> PlainTrainer:
    torch.manual_seed(0)
    args = TrainingArguments(
        output_dir=str(folder), per_device_train_batch_size=2, max_steps=8, save_steps=2, logging_steps=3,
        learning_rate=0.1, use_cpu=True, report_to="none", remove_unused_columns=False, disable_tqdm=True,
    )  # fmt: skip
    trainer = PlainTrainer(Net(), args, train_dataset=ROWS, callbacks=list(callbacks), settings={"seed": 42})
    RunDirectory(folder).attach(trainer)
    return trainer


def log_lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> PlainTrainer:
    trainer = make_trainer(tmp_path_factory.mktemp("whole"))
    trainer.train()
    assert trainer.seen[:3] != trainer.seen[3:6]  # epochs of three steps, each in an order of its own
    return trainer


@pytest.mark.parametrize("step", [1, 3, 5])  # within an epoch, at its end, and within the next one
def test_resumed_run_is_the_uninterrupted_one(step: int, whole: PlainTrainer, tmp_path: Path) -> None:
    stopped = make_trainer(tmp_path, SignalAt(step))
    stopped.train()
    assert stopped.stop_on_signal.stopped_by == signal.SIGTERM
    (*_, checkpoint) = complete_checkpoints(tmp_path)
    assert checkpoint.name == f"checkpoint-{step}"

    resumed = make_trainer(tmp_path)
    resumed.train(resume_from_checkpoint=str(checkpoint))
    assert stopped.seen + resumed.seen == whole.seen
    assert log_lines(tmp_path) == log_lines(Path(whole.args.output_dir))
    for name, weight in whole.model.state_dict().items():
        assert torch.equal(weight, resumed.model.state_dict()[name]), name


def test_finished_run_is_not_trained_further(whole: PlainTrainer) -> None:
    resumed = make_trainer(Path(whole.args.output_dir))
    resumed.train(resume_from_checkpoint=str(Path(whole.args.output_dir) / "checkpoint-8"))
    assert not resumed.seen
    assert torch.equal(whole.model.linear.weight, resumed.model.linear.weight)


def test_signal_waits_until_the_trainer_may_save(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, SignalAt(1))
    trainer.args.save_steps = 100
    trainer.saves_at = 3
    trainer.train()
    assert [path.name for path in complete_checkpoints(tmp_path)] == ["checkpoint-3"]


def test_checkpoint_that_would_not_hold_everything_is_refused(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path)
    trainer.saves_at = 3
    with pytest.raises(RuntimeError, match="checkpoint of step 2 would not hold all"):
        trainer.train()


def test_final_model(whole: PlainTrainer, tmp_path: Path) -> None:
    whole.save_final(tmp_path / "final")
    assert (tmp_path / "final" / "model.safetensors").is_file()
