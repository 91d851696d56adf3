"""Scores the recorded rollouts of a run again, without a model: ``python -m gravity_rl.rescore RUN``.

A reward that the rollouts do not reproduce means that the reward has changed since the run, or that the files have.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gravity_rl.data.contract import TASKS
from gravity_rl.parsing import ConfigError, read_yaml
from gravity_rl.recorder import read_rollout_files
from rewards import RewardConfig, score


@dataclasses.dataclass(frozen=True, slots=True)
class Comparison:
    """A recorded OCR reward beside the recomputed one."""

    step: int
    id: str
    recorded: float
    recomputed: float


def rescore(path: Path) -> tuple[int, list[Comparison]]:
    """Recompute every recorded OCR reward of a run, in the float32 precision of the trainer.

    Rollouts that the reward's workers could not score in time have none, and are left out.

    Returns:
        Number of rollouts compared, and those that differ.

    Raises:
        ConfigError: the run did not use the OCR reward, or one of its files is damaged.
        FileNotFoundError: the run has no rollouts or no configuration.
    """
    settings = read_yaml(path / "config.yaml")
    constants = {f.name: settings[f.name] for f in dataclasses.fields(RewardConfig) if f.name in settings}
    try:
        config = RewardConfig(**constants)
    except (ValueError, TypeError) as error:
        raise ConfigError(f"{path / 'config.yaml'}: {error}") from error
    compared = [
        comparison
        for file, table in read_rollout_files(path)
        for comparison in _compare(str(file.relative_to(path)), table.to_pylist(), config)
    ]
    return len(compared), [reward for reward in compared if reward.recorded != reward.recomputed]


def _compare(file: str, rows: Sequence[dict[str, Any]], config: RewardConfig) -> Iterator[Comparison]:
    for row in rows:
        where = f"{file}, row {row['id']!r}"
        for column in ("completion", "reference", "rewards"):
            if row[column] is None:
                raise ConfigError(f"{where}: {column} is null")
        if row["task"] not in TASKS:
            raise ConfigError(f"{where}: task: unknown task {row['task']!r}")
        try:
            rewards = json.loads(row["rewards"])
        except ValueError as error:
            raise ConfigError(f"{where}: rewards is not JSON: {error}") from error
        if not isinstance(rewards, dict) or "ocr" not in rewards:
            raise ConfigError("the run did not use the built-in reward `ocr`, so there is nothing to recompute")
        if rewards["ocr"] is None:
            continue
        recomputed = float(np.float32(score(row["task"], row["completion"], row["reference"], config).value))
        yield Comparison(row["step"], row["id"], rewards["ocr"], recomputed)


def main(argv: Sequence[str] | None = None) -> int:
    """Command line: prints whether the recorded rewards can be reproduced."""
    parser = argparse.ArgumentParser(prog="python -m gravity_rl.rescore", description=__doc__)
    parser.add_argument("run", type=Path, help="run directory")
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
