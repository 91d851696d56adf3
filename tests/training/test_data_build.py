"""From configuration to training dataset: columns, mixing, dropping, laziness, and what TRL does with it."""

import json
import logging
import pickle
import runpy
import shutil
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import ClassVar

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch.distributed
from PIL import Image
from tokenizers import AddedToken
from torch.utils.data import DataLoader
from trl import TrlParser
from trl.data_utils import prepare_multimodal_messages
from trl.trainer.utils import RepeatSampler

from gravity_rl import resources
from gravity_rl.data import (
    COLUMNS,
    DataConfig,
    DataError,
    build_ocr_dataset,
    load_ocr_dataset,
    load_prompts,
    read_rows,
    validate,
)
from gravity_rl.resources import resource_dir

TABLE = "<table><tr><td>a</td></tr></table>"
REFERENCES = {"text": "hello", "table": TABLE, "formula": "x^{2}"}


class CharacterTokenizer:
    """The part of a tokenizer that the data layer uses, one token a character."""

    added_tokens_decoder: ClassVar = {
        7: AddedToken("<|image|>", special=True),
        8: AddedToken("Re", special=False),
    }

    def __call__(self, texts, add_special_tokens):
        assert add_special_tokens is False
        return {"input_ids": [list(map(ord, text)) for text in texts]}


@pytest.fixture(autouse=True)
def in_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write_jsonl(name, tasks, **fields):
    """One row a task, each with an image of its own whose grey value is the row number."""
    with Path(name).open("w") as file:
        for number, task in enumerate(tasks, start=1):
            image = f"{name}.{number}.png"
            Image.new("L", (20, 10), number).save(image)
            row = {"image": image, "task": task, "reference": REFERENCES[task], "id": f"{name}-{number}"}
            file.write(json.dumps({**row, **fields}) + "\n")
    return name


def load(*names, split="train", seed=0, **settings):
    sources = {"train_data": list(names)} if split == "train" else {"eval_data": list(names)}
    config = DataConfig(**sources, data_cache_dir="cache", **settings)
    return load_ocr_dataset(config, split=split, seed=seed)


def problems_of(*names, **settings):
    with pytest.raises(DataError) as caught:
        load(*names, **settings)
    return [(p.source, p.row, p.field, p.message) for p in caught.value.problems]


# The dataset


def test_columns_and_values():
    write_jsonl("a.jsonl", ["text", "table", "formula"], source="book", bbox=[0, 0, 1, 1])
    dataset = load("a.jsonl", split="eval")
    assert tuple(dataset.column_names) == COLUMNS
    assert isinstance(dataset.features["image"], datasets.Image)
    row = dataset[1]
    assert row["prompt"] == [{"role": "user", "content": "Table Recognition:"}]
    assert (row["task"], row["reference"], row["id"], row["source"]) == ("table", TABLE, "a.jsonl-2", "book")
    assert (row["image"].mode, row["image"].size, row["image"].getpixel((0, 0))) == (
        "RGB",
        (20, 10),
        (2, 2, 2),
    )
    assert dataset["task"][:] == ["text", "table", "formula"]


def test_all_kinds_of_sources_together():
    write_jsonl("a.jsonl", ["text"])
    png = Path("a.jsonl.1.png").read_bytes()
    rows = {"image": [png, png], "task": ["table"] * 2, "reference": [TABLE] * 2}
    pq.write_table(pa.table(rows), "b.parquet")
    datasets.Dataset.from_dict({**rows, "image": ["../a.jsonl.1.png"] * 2}).save_to_disk("saved")
    dataset = load("a.jsonl", "b.parquet", "saved", split="eval")
    assert dataset["id"][:] == ["a.jsonl-1", "b.parquet:1", "b.parquet:2", "saved:1", "saved:2"]
    assert dataset["source"][:] == ["a.jsonl", "b.parquet", "b.parquet", "saved", "saved"]
    assert [row["image"].getpixel((0, 0)) for row in dataset] == [(1, 1, 1)] * 5


def test_row_prompt_and_own_prompt_files(in_empty_folder):
    (in_empty_folder / "prompts").mkdir()
    for task in REFERENCES:
        (in_empty_folder / "prompts" / f"{task}.txt").write_text(f"Read the {task}.\n\n")
    write_jsonl("a.jsonl", ["table"])
    write_jsonl("b.jsonl", ["table"], prompt="Only here:")
    dataset = load("a.jsonl", "b.jsonl", split="eval", prompts_dir="prompts")
    assert [prompt[0]["content"] for prompt in dataset["prompt"]] == ["Read the table.", "Only here:"]


