"""The run directory: what a run writes down besides its checkpoints, and the tools that read it back.

Rollouts are data: every completion with its reward and the components of it, so that a run can be inspected,
mined and re-scored without a model. Only the main process writes; every file appears under its name complete
or not at all. ``docs/RUN_DIRECTORY.md`` describes the files.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import math
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.parquet as pq
from torch.utils.tensorboard import SummaryWriter
from transformers import PrinterCallback, ProgressCallback, Trainer, TrainerCallback
from transformers.integrations import TensorBoardCallback

from gravity_rl.data.contract import TASKS
from gravity_rl.environment import describe_environment
from gravity_rl.metrics import Rollout
from gravity_rl.parsing import ConfigError

logger = logging.getLogger(__name__)

_ROLLOUT_FILE = re.compile(r"step_(\d+)(?:_(\d+))?\.parquet")
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


class Configuration(Protocol):
    """What ``config.yaml`` is written from."""

    def to_yaml(self) -> str: ...


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
        self.slow_samples = path / "slow_samples.jsonl"

    def start(self, config: Configuration, *, num_processes: int, device: str) -> None:
        """Write the configuration, and add this launch to ``environment.json``."""
        if not self.is_main:
            return
        self.path.mkdir(parents=True, exist_ok=True)
        write_atomically(self.path / "config.yaml", config.to_yaml())
        file = self.path / "environment.json"
        launches = read_json(file, list) if file.is_file() else []
        launch = {"started": datetime.now(UTC).isoformat(timespec="seconds"), "num_processes": num_processes}
        launches.append(launch | {"device": device} | describe_environment())
        write_json(file, launches)

    def attach(self, trainer: Trainer, printer: TrainerCallback | None = None) -> None:
        """Have the trainer report its metrics here, TensorBoard's included if ``report_to`` asks for it.

        Args:
            trainer: whose log lines go to ``metrics.jsonl``, all but the summary at the end of a launch.
            printer: what shows the run's progress in the terminal; by default, the :func:`gist` of every
                log line.
        """
        for callback in (ProgressCallback, PrinterCallback):  # they print all metrics of every step
            trainer.remove_callback(callback)
        trainer.add_callback(_MetricsCallback(self))
        trainer.add_callback(printer or _GistCallback())
        if "tensorboard" in trainer.args.report_to:
            trainer.remove_callback(TensorBoardCallback)  # it would write to output_dir/runs/<host and time>
            trainer.add_callback(_RunTensorBoardCallback(self))

    def write_rollouts(self, rollouts: Sequence[Rollout], number: int = 0) -> Path:
        """Write one generation; a file of the same one is replaced.

        Args:
            rollouts: its completions.
            number: of the generation among those that its step uses first, from 0.

        Returns:
            The path of the file.
        """
        suffix = f"_{number}" if number else ""
        file = self.rollouts / f"step_{rollouts[0].step:06d}{suffix}.parquet"
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
        for (recorded, _), file in _rollout_files(self.path):
            if recorded > step:
                file.unlink()
        if self.metrics_file.is_file():
            kept = [line for line in read_metrics(self.path) if line["step"] <= step]
            write_atomically(self.metrics_file, "".join(_json(line) + "\n" for line in kept))


class _MetricsCallback(TrainerCallback):
    """Appends every log line to ``metrics.jsonl``."""

    def __init__(self, run: RunDirectory):
        self.run = run

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.run.is_main:
            self.run.drop_after(state.global_step)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        # The summary that transformers logs at the end averages over this launch only; it is no step.
        if self.run.is_main and "train_runtime" not in logs:
            self.run.append_metrics(state.global_step, logs)


class _GistCallback(TrainerCallback):
    """Prints the gist of every log line."""

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        if state.is_world_process_zero and "train_runtime" not in logs:
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
    """The lines of a run's ``metrics.jsonl``; a last line that a kill cut short is left out.

    Raises:
        ConfigError: another line is broken.
        FileNotFoundError: there is no such file.
    """
    file = path / "metrics.jsonl"
    lines = []
    for number, text in enumerate(file.read_bytes().split(b"\n")[:-1], start=1):
        try:
            line = json.loads(text)
        except ValueError as error:
            raise ConfigError(f"{file}:{number}: not JSON: {error}") from error
        if not isinstance(line, dict) or type(line.get("step")) is not int:
            raise ConfigError(f"{file}:{number}: expected a JSON object with a whole number `step`")
        lines.append(line)
    return lines


def _rollout_files(path: Path) -> list[tuple[tuple[int, int], Path]]:
    """(Step, number of the generation in it) and path of every rollout file of a run, in this order; other files are
    ignored."""
    matches = ((_ROLLOUT_FILE.fullmatch(file.name), file) for file in (path / "rollouts").glob("*.parquet"))
    return sorted(((int(match.group(1)), int(match.group(2) or 0)), file) for match, file in matches if match)


def read_rollouts(path: Path) -> pa.Table:
    """All rollouts of a run, in the order of their generations; columns as in ``ROLLOUT_SCHEMA``.

    Raises:
        FileNotFoundError: the run has no rollouts.
        ConfigError: a file is damaged, or lacks a column.
    """
    return pa.concat_tables([table for _, table in read_rollout_files(path)])


def read_rollout_files(path: Path) -> list[tuple[Path, pa.Table]]:
    """The same by file.

    Raises:
        FileNotFoundError, ConfigError: as above.
    """
    files = _rollout_files(path)
    if not files:
        raise FileNotFoundError(f"{path} has no rollouts/step_*.parquet")
    return [(file, _read_rollout_file(file)) for _, file in files]


def _read_rollout_file(file: Path) -> pa.Table:
    try:
        table = pq.read_table(file)
    except (pa.ArrowException, OSError) as error:
        raise ConfigError(f"{file} cannot be read: {_first_line(error)}") from error
    for column in ROLLOUT_SCHEMA.names:
        if column not in table.column_names:
            raise ConfigError(f"{file}: no column {column!r}")
    try:
        return table.select(ROLLOUT_SCHEMA.names).cast(ROLLOUT_SCHEMA)
    except pa.ArrowException as error:
        raise ConfigError(f"{file}: a column has the wrong type: {_first_line(error)}") from error


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def write_atomically(path: Path, text: str) -> None:
    """Write a text file so that its name never holds half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)


def read_json(path: Path, kind: type) -> Any:
    """The value in a JSON file, which must be of the type `kind`.

    Raises:
        ConfigError: it is not, or the file cannot be read.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    if not isinstance(value, kind):
        raise ConfigError(f"{path}: expected a JSON {kind.__name__}; move the file away to have it written anew")
    return value


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
