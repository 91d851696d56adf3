"""Readers: every kind of source, and what hostile or broken ones are turned into."""

import json
from pathlib import Path

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from gravity_rl.data import arrow
from gravity_rl.data.rows import read_rows
from gravity_rl.data.sources import read_sources

FEATURES = datasets.Features(
    {
        "image": datasets.Image(),
        "task": datasets.Value("string"),
        "reference": datasets.Value("string"),
    }
)
AS_TEXT = "image bytes cannot be given as text; use a path, Parquet, or a saved dataset"
ROW = {"image": "crop.png", "task": "text", "reference": "hello"}


@pytest.fixture(autouse=True)
def in_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Image.new("RGB", (8, 6), "white").save("crop.png")
    return tmp_path


def png():
    return Path("crop.png").read_bytes()


def write_lines(name, lines):
    Path(name).parent.mkdir(exist_ok=True)
    encoded = (line if isinstance(line, bytes) else json.dumps(line).encode() for line in lines)
    Path(name).write_bytes(b"\n".join(encoded))
    return name


def read_one(spec):
    sources, problems = read_sources([spec], cache_dir="cache")
    assert problems == []
    (source,) = sources
    return source


def source_problem(spec):
    """The message about a source that cannot be used at all."""
    sources, (problem,) = read_sources([spec], cache_dir="cache")
    assert sources == []
    assert (problem.row, problem.field) == (None, "source")
    return f"{problem.message} | {problem.detail}"


def row_problems(source):
    return [(p.row, p.field, p.message) for p in source.problems]


def paths(source):
    return [image["path"] for image in source.images["image"]]


# JSON Lines


def test_jsonl_resolves_images_against_the_folder_of_the_file(in_empty_folder):
    absolute = str(in_empty_folder / "crop.png")
    images = ["a.png", "sub/b.png", "../crop.png", absolute]
    source = read_one(write_lines("set/train.jsonl", [{**ROW, "image": image} for image in images]))
    folder = in_empty_folder / "set"
    assert paths(source) == [
        str(folder / "a.png"),
        str(folder / "sub/b.png"),
        f"{folder}/../crop.png",
        absolute,
    ]
    assert source.images["image"][0]["bytes"] is None
    assert source.problems == []


def test_jsonl_tolerates_bom_crlf_blank_lines_and_a_missing_final_newline():
    line = json.dumps(ROW).encode()
    write_lines("t.jsonl", [b"\xef\xbb\xbf" + line + b"\r", b"\r", b"", b"   ", line])
    source = read_one("t.jsonl")
    assert [record.row for record in source.records] == [1, 5]
    assert source.problems == []


def test_jsonl_reports_every_broken_line_with_its_number():
    lines = [
        ROW,
        b"{not json",
        b'{"reference": "\xff"}',
        [ROW],
        b'"text"',
        b"null",
        b"[" * 100_000,
        b'{"id": ' + b"9" * 10_000 + b"}",
        b"\0",
        {**ROW, "reference": None},
        b'{"image": "crop.png", "task": "text", "reference": NaN}',
        ROW,
    ]
    source = read_one(write_lines("t.jsonl", lines))
    assert row_problems(source) == [
        (2, "line", "not valid JSON"),
        (3, "line", "not valid UTF-8"),
        (4, "line", "not a JSON object"),
        (5, "line", "not a JSON object"),
        (6, "line", "not a JSON object"),
        (7, "line", "not valid JSON"),
        (8, "line", "not valid JSON"),
        (9, "line", "not valid JSON"),
        (10, "reference", "missing"),
        (11, "reference", "not a string"),
    ]
    assert [record.row for record in source.records] == [1, 10, 11, 12]
    assert len(source.images) == len(source.records)


def test_jsonl_in_utf16_is_reported_not_misread():
    write_lines("t.jsonl", [json.dumps(ROW).encode("utf-16")])
    assert row_problems(read_one("t.jsonl"))[0] == (1, "line", "not valid UTF-8")