def test_glyphs_are_a_column_if_any_row_has_them(caplog):
    caplog.set_level(logging.INFO)
    write_jsonl("a.jsonl", ["text"], glyphs=None)
    write_jsonl("b.jsonl", ["text"], glyphs=" a ")
    assert tuple(load("a.jsonl", split="eval").column_names) == COLUMNS
    dataset = load("a.jsonl", "b.jsonl", split="eval")
    assert tuple(dataset.column_names) == (*COLUMNS, "glyphs")
    assert [row["glyphs"] for row in dataset] == [None, " a "]
    assert "glyphs" not in caplog.text  # it would be listed among the ignored columns
    dataset.with_format(None).remove_columns("prompt").save_to_disk("saved")
    dataset.with_format(None).remove_columns("prompt").to_parquet("c.parquet")
    for name in ("saved", "c.parquet"):
        assert load(name, split="eval")["glyphs"][:] == [None, " a "]


def test_glyphs_of_a_wrong_type_are_reported():
    assert problems_of(write_jsonl("a.jsonl", ["text"], glyphs=3)) == [("a.jsonl", 1, "glyphs", "not a string")]


def test_images_stay_on_disk_until_a_row_is_read(in_empty_folder):
    dataset = load(write_jsonl("a.jsonl", ["text"] * 3), split="eval")
    stored = dataset.with_format(None).cast_column("image", datasets.Image(decode=False))
    assert [image["bytes"] for image in stored["image"]] == [None] * 3
    (in_empty_folder / "a.jsonl.2.png").unlink()
    assert dataset[0]["image"].size == (20, 10)
    with pytest.raises(FileNotFoundError):
        dataset[1]


def test_image_modes_come_out_on_white():
    transparent = Image.new("RGBA", (4, 4), (0, 0, 0, 0))
    scan = Image.fromarray(np.full((4, 4), 65535, dtype=np.uint16))
    for name, image in {"alpha.png": transparent, "scan.png": scan}.items():
        image.save(name)
    rows = [{"image": name, "task": "text", "reference": ""} for name in ("alpha.png", "scan.png")]
    source = read_rows("memory", enumerate(rows, start=1), folder=".")
    dataset = build_ocr_dataset([source], DataConfig(), split="eval", seed=0)
    assert [row["image"].getpixel((1, 1)) for row in dataset] == [(255, 255, 255)] * 2


def test_sharding_pickling_and_saving_keep_the_rows():
    dataset = load(write_jsonl("a.jsonl", ["text", "table"] * 5), seed=3)
    expected = [(row["id"], row["image"].getpixel((0, 0))) for row in dataset]
    copy = pickle.loads(pickle.dumps(dataset))
    assert [(row["id"], row["image"].getpixel((0, 0))) for row in copy] == expected
    shards = [dataset.shard(3, index, contiguous=True) for index in range(3)]
    assert [row["id"] for shard in shards for row in shard] == [identifier for identifier, _ in expected]
    assert all(row["image"].mode == "RGB" for shard in shards for row in shard)
    dataset.with_format(None).remove_columns("prompt").save_to_disk("out")
    again = load("out", split="eval")
    assert [(row["id"], row["image"].getpixel((0, 0))) for row in again] == expected


def test_trl_batches_from_dataloader_workers():
    """The path of `GRPOTrainer`: repeated indices, identity collation, then images put into the messages."""
    dataset = load(write_jsonl("a.jsonl", ["text", "table", "formula", "text"]), seed=1)
    sampler = RepeatSampler(dataset, mini_repeat_count=3, batch_size=2, repeat_count=1, shuffle=True, seed=5)
    batches = list(DataLoader(dataset, batch_size=6, sampler=sampler, collate_fn=list, num_workers=2))
    assert [len(batch) for batch in batches] == [6, 6]
    rows = [row for batch in batches for row in batch]
    assert Counter(row["id"] for row in rows) == Counter(dict.fromkeys(dataset["id"], 3))
    for row in rows:
        (message,) = prepare_multimodal_messages(row["prompt"], images=[row["image"]])
        image, text = message["content"]
        assert image["image"].mode == "RGB"
        assert f"a.jsonl-{image['image'].getpixel((0, 0))[0]}" == row["id"]
        assert text["text"] == load_prompts()[row["task"]]


