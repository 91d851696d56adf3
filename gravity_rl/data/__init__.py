"""Data layer: one dataset contract, its sources, validation before training, and the task mixture.

`load_ocr_dataset` is the entry point of training and evaluation; `docs/DATA.md` is the guide for users.
"""

from gravity_rl.data.build import COLUMNS, build_ocr_dataset, load_ocr_dataset
from gravity_rl.data.config import DataConfig
from gravity_rl.data.contract import TASKS, DataError, Problem
from gravity_rl.data.mixture import mixture_order
from gravity_rl.data.prompts import load_prompts
from gravity_rl.data.rows import Source, read_rows
from gravity_rl.data.sources import read_sources

__all__ = [
    "COLUMNS",
    "TASKS",
    "DataConfig",
    "DataError",
    "Problem",
    "Source",
    "build_ocr_dataset",
    "load_ocr_dataset",
    "load_prompts",
    "mixture_order",
    "read_rows",
    "read_sources",
]