def test_jsonl_with_an_extremely_long_line():
    source = read_one(write_lines("t.jsonl", [{**ROW, "reference": "x" * 20_000_000}, ROW]))
    assert len(source.records[0].reference) == 20_000_000
    assert source.problems == []


@pytest.mark.parametrize(
    ("image", "message"),
    [
        (None, "missing"),
        ("", "not a usable path"),
        ("a\0b", "not a usable path"),
        ("a\ud800b", "not a usable path"),
        (3, "not a path, bytes or image"),
        (["crop.png"], "not a path, bytes or image"),
        ({}, "missing"),
        ("data:image/png;base64,iVBORw0KGgo=", AS_TEXT),
        ({"bytes": "iVBORw0KGgo="}, AS_TEXT),
    ],
)
def test_jsonl_image_of_a_wrong_kind(image, message):
    source = read_one(write_lines("t.jsonl", [{**ROW, "image": image}]))
    assert row_problems(source) == [(1, "image", message)]


def test_jsonl_image_may_be_an_object_with_a_path(in_empty_folder):
    source = read_one(write_lines("t.jsonl", [{**ROW, "image": {"path": "crop.png", "bytes": None}}]))
    assert paths(source) == [str(in_empty_folder / "crop.png")]


def test_unknown_columns_are_named():
    source = read_one(write_lines("t.jsonl", [{**ROW, "promt": "Read:", "bbox": [0, 0, 1, 1]}]))
    assert source.ignored == {"promt", "bbox"}


# PubTabNet


def pubtabnet(filename="t.png", structure=None, cells=None, **extra):
    structure = structure or ["<tr>", "<td>", "</td>", "<td", ' colspan="2"', ">", "</td>", "</tr>"]
    cells = cells or [{"tokens": ["<b>", "p", "</b>", " ", "<", "&"], "bbox": [0, 0, 9, 9]}, {"tokens": []}]
    row = {"filename": filename, "split": "train", "imgid": 0}
    return {**row, "html": {"structure": {"tokens": structure}, "cells": cells}, **extra}


def test_pubtabnet_cells_are_put_back_and_escaped():
    source = read_one(write_lines("ptn.jsonl", [pubtabnet()]))
    (record,) = source.records
    assert record.reference == '<table><tr><td><b>p</b> &lt;&amp;</td><td colspan="2"></td></tr></table>'
    assert (record.task, record.id) == ("table", "t.png")
    assert source.problems == []


def test_pubtabnet_structure_that_holds_the_table_tag_is_not_wrapped_again():
    structure = ["<table>", "<tr>", "<td>", "</td>", "</tr>", "</table>"]
    source = read_one(write_lines("ptn.jsonl", [pubtabnet(structure=structure, cells=[{"tokens": ["a"]}])]))
    assert source.records[0].reference == "<table><tr><td>a</td></tr></table>"


def test_pubtabnet_image_beside_the_file_or_in_the_split_folder(in_empty_folder):
    (in_empty_folder / "train").mkdir()
    Image.new("L", (4, 4)).save("train/inside.png")
    Image.new("L", (4, 4)).save("beside.png")
    rows = [pubtabnet("inside.png"), pubtabnet("beside.png"), pubtabnet("nowhere.png")]
    source = read_one(write_lines("ptn.jsonl", rows))
    expected = ["train/inside.png", "beside.png", "nowhere.png"]
    assert paths(source) == [str(in_empty_folder / path) for path in expected]