# Order and mixture


def test_weights_decide_the_shares_and_seeds_the_order():
    name = write_jsonl("a.jsonl", ["text"] * 20 + ["table"] * 5 + ["formula"] * 5)
    settings = {"table_weight": 0.92, "text_weight": 0.06, "formula_weight": 0.02, "mixture_size": 100}
    dataset = load(name, seed=1, **settings)
    assert Counter(dataset["task"]) == {"table": 92, "text": 6, "formula": 2}
    assert load(name, seed=1, **settings)["id"][:] == dataset["id"][:]
    assert load(name, seed=2, **settings)["id"][:] != dataset["id"][:]


def test_without_weights_every_row_comes_once():
    dataset = load(write_jsonl("a.jsonl", ["text"] * 7 + ["table"] * 3), seed=1)
    assert Counter(dataset["id"]) == Counter(f"a.jsonl-{number}" for number in range(1, 11))


def test_weight_without_rows_is_an_error():
    name = write_jsonl("a.jsonl", ["table"] * 3)
    assert problems_of(name, table_weight=0.9, text_weight=0.1, formula_weight=0.0) == [
        ("train_data", None, "text_weight", "positive, but there are no usable rows of this task")
    ]


def test_rows_of_weight_zero_are_left_out_with_a_count(caplog):
    name = write_jsonl("a.jsonl", ["table"] * 3 + ["text"] * 4)
    dataset = load(name, table_weight=1.0, text_weight=0.0, formula_weight=0.0)
    assert dataset["task"][:] == ["table"] * 3
    assert "text_weight is 0: leaving out 4 rows" in caplog.text


def test_eval_rows_keep_their_order_and_do_not_depend_on_the_seed():
    name = write_jsonl("a.jsonl", ["text"] * 20 + ["table"] * 20)
    assert load(name, split="eval")["id"][:] == [f"a.jsonl-{number}" for number in range(1, 41)]
    some = load(name, split="eval", max_eval_rows=10)
    assert Counter(some["task"]) == {"text": 5, "table": 5}
    assert some["id"][:] == load(name, split="eval", max_eval_rows=10, seed=9)["id"][:]
    numbers = [int(identifier.split("-")[1]) for identifier in some["id"]]
    assert numbers == sorted(numbers)


# Problems


def test_everything_wrong_is_reported_at_once():
    write_jsonl("good.jsonl", ["text"])
    with Path("bad.jsonl").open("w") as file:
        file.write('{"image": "none.png", "task": "text", "reference": "x"}\n')
        file.write("{broken\n")
        file.write('{"image": "good.jsonl.1.png", "task": "table", "reference": ""}\n')
    pq.write_table(pa.table({"image": ["x"]}), "columns.parquet")
    assert problems_of("missing.jsonl", "good.jsonl", "columns.parquet", "bad.jsonl") == [
        ("missing.jsonl", None, "source", "file or folder not found"),
        ("columns.parquet", None, "source", "lacks the column task and reference"),
        ("bad.jsonl", 1, "image", "image file not found"),
        ("bad.jsonl", 2, "line", "not valid JSON"),
        ("bad.jsonl", 3, "reference", "empty for a table"),
    ]


def test_bad_rows_can_be_dropped_but_bad_sources_cannot(caplog):
    write_jsonl("a.jsonl", ["text"] * 4)
    Image.new("L", (2, 1000)).save("a.jsonl.3.png")
    with Path("a.jsonl").open("a") as file:
        file.write("{broken\n")
    dataset = load("a.jsonl", split="eval", on_bad_rows="drop")
    assert dataset["id"][:] == ["a.jsonl-1", "a.jsonl-2", "a.jsonl-4"]
    assert "dropping 2 rows" in caplog.text
    assert "a.jsonl:3: image: aspect ratio over 200" in caplog.text
    assert "a.jsonl:5: line: not valid JSON" in caplog.text
    kept = [problem[:2] for problem in problems_of("a.jsonl", "missing.jsonl", on_bad_rows="drop")]
    assert kept == [("missing.jsonl", None), ("a.jsonl", 3), ("a.jsonl", 5)]


