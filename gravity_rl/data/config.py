"""Settings of the data layer, read by `TrlParser` from YAML with command-line overrides."""

import math
from dataclasses import dataclass, field
from typing import Literal, get_args

from gravity_rl.data.contract import TASKS

OnBadRows = Literal["error", "drop"]


@dataclass
class DataConfig:
    """What to train and evaluate on. `docs/DATA.md` describes the sources and the row contract.

    Raises:
        TypeError: a source list is not a list of strings.
        ValueError: a value is out of range, or only some of the task weights are given.
    """

    train_data: list[str] = field(
        default_factory=list,
        metadata={
            "help": "Training sources: JSONL or Parquet files (glob patterns allowed), folders of Parquet "
            "files, folders saved by datasets, or hub names; `folder:split` and `name:split` choose a split."
        },
    )
    eval_data: list[str] = field(
        default_factory=list,
        metadata={"help": "Held-out sources, named like the training sources. Evaluated in their natural shares."},
    )
    table_weight: float | None = field(
        default=None,
        metadata={
            "help": "Share of tables in the training mixture, relative to the other two weights. Give all "
            "three weights or none; without weights the tasks keep the shares that they have in the sources."
        },
    )
    text_weight: float | None = field(
        default=None, metadata={"help": "Share of text crops in the training mixture; see table_weight."}
    )
    formula_weight: float | None = field(
        default=None, metadata={"help": "Share of formulas in the training mixture; see table_weight."}
    )
    mixture_size: int | None = field(
        default=None,
        metadata={"help": "Rows in the training mixture, i.e. in one epoch. Default: the number of usable rows."},
    )
    max_eval_rows: int | None = field(
        default=None,
        metadata={
            "help": "Evaluate on at most this many rows, drawn in the tasks' natural shares. The choice does "
            "not depend on the training seed. Default: all."
        },
    )
    prompts_dir: str | None = field(
        default=None,
        metadata={"help": "Folder with text.txt, table.txt and formula.txt. Default: the shipped prompts."},
    )
    max_pixels: int | None = field(
        default=None,
        metadata={
            "help": "Pixel budget of one image (height x width); the processor scales larger images down by "
            "its own rule. Default: the checkpoint's setting."
        },
    )
    min_pixels: int | None = field(
        default=None,
        metadata={
            "help": "Images with fewer pixels are scaled up by the processor. Default: the checkpoint's setting."
        },
    )
    on_bad_rows: OnBadRows = field(
        default="error",
        metadata={
            "help": "What to do about rows that break the contract: `error` lists them all and stops, `drop` "
            "lists them and goes on without them. Unusable sources always stop."
        },
    )
    image_check_workers: int = field(
        default=8, metadata={"help": "Threads of each process that decode the images before training starts."}
    )
    data_cache_dir: str | None = field(
        default=None,
        metadata={
            "help": "Where Parquet and hub data are unpacked to memory-mapped Arrow files. Default: the "
            "cache of the datasets library."
        },
    )

    def __post_init__(self) -> None:
        for name in ("train_data", "eval_data"):
            _check_sources(name, getattr(self, name))
        _check_weights({task: getattr(self, f"{task}_weight") for task in TASKS})
        for name in ("mixture_size", "max_eval_rows", "max_pixels", "min_pixels", "image_check_workers"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        if self.max_pixels is not None and self.min_pixels is not None and self.min_pixels > self.max_pixels:
            raise ValueError(f"min_pixels {self.min_pixels} is larger than max_pixels {self.max_pixels}")
        if self.on_bad_rows not in get_args(OnBadRows):
            raise ValueError(f"on_bad_rows must be one of {get_args(OnBadRows)}, got {self.on_bad_rows!r}")

    @property
    def weights(self) -> dict[str, float] | None:
        """Weight of each task, or None for natural proportions. Only the ratios matter."""
        if self.table_weight is None or self.text_weight is None or self.formula_weight is None:
            return None
        return {"text": self.text_weight, "table": self.table_weight, "formula": self.formula_weight}


def _check_sources(name: str, sources: object) -> None:
    if not isinstance(sources, list) or not all(isinstance(source, str) and source for source in sources):
        raise TypeError(f"{name} must be a list of source names, got {sources!r}; in YAML write [{sources}]")


def _check_weights(weights: dict[str, float | None]) -> None:
    given = {task: weight for task, weight in weights.items() if weight is not None}
    if not given:
        return
    missing = [f"{task}_weight" for task in weights if task not in given]
    if missing:
        raise ValueError(f"give all three task weights or none; missing: {', '.join(missing)}")
    for task, weight in given.items():
        if not math.isfinite(weight) or weight < 0:
            raise ValueError(f"{task}_weight must be a finite number that is not negative, got {weight}")
    if sum(given.values()) == 0:
        raise ValueError("at least one of the task weights must be positive")
