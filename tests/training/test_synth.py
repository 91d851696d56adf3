"""Rendered crops: references are right, splits cannot overlap, knobs do what they say."""

import json
import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from gravity_rl.data import load_ocr_dataset
from gravity_rl.data.config import DataConfig
from gravity_rl.synth.__main__ import main, task_counts
from gravity_rl.synth.crops import TASKS, crop_seed, sample_crop
from gravity_rl.synth.draw import Glyph, load_font
from gravity_rl.synth.glyphs import glyph_string
from gravity_rl.synth.knobs import PRESETS
from gravity_rl.synth.split import SPLITS, split_of
from gravity_rl.synth.table import sample_table
from gravity_rl.tiny.build import TinyShape, build_processor
from rewards import score

TINY = PRESETS["tiny"]
STANDARD = PRESETS["standard"]


def crops(task, split, count, knobs=TINY, seed=0):
    return [sample_crop(task, split, crop_seed(seed, split, i), knobs) for i in range(count)]


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("preset", ["tiny", "standard"])
def test_no_line_row_or_formula_is_in_both_splits(task, preset):
    """Content decides its own split, so overlap is impossible for any seeds; here it is looked for as well."""
    units = {}
    for split in SPLITS:
        units[split] = {unit for crop in crops(task, split, 10, PRESETS[preset]) for unit in crop.units}
        assert units[split]
        assert {split_of(unit) for unit in units[split]} == {split}
    assert not units["train"] & units["heldout"]


@settings(max_examples=30, deadline=None)
@given(st.sampled_from(TASKS), st.sampled_from(SPLITS), st.integers(0, 2**64 - 1))
def test_every_unit_of_any_crop_belongs_to_its_split(task, split, seed):
    assert {split_of(unit) for unit in sample_crop(task, split, seed, TINY).units} == {split}


@pytest.mark.parametrize("task", TASKS)
def test_a_crop_is_a_function_of_its_seed(task):
    first, again, other = (sample_crop(task, "train", seed, STANDARD) for seed in (7, 7, 8))
    assert first.reference == again.reference
    assert first.image.tobytes() == again.image.tobytes()
    assert first.reference != other.reference


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("preset", ["tiny", "standard", "dense"])
def test_every_reference_scores_one_against_itself(task, preset):
    for crop in crops(task, "heldout", 3, PRESETS[preset]):
        result = score(task, crop.reference, crop.reference)
        assert result.value == pytest.approx(result.parts["gate"])


@pytest.mark.parametrize("task", TASKS)
def test_the_tiny_tokenizer_spells_every_reference(task):
    tokenizer = build_processor(TinyShape()).tokenizer
    for crop in crops(task, "train", 30):
        ids = tokenizer(crop.reference).input_ids
        assert tokenizer.unk_token_id not in ids
        assert tokenizer.decode(ids) == crop.reference


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from(["tiny", "standard", "dense"]))
def test_cells_cover_the_grid_once(seed, preset):
    knobs = replace(PRESETS[preset], spans=1.0)
    table = sample_table(random.Random(seed), knobs, "train")
    covered = np.zeros((table.rows, table.cols), int)
    for cell in table.cells:
        covered[cell.row : cell.row + cell.rowspan, cell.col : cell.col + cell.colspan] += 1
    assert (covered == 1).all()
    assert {cell.row for cell in table.cells} == set(range(table.rows))


def test_tables_have_headers_spans_and_empty_cells():
    html = "".join(crop.reference for crop in crops("table", "train", 60))
    for wanted in ("<th>", "<td></td>", ' rowspan="', ' colspan="'):
        assert wanted in html


def test_dense_tables_reach_forty_rows():
    rows = [sample_table(random.Random(seed), PRESETS["dense"], "train").rows for seed in range(80)]
    assert min(rows) >= 20
    assert max(rows) == 40


@pytest.mark.parametrize("task", TASKS)
def test_glyphs_are_where_they_say(task):
    """Around the centre of a drawn letter or digit there is ink, also in a rotated crop."""
    knobs = replace(STANDARD, rotation_deg=3.0, noise=0.0)
    drawn_elsewhere = "pXZ" if task == "formula" else ""  # codes of the root, sum and integral signs
    for crop in crops(task, "train", 4, knobs):
        pixels = np.asarray(crop.image)
        for glyph in crop.glyphs:
            if glyph.char.isalnum() and glyph.char.isascii() and glyph.char not in drawn_elsewhere:
                x, y = round(glyph.x), round(glyph.y)
                assert pixels[max(0, y - 6) : y + 7, max(0, x - 6) : x + 7].min() < 160, glyph


def test_knobs_change_the_picture():
    plain = replace(STANDARD, fonts=("DejaVu Sans",), rotation_deg=0.0, noise=0.0, blur=0.0, glyph_jitter=0.0)
    base = sample_crop("text", "train", 3, plain).image
    changes = (
        {"noise": 30.0},
        {"blur": 3.0},
        {"margin": (40, 40)},
        {"font_px": (40, 40)},
        {"fonts": ("STIXGeneral",)},
    )
    for change in changes:
        other = sample_crop("text", "train", 3, replace(plain, **change)).image
        assert other.size != base.size or other.tobytes() != base.tobytes(), change
    multiple = sample_crop("table", "train", 3, replace(plain, size_multiple=28)).image
    assert multiple.width % 28 == multiple.height % 28 == 0