def test_nothing_left_after_dropping():
    with Path("a.jsonl").open("w") as file:
        file.write('{"image": "none.png", "task": "text", "reference": "x"}\n{broken\n')
    assert problems_of("a.jsonl", on_bad_rows="drop") == [("train_data", None, "source", "no usable rows left")]


def test_a_file_of_broken_lines_only_beside_a_good_one():
    with Path("broken.jsonl").open("w") as file:
        file.write("{broken\n")
    write_jsonl("a.jsonl", ["text"])
    assert len(load("broken.jsonl", "a.jsonl", on_bad_rows="drop")) == 1


def test_limits_scores_and_prompt_files_are_checked(in_empty_folder):
    write_jsonl("a.jsonl", ["text", "table"])
    (in_empty_folder / "prompts").mkdir()
    for task in REFERENCES:
        (in_empty_folder / "prompts" / f"{task}.txt").write_text("<|image|>Read:")
    config = DataConfig(train_data=["a.jsonl"], prompts_dir="prompts")
    with pytest.raises(DataError) as caught:
        load_ocr_dataset(config, split="train", seed=0, tokenizer=CharacterTokenizer(), max_completion_length=6)
    assert [(p.source, p.row, p.field, p.message) for p in caught.value.problems] == [
        *((f"prompts/{task}.txt", None, "prompt", "contains a special token") for task in REFERENCES),
        ("a.jsonl", 2, "reference", "longer than the completion limit"),
    ]


def test_scores_are_checked_on_request():
    write_jsonl("a.jsonl", ["table"], reference="no table at all")
    config = DataConfig(train_data=["a.jsonl"])
    assert len(load_ocr_dataset(config, split="train", seed=0)) == 1
    with pytest.raises(DataError, match="refused by the reward"):
        load_ocr_dataset(config, split="train", seed=0, check_scores=True)


def test_a_split_without_sources():
    with pytest.raises(ValueError, match="eval_data names no source"):
        load_ocr_dataset(DataConfig(), split="eval", seed=0)


def test_summary_fits_on_a_screen(caplog):
    caplog.set_level(logging.INFO)
    names = [write_jsonl(f"{index}.jsonl", ["text", "table"], bbox=1) for index in range(20)]
    config = DataConfig(train_data=names, table_weight=3, text_weight=1, formula_weight=0)
    load_ocr_dataset(config, split="train", seed=0, tokenizer=CharacterTokenizer(), max_completion_length=99)
    (summary,) = (record.getMessage() for record in caplog.records if record.levelno == logging.INFO)
    lines = summary.splitlines()
    assert len(lines) < 25
    assert lines[0] == "train data: 40 rows in all, from 40 usable of 40 readable rows"
    assert lines[2].split() == ["0.jsonl", "1", "1", "0", "bbox"]
    assert "... and 8 more sources" in lines[14]
    assert ["table", "30", "75.0%", "1.50x"] in [line.split() for line in lines]
    assert ["text", "tokens", "5", "5", "5", "5"] in [line.split() for line in lines]


# Several processes


class ThreadGroup:
    """A process group whose ranks are threads; objects travel pickled, as they do between processes."""

    def __init__(self, world):
        self.world, self.barrier, self.sent = world, threading.Barrier(world), [b""] * world
        self.local = threading.local()

    def gather(self, received, item):
        self.sent[self.local.rank] = pickle.dumps(item)
        self.barrier.wait(timeout=60)
        received[:] = [pickle.loads(data) for data in self.sent]
        self.barrier.wait(timeout=60)

    def install(self, monkeypatch):
        functions = {
            "is_initialized": lambda: True,
            "get_rank": lambda: self.local.rank,
            "get_world_size": lambda: self.world,
            "all_gather_object": self.gather,
        }
        for name, function in functions.items():
            monkeypatch.setattr(torch.distributed, name, function)

    def run(self, function):
        def on_rank(rank):
            self.local.rank = rank
            return function()

        with ThreadPoolExecutor(self.world) as pool:
            return list(pool.map(on_rank, range(self.world)))


