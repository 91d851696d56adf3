"""Fixtures for everything that needs a model: a very small untrained GLM-OCR, crops, configurations."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from PIL import Image, ImageDraw

from gravity_rl.config import RunConfig, parse_config
from gravity_rl.tiny.build import TinyShape, build_tiny

torch.set_num_threads(1)

SMALL = TinyShape(
    hidden_size=32,
    intermediate_size=64,
    num_layers=2,
    num_heads=2,
    num_kv_heads=1,
    vision_hidden_size=32,
    vision_intermediate_size=64,
    vision_depth=1,
    vision_heads=2,
)
REFERENCES = {
    "text": "line {}",
    "table": "<table><tr><td>{}</td><td>b</td></tr></table>",
    "formula": "x^{{{}}}+1",
}


@dataclass(frozen=True)
class Crops:
    """JSONL files of small crops, four of each task for training and two of each held out."""

    train: Path
    held_out: Path


@pytest.fixture(scope="session")
def tiny_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of an untrained GLM-OCR with 32 hidden units."""
    folder = tmp_path_factory.mktemp("checkpoint")
    model, processor = build_tiny(SMALL)
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def crops(tmp_path_factory: pytest.TempPathFactory) -> Crops:
    folder = tmp_path_factory.mktemp("crops")
    return Crops(write_crops(folder, "train", 12), write_crops(folder, "held", 6))


def write_crops(folder: Path, name: str, count: int) -> Path:
    """A JSONL file of `count` crops with ids ``<name>0``, ``<name>1``, ... that take turns in task."""
    rows = []
    for index in range(count):
        task = ("text", "table", "formula")[index % 3]
        image = Image.new("RGB", (32 + 16 * (index % 3), 32), "white")
        ImageDraw.Draw(image).text((2, 8), str(index), fill="black")
        image.save(folder / f"{name}{index}.png")
        reference = REFERENCES[task].format(f"{name[0]}{index}")
        rows.append({"image": f"{name}{index}.png", "task": task, "reference": reference, "id": f"{name}{index}"})
    file = folder / f"{name}.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return file


@pytest.fixture(scope="session")
def glyph_crops(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A JSONL file of twelve crops that say which glyph is in each square of 16 x 16 pixels."""
    folder = tmp_path_factory.mktemp("glyphs")
    file = write_crops(folder, "easy", 12)
    rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    for index, row in enumerate(rows):
        row["glyphs"] = str(index)[0].ljust(2 * (2 + index % 3))
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return file


@pytest.fixture
def make_argv(tmp_path: Path, tiny_checkpoint: Path, crops: Crops) -> Callable[..., list[str]]:
    """Command-line arguments of a run of two steps of 2 prompts × 4 completions on the CPU."""

    def make(**overrides: object) -> list[str]:
        settings: dict[str, object] = {
            "model_name_or_path": tiny_checkpoint,
            "train_data": crops.train,
            "output_dir": tmp_path / "run",
            "use_cpu": True,
            "bf16": False,
            "optim": "adamw_torch",
            "learning_rate": 1e-3,
            "max_steps": 2,
            "per_device_train_batch_size": 4,
            "gradient_accumulation_steps": 2,
            "num_generations": 4,
            "max_completion_length": 24,
            "report_to": "none",
            **overrides,
        }
        values = {name: value if isinstance(value, list) else [value] for name, value in settings.items()}
        return [text for name, items in values.items() for text in (f"--{name}", *map(str, items))]

    return make


@pytest.fixture
def make_config(make_argv: Callable[..., list[str]]) -> Callable[..., RunConfig]:
    """The parsed configuration of such a run."""
    return lambda **overrides: parse_config(make_argv(**overrides))