def test_the_glyph_nearest_to_the_middle_of_a_square_counts():
    glyphs = (
        Glyph("a", 2, 8),
        Glyph("b", 9, 8),
        Glyph("c", 3, 8),
        Glyph("≠", 20, 24),
        Glyph("a", 40, 8),
        Glyph("a", -1, 8),
    )
    assert glyph_string(glyphs, 32, 48, 16) == "b  ≠  "
    assert glyph_string((), 48, 16, 16) == "   "


@pytest.mark.parametrize("size", [(33, 32), (32, 24)])
def test_glyph_squares_must_fill_the_crop(size):
    with pytest.raises(ValueError, match="is not made of squares of 16x16"):
        glyph_string((), *size, 16)


def test_glyphs_of_a_text_crop_on_the_grid_are_its_lines():
    for crop in crops("text", "train", 5):
        columns = crop.image.width // 16
        squares = glyph_string(crop.glyphs, *crop.image.size, 16)
        lines = [squares[start : start + columns].rstrip() for start in range(0, len(squares), columns)]
        assert lines == crop.reference.split("\n")


def test_the_easy_preset_holds_little():
    for crop in crops("text", "train", 10, PRESETS["tiny-easy"]):
        assert len(crop.reference) <= 8
        assert "\n" not in crop.reference
    for crop in crops("table", "train", 10, PRESETS["tiny-easy"]):
        assert crop.reference.count("<tr>") <= 2


def test_a_missing_font_is_an_error():
    with pytest.raises(ValueError, match="No Such Font"):
        load_font("No Such Font", 12)


def test_an_unknown_task_is_an_error():
    with pytest.raises(ValueError, match="task: expected one of text, table, formula, got 'chart'"):
        sample_crop("chart", "train", 0, TINY)


@given(st.integers(0, 500), st.tuples(*[st.floats(0.01, 1)] * 3))
def test_task_counts_add_up(total, weights):
    counts = task_counts(total, weights)
    assert sum(counts.values()) == total
    for count, weight in zip(counts.values(), weights, strict=True):
        assert abs(count - total * weight / sum(weights)) < 1


def test_the_command_writes_a_dataset_that_loads(tmp_path):
    main(["--out", str(tmp_path), "--train", "6", "--heldout", "4", "--preset", "tiny"])
    for split, count in (("train", 6), ("heldout", 4)):
        dataset = load_ocr_dataset(DataConfig(train_data=[str(tmp_path / f"{split}.jsonl")]), split="train", seed=0)
        assert len(dataset) == count
        rows = [json.loads(line) for line in (tmp_path / f"{split}.jsonl").read_text("utf-8").splitlines()]
        assert {row["id"] for row in rows} == set(dataset["id"])
        assert all(Image.open(tmp_path / row["image"]).width % 16 == 0 for row in rows)


def written(folder, *arguments):
    """The rows of the training and the held-out split, and the bytes of all images, that the command writes."""
    main(["--out", str(folder), "--train", "24", "--heldout", "6", "--preset", "tiny", *arguments])
    splits = [
        [json.loads(line) for line in (folder / f"{split}.jsonl").read_text("utf-8").splitlines()] for split in SPLITS
    ]
    return *splits, {row["image"]: (folder / row["image"]).read_bytes() for rows in splits for row in rows}


def test_any_number_of_workers_renders_the_same(tmp_path):
    arguments = ("--teacher", "noisy", "--glyph-square", "16")
    assert written(tmp_path / "1", *arguments) == written(tmp_path / "2", *arguments, "--workers", "2")


def test_the_noisy_teacher_writes_training_references_only(tmp_path):
    train, heldout, images = written(tmp_path / "exact")
    noisy_train, noisy_heldout, noisy_images = written(tmp_path / "noisy", "--teacher", "noisy")
    changed = sum(row["reference"] != noisy["reference"] for row, noisy in zip(train, noisy_train, strict=True))
    assert 4 < changed < 20
    assert (noisy_heldout, noisy_images) == (heldout, images)


def test_the_glyph_column_has_a_character_a_square(tmp_path):
    plain, _, _ = written(tmp_path / "plain")
    assert "glyphs" not in plain[0]
    main(["--out", str(tmp_path), "--train", "3", "--heldout", "0", "--glyph-square", "28", "--seed", "5"])
    dataset = load_ocr_dataset(DataConfig(train_data=[str(tmp_path / "train.jsonl")]), split="train", seed=0)
    for row in dataset:
        assert row["image"].width % 28 == row["image"].height % 28 == 0
        assert len(row["glyphs"]) == row["image"].width * row["image"].height / 28**2
        assert row["glyphs"].strip()


@pytest.mark.parametrize("arguments", [("--workers", "0"), ("--glyph-square", "-1"), ("--train", "-1")])
def test_numbers_out_of_range_are_refused(arguments, tmp_path, capsys):
    with pytest.raises(SystemExit):
        main(["--out", str(tmp_path / "out"), *arguments])
    assert arguments[0] in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