@pytest.mark.parametrize(
    ("row", "detail"),
    [
        (pubtabnet(cells=[{"tokens": ["a"]}]), "html.structure has 2 cells, html.cells has 1"),
        (pubtabnet(cells=[{"tokens": ["a"]}, {"bbox": []}]), "html.cells tokens is not a list of strings"),
        (pubtabnet(cells=["a", "b"]), "html.cells is not a list of objects"),
        (pubtabnet(structure=["<tr>", 3]), "html.structure.tokens is not a list of strings"),
        (pubtabnet(html={"cells": []}), "html.structure is not an object"),
        (pubtabnet(filename=None), "filename is missing"),
    ],
)
def test_pubtabnet_with_a_broken_annotation(row, detail):
    source = read_one(write_lines("ptn.jsonl", [row, pubtabnet("good.png")]))
    assert row_problems(source) == [(1, "html", "broken PubTabNet annotation")]
    assert source.problems[0].detail == detail
    assert [record.id for record in source.records] == ["good.png"]


# Parquet


def test_parquet_with_bytes_in_both_usual_forms():
    texts = {"task": ["text", "table"], "reference": ["", "<table></table>"]}
    pq.write_table(pa.table({"image": [png(), png()], **texts}), "binary.parquet")
    pq.write_table(pa.table({"image": [{"bytes": png(), "path": "x.png"}] * 2, **texts}), "struct.parquet")
    for name in ("binary.parquet", "struct.parquet"):
        source = read_one(name)
        assert [image["bytes"] for image in source.images["image"]] == [png(), png()]
        assert [record.row for record in source.records] == [1, 2]
        assert source.problems == []


def test_parquet_with_paths_relative_to_its_folder(in_empty_folder):
    (in_empty_folder / "set").mkdir()
    table = pa.table({"image": ["a.png", None, ""], "task_type": ["text"] * 3, "target": ["a", "b", "c"]})
    pq.write_table(table, "set/t.parquet")
    source = read_one("set/t.parquet")
    assert paths(source)[0] == str(in_empty_folder / "set/a.png")
    assert row_problems(source) == [(2, "image", "missing"), (3, "image", "not a usable path")]


def test_parquet_may_mix_bytes_and_paths(in_empty_folder):
    storage = pa.struct({"bytes": pa.binary(), "path": pa.string()})
    images = [
        {"bytes": png(), "path": "kept.png"},
        {"bytes": None, "path": "crop.png"},
        {"bytes": None, "path": None},
        None,
    ]
    table = pa.table({"image": pa.array(images, storage), "task": ["text"] * 4, "reference": ["a"] * 4})
    pq.write_table(table, "t.parquet", row_group_size=2)
    source = read_one("t.parquet")
    assert source.images[0]["image"]["bytes"] == png()
    assert source.images[1]["image"] == {"bytes": None, "path": str(in_empty_folder / "crop.png")}
    assert row_problems(source) == [(3, "image", "missing"), (4, "image", "missing")]


def test_parquet_written_by_datasets_keeps_its_images(in_empty_folder):
    rows = {"image": [Image.new("RGB", (5, 4), "red")], "task": ["text"], "reference": ["x"]}
    datasets.Dataset.from_dict(rows, features=FEATURES).to_parquet("t.parquet")
    source = read_one("t.parquet")
    assert source.images[0]["image"]["bytes"].startswith(b"\x89PNG")


def test_parquet_with_numbers_for_references():
    table = pa.table({"image": ["a.png"] * 2, "task": ["text"] * 2, "reference": [1.5, float("nan")]})
    pq.write_table(table, "t.parquet")
    assert row_problems(read_one("t.parquet")) == [
        (1, "reference", "not a string"),
        (2, "reference", "not a string"),
    ]


def test_parquet_without_needed_columns():
    pq.write_table(pa.table({"image": ["a.png"], "label": ["x"]}), "t.parquet")
    assert source_problem("t.parquet") == "lacks the column task and reference | it has image, label"


def test_parquet_with_an_image_column_of_numbers():
    pq.write_table(pa.table({"image": [1], "task": ["text"], "reference": ["x"]}), "t.parquet")
    assert source_problem("t.parquet").startswith("column image holds neither paths nor bytes nor images")


