"""The run directory: what a run writes down besides its checkpoints, and the tools that read it back.

Rollouts are data: every completion with its reward and the components of it, so that a run can be inspected,
mined and re-scored without a model. Only the main process writes; every file appears under its name complete
or not at all. ``python -m gravity_rl.recorder rescore RUN`` recomputes every recorded OCR reward and
compares. ``docs/RUN_DIRECTORY.md`` describes the files.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import logging
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from torch.utils.tensorboard import SummaryWriter
from transformers import PrinterCallback, ProgressCallback, TrainerCallback
from transformers.integrations import TensorBoardCallback

from gravity_rl.data.contract import TASKS
from gravity_rl.environment import describe_environment
from gravity_rl.metrics import Rollout
from gravity_rl.parsing import ConfigError, read_yaml
from rewards import RewardConfig, score

if TYPE_CHECKING:
    from trl import GRPOTrainer

    from gravity_rl.config import RunConfig

logger = logging.getLogger(__name__)

ROLLOUT_SCHEMA = pa.schema(
    [
        ("step", pa.int64()),
        ("id", pa.string()),
        ("source", pa.string()),
        ("task", pa.string()),
        ("prompt_id", pa.int64()),
        ("completion", pa.string()),
        ("reference", pa.string()),
        ("reward", pa.float64()),
        ("rewards", pa.string()),
        ("parts", pa.string()),
        ("advantage", pa.float64()),
        ("length", pa.int64()),
        ("truncated", pa.bool_()),
    ]
)


class RunDirectory:
    """Writes the records of one run.

    Args:
        path: the run's ``output_dir``.
        is_main: whether this process writes; the others only know the paths.
    """

    def __init__(self, path: Path, *, is_main: bool = True):
        self.path = path
        self.is_main = is_main
        self.metrics_file = path / "metrics.jsonl"
        self.rollouts = path / "rollouts"
        self.evaluation = path / "evaluation"
        self.tensorboard = path / "tensorboard"
        self.final = path / "final"

    def start(self, config: RunConfig, *, num_processes: int, device: str) -> None:
        """Write the configuration, and add this launch to ``environment.json``."""
        if not self.is_main:
            return
        self.path.mkdir(parents=True, exist_ok=True)
        write_atomically(self.path / "config.yaml", config.to_yaml())
        file = self.path / "environment.json"
        launches = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else []
        launch = {"started": datetime.now(UTC).isoformat(timespec="seconds"), "num_processes": num_processes}
        launches.append(launch | {"device": device} | describe_environment())
        write_json(file, launches)

    def attach(self, trainer: GRPOTrainer) -> None:
        """Have the trainer report its metrics here, TensorBoard's included if ``report_to`` asks for it."""
        for callback in (ProgressCallback, PrinterCallback):  # they print all 60 metrics of every step
            trainer.remove_callback(callback)
        trainer.add_callback(_MetricsCallback(self))
        if "tensorboard" in trainer.args.report_to:
            trainer.remove_callback(TensorBoardCallback)  # it would write to output_dir/runs/<host and time>
            trainer.add_callback(_RunTensorBoardCallback(self))

    def write_rollouts(self, rollouts: Sequence[Rollout]) -> Path:
        """Write one generation; a file of the same step is replaced. Returns its path."""
        file = self.rollouts / f"step_{rollouts[0].step:06d}.parquet"
        if self.is_main:
            rows = [dataclasses.asdict(rollout) for rollout in rollouts]
            for row in rows:
                row["rewards"], row["parts"] = _json(row["rewards"]), _json(row["parts"])
            write_table(file, pa.Table.from_pylist(rows, schema=ROLLOUT_SCHEMA))
        return file

    def append_metrics(self, step: int, metrics: dict[str, Any]) -> None:
        """Add one line to ``metrics.jsonl``; values that JSON cannot hold (nan, inf) become null."""
        line = _json({"step": step} | metrics)
        with self.metrics_file.open("a", encoding="utf-8") as stream:
            stream.write(line + "\n")

    def drop_after(self, step: int) -> None:
        """Forget metrics and rollouts of later steps, which a run resumed at `step` is about to repeat."""
        for file in self.rollouts.glob("step_*.parquet"):
            if int(file.stem.removeprefix("step_")) > step:
                file.unlink()
        if self.metrics_file.is_file():
            kept = [line for line in read_metrics(self.path) if line["step"] <= step]
            write_atomically(self.metrics_file, "".join(_json(line) + "\n" for line in kept))


class _MetricsCallback(TrainerCallback):
    """Appends every training log line to ``metrics.jsonl``, and prints the gist of it."""

    def __init__(self, run: RunDirectory):
        self.run = run

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.run.is_main:
            self.run.drop_after(state.global_step)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        # The summary that transformers logs at the end averages over this launch only; it is no step.
        if self.run.is_main and "train_runtime" not in logs:
            self.run.append_metrics(state.global_step, logs)
            logger.info("step %d/%d  %s", state.global_step, state.max_steps, gist(logs))