@pytest.mark.parametrize("world", [2, 3])
def test_ranks_share_the_checks_and_agree_on_the_rows(in_empty_folder, monkeypatch, world):
    write_jsonl("a.jsonl", ["text", "table"] * 6)
    for number in (2, 3, 8):
        (in_empty_folder / f"a.jsonl.{number}.png").write_bytes(b"broken")
    config = DataConfig(train_data=["a.jsonl"], on_bad_rows="drop")

    def identifiers():
        return load_ocr_dataset(config, split="train", seed=7, check_scores=True)["id"][:]

    alone = identifiers()
    assert len(alone) == 9
    decoded = []
    check = validate.image_problem
    monkeypatch.setattr(validate, "image_problem", lambda value: decoded.append(value["path"]) or check(value))
    group = ThreadGroup(world)
    group.install(monkeypatch)
    assert group.run(identifiers) == [alone] * world
    assert len(decoded) == len(set(decoded)) == 12


# Configuration, prompts, resources


def parse(*arguments):
    (config,) = TrlParser([DataConfig]).parse_args_and_config(list(arguments))
    return config


def test_config_from_yaml_and_command_line(in_empty_folder):
    (in_empty_folder / "c.yaml").write_text(
        "train_data: [a.jsonl, 'b/*.parquet']\ntable_weight: 1\ntext_weight: 0.5\nformula_weight: 0\n"
        "on_bad_rows: drop\nmax_pixels: 1000\n"
    )
    config = parse("--config", "c.yaml", "--max_pixels", "2000", "--eval_data", "x.jsonl", "y.jsonl")
    assert config.train_data == ["a.jsonl", "b/*.parquet"]
    assert config.eval_data == ["x.jsonl", "y.jsonl"]
    assert config.weights == {"text": 0.5, "table": 1, "formula": 0}
    assert (config.max_pixels, config.min_pixels, config.on_bad_rows) == (2000, None, "drop")
    assert parse().weights is None


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"table_weight": 0.9}, ValueError, "missing: text_weight, formula_weight"),
        (
            {"table_weight": 1, "text_weight": -1, "formula_weight": 0},
            ValueError,
            "text_weight must be a finite",
        ),
        (
            {"table_weight": float("nan"), "text_weight": 1, "formula_weight": 0},
            ValueError,
            "table_weight must be",
        ),
        ({"table_weight": 0, "text_weight": 0, "formula_weight": 0}, ValueError, "at least one"),
        ({"train_data": "a.jsonl"}, TypeError, "train_data must be a list"),
        ({"eval_data": [""]}, TypeError, "eval_data must be a list"),
        ({"max_pixels": 0}, ValueError, "max_pixels must be at least 1"),
        ({"max_pixels": 10, "min_pixels": 20}, ValueError, "min_pixels 20 is larger"),
        ({"image_check_workers": 0}, ValueError, "image_check_workers must be at least 1"),
        ({"on_bad_rows": "ignore"}, ValueError, "on_bad_rows must be one of"),
    ],
)
def test_config_that_makes_no_sense(settings, error, message):
    with pytest.raises(error, match=message):
        DataConfig(**settings)


def test_shipped_prompts():
    assert load_prompts() == {
        "text": "Text Recognition:",
        "table": "Table Recognition:",
        "formula": "Formula Recognition:",
    }


@pytest.mark.parametrize(
    ("content", "message"), [(None, "not a file"), (b"\n", "is empty"), (b"\xff\xfe", "not UTF-8")]
)
def test_prompt_file_that_cannot_be_used(in_empty_folder, content, message):
    for task in ("text", "formula"):
        (in_empty_folder / f"{task}.txt").write_text("Read:")
    if content is not None:
        (in_empty_folder / "table.txt").write_bytes(content)
    with pytest.raises(ValueError, match=rf"table.*{message}"):
        load_prompts(in_empty_folder)


def test_resource_folders_of_an_installed_package(in_empty_folder):
    package = in_empty_folder / "site-packages" / "gravity_rl"
    for folder in ("prompts", "configs"):
        (package / folder).mkdir(parents=True)
    shutil.copy(resources.__file__, package)
    installed = runpy.run_path(str(package / "resources.py"))["resource_dir"]
    assert installed("prompts") == package / "prompts"
    assert installed("configs") == package / "configs"
    (package / "configs").rmdir()
    with pytest.raises(FileNotFoundError, match="configs folder not found"):
        installed("configs")


def test_resource_folders_of_a_checkout():
    assert (resource_dir("prompts") / "table.txt").is_file()
    assert resource_dir("configs").is_dir()
    with pytest.raises(ValueError, match="no such resource"):
        resource_dir("weights")