def test_damaged_parquet():
    pq.write_table(pa.table({"image": [png()] * 50, "task": ["text"] * 50, "reference": ["x"] * 50}), "t.parquet")
    data = bytearray(Path("t.parquet").read_bytes())
    write_lines("cut.parquet", [bytes(data[: len(data) // 2])])
    data[10:200] = bytes(190)
    write_lines("page.parquet", [bytes(data)])
    for name in ("cut.parquet", "page.parquet"):
        assert source_problem(name).startswith("unreadable Parquet file")


def test_folder_and_pattern_of_parquet_files(in_empty_folder):
    (in_empty_folder / "shards [1]").mkdir()
    for index in (2, 0, 1):
        table = pa.table({"image": ["a.png"], "task": ["text"], "reference": [str(index)]})
        pq.write_table(table, f"shards [1]/{index}.parquet")
    expected = [f"shards [1]/{index}.parquet" for index in range(3)]
    for spec in ("shards [1]", "shards*/*.parquet"):
        sources, problems = read_sources([spec], cache_dir="cache")
        assert problems == []
        assert [source.name for source in sources] == expected
        assert [source.records[0].reference for source in sources] == ["0", "1", "2"]


def test_one_bad_file_of_a_pattern_does_not_hide_the_others():
    good = pa.table({"image": ["a.png"], "task": ["text"], "reference": ["x"]})
    for name in ("1.parquet", "3.parquet"):
        pq.write_table(good, name)
    write_lines("0.parquet", [b"garbage"])
    pq.write_table(pa.table({"image": ["a.png"]}), "2.parquet")
    sources, problems = read_sources(["*.parquet"], cache_dir="cache")
    assert [source.name for source in sources] == ["1.parquet", "3.parquet"]
    assert [problem.source for problem in problems] == ["0.parquet", "2.parquet"]


def test_parquet_that_was_rewritten_is_read_again():
    for reference in ("old", "new"):
        pq.write_table(pa.table({"image": ["a.png"], "task": ["text"], "reference": [reference]}), "t.parquet")
        assert read_one("t.parquet").records[0].reference == reference


# Saved datasets and the hub


def saved_rows(count=2):
    rows = {"image": [Image.new("RGB", (5, 4))] * count, "task": ["text"] * count, "reference": ["x"] * count}
    return datasets.Dataset.from_dict(rows, features=FEATURES)


def test_saved_dataset():
    saved_rows().save_to_disk("saved")
    source = read_one("saved")
    assert [record.id for record in source.records] == ["saved:1", "saved:2"]
    assert source.images[1]["image"]["bytes"].startswith(b"\x89PNG")


def test_saved_dataset_with_splits():
    datasets.DatasetDict(train=saved_rows(2), test=saved_rows(1)).save_to_disk("saved")
    assert len(read_one("saved:test").records) == 1
    assert source_problem("saved") == "name the split as in name:split | it has train, test"
    assert source_problem("saved:dev") == "name the split as in name:split | it has train, test"


def test_split_of_a_dataset_without_splits():
    saved_rows().save_to_disk("saved")
    assert source_problem("saved:train") == "has no splits | asked for 'train'"


def test_damaged_saved_dataset(in_empty_folder):
    saved_rows().save_to_disk("saved")
    for file in (in_empty_folder / "saved").glob("*.arrow"):
        file.write_bytes(b"garbage")
    assert source_problem("saved").startswith("unreadable saved dataset")


def test_hub_dataset(monkeypatch):
    calls = []

    def load_dataset(name, cache_dir):
        calls.append((name, cache_dir))
        return datasets.DatasetDict(train=saved_rows(2), test=saved_rows(1))

    monkeypatch.setattr(arrow.datasets, "load_dataset", load_dataset)
    assert len(read_one("group/crops:test").records) == 1
    assert calls == [("group/crops", "cache")]


def test_hub_dataset_with_paths_that_lead_nowhere(monkeypatch):
    rows = {"image": ["a.png"], "task": ["text"], "reference": ["x"]}
    downloaded = datasets.DatasetDict(train=datasets.Dataset.from_dict(rows))
    monkeypatch.setattr(arrow.datasets, "load_dataset", lambda *_, **__: downloaded)
    assert row_problems(read_one("group/crops")) == [(1, "image", "relative image path in a source that has no folder")]


def test_hub_dataset_offline(monkeypatch):
    def load_dataset(*_, **__):
        raise ConnectionError("Couldn't reach 'group/crops' on the Hub (LocalEntryNotFoundError)")

    monkeypatch.setattr(arrow.datasets, "load_dataset", load_dataset)
    message = source_problem("group/crops")
    assert "not available as a dataset from the hub" in message
    assert "Couldn't reach" in message


# Sources that are not there, or not sources


def test_sources_that_cannot_be_used(in_empty_folder):
    write_lines("empty.jsonl", [])
    write_lines("notes.txt", [b"hello"])
    (in_empty_folder / "folder").mkdir()
    (in_empty_folder / "loop.jsonl").symlink_to("loop.jsonl")
    found = "file or folder not found | "
    assert source_problem("missing.jsonl") == found
    assert source_problem("missing.parquet") == found
    assert source_problem("./missing") == found
    assert source_problem("some/missing/folder") == found
    assert source_problem("loop.jsonl") == found
    assert source_problem("*.pq") == "pattern matches no file | "
    assert source_problem("empty.jsonl") == "holds no rows | "
    assert source_problem("notes.txt").startswith("unknown kind of file")
    assert source_problem("folder") == "folder holds neither a saved dataset nor Parquet files | "


def test_all_sources_are_reported_together():
    write_lines("good.jsonl", [ROW])
    sources, problems = read_sources(["a.jsonl", "good.jsonl", "b.parquet", "good.jsonl", "*.jsonl"])
    assert [source.name for source in sources] == ["good.jsonl"]
    assert [(p.source, p.message) for p in problems] == [
        ("a.jsonl", "file or folder not found"),
        ("b.parquet", "file or folder not found"),
        ("good.jsonl", "listed more than once"),
        ("good.jsonl", "listed more than once"),
    ]


# Rows in memory


def test_rows_in_memory_take_paths_bytes_and_images(in_empty_folder):
    opened = Image.open("crop.png")
    opened.paste("black", (0, 0, 8, 6))
    images = [
        "crop.png",
        in_empty_folder / "crop.png",
        png(),
        bytearray(png()),
        Image.new("L", (3, 2)),
        opened,
    ]
    rows = [{**ROW, "image": image} for image in images]
    source = read_rows("memory", enumerate(rows, start=1), folder=in_empty_folder)
    assert source.problems == []
    stored = source.images.cast_column("image", datasets.Image())["image"]
    assert [image.size for image in stored] == [(8, 6)] * 4 + [(3, 2), (8, 6)]
    # What counts is the image in memory, not the file that it was once opened from.
    assert stored[5].getpixel((0, 0)) == (0, 0, 0)


def test_image_in_memory_that_cannot_be_read():
    Path("cut.png").write_bytes(Path("crop.png").read_bytes()[:45])
    rows = [{**ROW, "image": Image.open("cut.png")}, {**ROW, "image": Image.new("F", (2, 2))}]
    source = read_rows("memory", enumerate(rows, start=1))
    assert [(p.row, p.field) for p in source.problems] == [(1, "image"), (2, "image")]


def test_names_that_no_file_can_have_are_reported():
    for name in ("a" * 5000 + ".jsonl", "~no_such_user/rows.jsonl"):
        assert "path cannot be looked up" in str(read_sources([name])[1])
    write_lines("t.jsonl", [pubtabnet(filename="a" * 5000, split="train")])
    assert "filename cannot be looked up" in str(read_one("t.jsonl").problems)