def gist(metrics: Mapping[str, Any]) -> str:
    """The few metrics of a step that tell whether a run goes well, on one line.

    A step that uses a generation again has no rewards of its own.
    """
    tasks = [f"{task} {metrics[key]:.3f}" for task in TASKS if metrics.get(key := f"rewards/{task}/mean") is not None]
    parts = [f"reward {metrics['reward']:.3f} ({', '.join(tasks)})"] if metrics.get("reward") is not None else []
    parts += [
        f"{label} {metrics[name]:{form}}"
        for label, name, form in (
            ("length", "completions/mean_length", ".0f"),
            ("truncated", "completions/clipped_ratio", ".0%"),
            ("kl", "kl", ".1e"),
            ("lr", "learning_rate", ".1e"),
            ("seconds", "step_time", ".1f"),
        )
        if metrics.get(name) is not None
    ]
    return "  ".join(parts)


class _RunTensorBoardCallback(TensorBoardCallback):
    """TensorBoard events in ``tensorboard/``; those of steps that a resumed run repeats are hidden."""

    def __init__(self, run: RunDirectory):
        super().__init__()
        self.run = run

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.run.is_main:
            self.tb_writer = SummaryWriter(str(self.run.tensorboard), purge_step=state.global_step + 1)
        super().on_train_begin(args, state, control, **kwargs)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        scalars = {name: value for name, value in logs.items() if value is not None}
        super().on_log(args, state, control, logs=scalars, **kwargs)


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The lines of a run's ``metrics.jsonl``; a last line that a kill cut short is left out."""
    text = (path / "metrics.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def read_rollouts(path: Path) -> pa.Table:
    """All rollouts of a run, in the order of their steps; columns as in ``ROLLOUT_SCHEMA``.

    Raises:
        FileNotFoundError: the run has no rollouts.
    """
    files = sorted((path / "rollouts").glob("step_*.parquet"))
    if not files:
        raise FileNotFoundError(f"{path} has no rollouts/step_*.parquet")
    return pa.concat_tables([pq.read_table(file) for file in files])


@dataclasses.dataclass(frozen=True, slots=True)
class Mismatch:
    """A recorded OCR reward that differs from the recomputed one."""

    step: int
    id: str
    recorded: float | None
    recomputed: float


def rescore(path: Path) -> tuple[int, list[Mismatch]]:
    """Recompute every recorded OCR reward of a run, in the float32 precision of the trainer.

    Returns:
        Number of rollouts compared, and those that differ.

    Raises:
        ConfigError: the run did not use the OCR reward.
        FileNotFoundError: the run has no rollouts or no configuration.
    """
    settings = read_yaml(path / "config.yaml")
    config = RewardConfig(**{f.name: settings[f.name] for f in dataclasses.fields(RewardConfig) if f.name in settings})
    rows = read_rollouts(path).to_pylist()
    return len(rows), list(_mismatches(rows, config))


def _mismatches(rows: Sequence[dict[str, Any]], config: RewardConfig) -> Iterator[Mismatch]:
    for row in rows:
        rewards = json.loads(row["rewards"])
        if "ocr" not in rewards:
            raise ConfigError("the run did not use the built-in reward `ocr`, so there is nothing to recompute")
        recomputed = float(np.float32(score(row["task"], row["completion"], row["reference"], config).value))
        if rewards["ocr"] != recomputed:
            yield Mismatch(row["step"], row["id"], rewards["ocr"], recomputed)


def write_atomically(path: Path, text: str) -> None:
    """Write a text file so that its name never holds half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)


def write_json(path: Path, value: Any) -> None:
    """Write strict, indented JSON atomically; nan and inf become null."""
    write_atomically(path, json.dumps(_finite(value), indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def write_table(path: Path, table: pa.Table) -> None:
    """Write a Parquet file atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.tmp")
    pq.write_table(table, temporary, compression="zstd")
    temporary.replace(path)


def _json(value: Any) -> str:
    return json.dumps(_finite(value), ensure_ascii=False, allow_nan=False)


def _finite(value: Any) -> Any:
    """The value with every float that JSON cannot hold replaced by None."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, list | tuple) else value


def main(argv: Sequence[str] | None = None) -> int:
    """Command line: ``rescore RUN`` prints whether the recorded rewards can be reproduced."""
    parser = argparse.ArgumentParser(prog="python -m gravity_rl.recorder", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("rescore", help="recompute every recorded OCR reward and compare")
    command.add_argument("run", type=Path, help="run directory")
    arguments = parser.parse_args(argv)
    try:
        total, mismatches = rescore(arguments.run)
    except (ConfigError, FileNotFoundError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    for mismatch in mismatches[:20]:
        print(f"step {mismatch.step}, {mismatch.id}: recorded {mismatch.recorded}, now {mismatch.recomputed}")
    print(f"{total - len(mismatches)} of {total} recorded rewards are reproduced exactly")
    return 1 if mismatches else 0


if __name__ == "__main__":
    sys.exit(main())
