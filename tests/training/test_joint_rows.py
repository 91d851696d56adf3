"""From dataset rows to packed rows: lengths, positions, layout, supervision, stages, loader workers.

Shapes: L tokens of a row, P and R prefix and response tokens of a sample.
"""

from __future__ import annotations

from io import BytesIO
from pathlib import Path
from typing import Any

import datasets
import pytest
import torch
from conftest import Crops
from joint_helpers import (
    BLOCK,
    Alone,
    eos_id,
    mask_id,
    of_sample,
    plan_of,
    processor,
    renderer,
    row_of,
    row_settings,
    sample_row,
    stock_model,
)
from PIL import Image
from run_helpers import joint_arguments
from torch import Tensor
from torch.utils.data import DataLoader

from gravity_rl.data.build import load_ocr_dataset
from gravity_rl.data.config import DataConfig
from gravity_rl.data.contract import DataError
from gravity_rl.joint.config import parse_joint_config
from gravity_rl.joint.lengths import RowBudget, SampleLengths, check_glyphs, image_size, measure
from gravity_rl.joint.masks import CLEAN, CORRUPTED_1, CORRUPTED_2, PREFIX
from gravity_rl.joint.prompts import PromptRenderer, prefix_positions
from gravity_rl.joint.rows import NO_GLYPH, PackedRows, Stage
from gravity_rl.joint.stages import build_stages
from gravity_rl.joint.trainer import the_row

PROMPT = [{"role": "user", "content": "Text Recognition:"}]
SIZES = [(16, 16), (5, 7), (1, 150), (40, 33), (200, 31), (129, 257), (48, 48), (1500, 900)]  # height, width
BUDGET = RowBudget(row_tokens=400, max_response_tokens=30, block_size=BLOCK, mask_schedule="uniform")


@pytest.mark.parametrize("size", SIZES)
def test_prefix_length_and_positions_are_those_of_processor_and_model(size: tuple[int, int]) -> None:
    row = {"prompt": PROMPT, "image": Image.new("RGB", size[::-1], "white")}
    (ids,), images = renderer().encode([row])
    assert renderer().prefix_tokens(PROMPT, size) == len(ids)
    image_token = stock_model().config.image_token_id
    expected, _ = stock_model().model.get_rope_index(
        ids[None], mm_token_type_ids=(ids == image_token).int()[None], image_grid_thw=images["image_grid_thw"]
    )
    found = prefix_positions(ids, images["image_grid_thw"][0].tolist(), image_token, row_settings().merge_size)
    assert found.equal(expected[:, 0])


def test_prefix_positions_want_one_run_of_the_right_length() -> None:
    image = 9
    for ids, found in (([1, 9, 9, 2], 2), ([9, 1, 9, 9, 9], 4), ([1, 2], 0)):
        with pytest.raises(ValueError, match=f"the prompt has {found} image tokens, not one run of 4"):
            prefix_positions(torch.tensor(ids), (1, 4, 4), image, 2)


def test_each_prompt_is_rendered_once(monkeypatch: pytest.MonkeyPatch) -> None:
    fresh = PromptRenderer(processor())
    text = fresh.text(PROMPT)
    assert text.count("<|image|>") == 1
    monkeypatch.setattr(processor(), "apply_chat_template", None)
    assert fresh.text(PROMPT) == text


def encoded(image_format: str, orientation: int) -> bytes:
    image = Image.new("RGB", (40, 20), "white")
    exif = image.getexif()
    exif[0x0112] = orientation
    buffer = BytesIO()
    image.save(buffer, image_format, exif=exif)
    return buffer.getvalue()


@pytest.mark.parametrize("image_format", ["JPEG", "PNG", "TIFF", "WEBP"])
@pytest.mark.parametrize("orientation", [1, 3, 5, 6, 7, 8])
def test_image_size_is_that_of_the_decoded_image(image_format: str, orientation: int, tmp_path: Path) -> None:
    data = encoded(image_format, orientation)
    decoded = datasets.Image().decode_example({"bytes": data, "path": None})
    assert image_size({"bytes": data, "path": None}) == (decoded.height, decoded.width)
    (tmp_path / "image").write_bytes(data)
    assert image_size({"bytes": None, "path": str(tmp_path / "image")}) == (decoded.height, decoded.width)


def make_dataset(rows: list[dict[str, Any]]) -> datasets.Dataset:
    return datasets.Dataset.from_list(rows).cast_column("image", datasets.Image())


def test_measure_counts_tokens_and_skips_by_reason() -> None:
    rows = [
        {
            "prompt": PROMPT,
            "image": {"bytes": encoded("JPEG", 6), "path": None},
            "reference": reference,
            "id": str(index),
        }
        for index, reference in enumerate(["abc", "", "x" * 30, "x" * 31, "<td>"])
    ]
    large = BytesIO()
    Image.new("RGB", (336, 256)).save(large, "PNG")
    rows[4]["image"] = {"bytes": large.getvalue(), "path": None}
    lengths = measure(make_dataset(rows), renderer(), BUDGET, threads=2)
    assert lengths.response == [3, 0, 30, 31, 1]
    assert lengths.usable == [True, False, True, False, True]
    assert lengths.skipped == {"empty response": 1, "response over max_response_tokens (30)": 1}
    (prefix, _, _, _, other), _ = renderer().encode(list(make_dataset(rows)))
    assert (lengths.prefix[0], lengths.prefix[4]) == (len(prefix), len(other))
    room = BUDGET.joint_tokens(lengths.prefix[4], 1)
    tight = RowBudget(room - 1, 30, BLOCK, "uniform")
    too_long = measure(make_dataset(rows), renderer(), tight, threads=1)
    assert too_long.skipped[f"longer than a row of row_tokens ({room - 1})"] == 1
    assert too_long.usable == [True, False, True, False, False]


@pytest.mark.parametrize("token", ["<|image|>", "<|mask|>", "<|endoftext|>", "<|pad|>", "<|user|>"])
def test_references_that_spell_a_special_token_are_skipped(token: str) -> None:
    """They would put image placeholders, masks or ends into the response."""
    image = {"bytes": encoded("JPEG", 6), "path": None}
    rows = [
        {"prompt": PROMPT, "image": image, "reference": reference, "id": reference}
        for reference in (f"a{token}b", "a<|b|>é")
    ]
    lengths = measure(make_dataset(rows), renderer(), BUDGET, threads=1)
    assert lengths.usable == [False, True]
    assert lengths.skipped == {"reference with a special token in its text": 1}


def test_measured_lengths_are_those_of_the_rows() -> None:
    """An upper bound for joint rows, whose second stream may be empty, and exact for the others."""
    for number in range(3):
        prefix, reference = Alone.of(number).prefix.size(1), len(Alone.of(number).response) - BLOCK
        assert int(row_of([number])["forward_tokens"]) == BUDGET.joint_tokens(prefix, reference)
        assert int(row_of([number], corrupted=False)["forward_tokens"]) == BUDGET.ar_tokens(prefix, reference)
        whole = row_of([number], mask_schedule="all")
        assert int(whole["forward_tokens"]) == RowBudget(0, 0, BLOCK, "all").joint_tokens(prefix, reference)


def test_layout_of_a_row() -> None:
    row = row_of([0, 2], padded_tokens=200)
    ids = row["input_ids"][0]
    for sample, number in enumerate([0, 2]):
        alone = Alone.of(number)
        assert ids[of_sample(row, sample, PREFIX)].equal(alone.prefix[0])
        assert ids[of_sample(row, sample, CLEAN)].equal(alone.response), "the reference, then B end tokens"
        assert alone.response.tolist().count(eos_id()) == BLOCK
        streams = [ids[of_sample(row, sample, stream)] for stream in (CORRUPTED_1, CORRUPTED_2)]
        masked = [stream == mask_id() for stream in streams]
        assert bool((masked[0] ^ masked[1]).all()), "complementary"
        for stream, hidden in zip(streams, masked, strict=True):
            assert stream[~hidden].equal(alone.response[~hidden])
    assert int(row["samples"]) == 2
    assert set(row["layout"][0].tolist()) == {0, 1, -1}
    assert row["input_ids"].shape == (1, 200)


def test_corrupted_tokens_have_the_positions_of_their_clean_twins() -> None:
    row = row_of([1, 2])
    positions = row["position_ids"][:, 0]
    for sample, number in enumerate([1, 2]):
        clean = positions[:, of_sample(row, sample, CLEAN)]
        after = positions[:, of_sample(row, sample, PREFIX)].max() + 1
        assert clean.equal((after + torch.arange(len(Alone.of(number).response))).expand(3, -1))
        for stream in (CORRUPTED_1, CORRUPTED_2):
            assert positions[:, of_sample(row, sample, stream)].equal(clean)


@pytest.mark.parametrize(("every", "ends"), [(False, 1), (True, BLOCK)])
def test_what_is_supervised(every: bool, ends: int) -> None:
    row = row_of([0, 1], supervise_every_eos=every)
    for sample, number in enumerate([0, 1]):
        response = Alone.of(number).response
        prefix, clean = of_sample(row, sample, PREFIX), of_sample(row, sample, CLEAN)
        inside = row["layout"][0, row["ar"][0]] == sample
        predictors, targets = row["ar"][:, inside]
        assert targets.equal(response[: len(response) - BLOCK + ends])
        assert predictors.equal(torch.cat([prefix[-1:], clean])[: len(targets)]), "each from the token before it"
        inside = row["layout"][0, row["diffusion"][0]] == sample
        predictors, targets = row["diffusion"][:, inside]
        assert sorted(targets.tolist()) == sorted(response.tolist()), "all end tokens included"
        stream, position = row["layout"][1:3, predictors]
        from_prefix = stream == PREFIX
        assert predictors[from_prefix].equal(prefix[-1:]), "the first token, once"
        assert sorted((position[~from_prefix] + 1).tolist()) == list(range(1, len(response)))
        assert targets[~from_prefix].equal(response[position[~from_prefix] + 1])
        assert bool((stream[~from_prefix] > CLEAN).all())
    assert row["shares"].shape == row["diffusion"][0].shape


def test_an_ar_only_row_has_one_end_token() -> None:
    row = row_of([0], corrupted=False, supervise_every_eos=True)
    assert set(row["layout"][1].tolist()) == {PREFIX, CLEAN}
    assert row["ar"][1].equal(Alone.of(0).response[: -BLOCK + 1])
    assert row["diffusion"].shape == (2, 0)


def equal(left: dict[str, Tensor], right: dict[str, Tensor]) -> bool:
    return left.keys() == right.keys() and all(left[name].equal(right[name]) for name in left)


def test_draws_decide_the_masks() -> None:
    assert equal(row_of([0], draw=1), row_of([0], draw=1))
    rows = [row_of([0], draw=draw, seed=seed)["input_ids"] for seed in (1, 2) for draw in range(4)]
    assert all(not left.equal(right) for index, left in enumerate(rows) for right in rows[:index])
    twice = row_of([0, 0])
    assert not twice["input_ids"][0, of_sample(twice, 0, CORRUPTED_1)].equal(
        twice["input_ids"][0, of_sample(twice, 1, CORRUPTED_1)]
    )


@pytest.fixture(scope="module")
def crop_rows(crops: Crops) -> PackedRows:
    """Five rows of two stages over real crops."""
    dataset = load_ocr_dataset(DataConfig(train_data=[str(crops.train)]), split="train")
    stages = [
        Stage(dataset, plan_of([[0, 1], [2]]), False, 0),
        Stage(dataset, plan_of([[3, 4], [5], [0, 11, 7]]), True, 3),
    ]
    return PackedRows(stages, renderer(), row_settings())


def test_any_number_of_loader_workers_gives_the_same_rows(crop_rows: PackedRows) -> None:
    expected = [crop_rows[index] for index in range(len(crop_rows))]
    for workers in (0, 1, 3):
        found = list(DataLoader(crop_rows, batch_size=1, collate_fn=the_row, num_workers=workers))
        assert len(found) == len(expected) == 5
        assert all(equal(left, right) for left, right in zip(found, expected, strict=True)), workers


def test_stages_follow_one_another(crop_rows: PackedRows) -> None:
    assert [int(crop_rows[index]["samples"]) for index in range(5)] == [2, 1, 2, 1, 3]
    assert [crop_rows[index]["diffusion"].size(1) > 0 for index in range(5)] == [False, False, True, True, True]
    with pytest.raises(IndexError):
        crop_rows[5]


def test_a_later_stage_draws_other_masks() -> None:
    data: Any = [sample_row(0)]
    stages = [Stage(data, plan_of([[0]]), True, offset) for offset in (0, 1)]
    first, second = PackedRows(stages, renderer(), row_settings())
    assert not first["input_ids"].equal(second["input_ids"])
    assert first["ar"].equal(second["ar"])


def glyph_rows(glyphs: str | None, warm_up_rows: int = 1) -> PackedRows:
    data: Any = [sample_row(0) | {"glyphs": glyphs, "id": "page7"}]  # 3 x 2 image tokens
    return PackedRows(
        [Stage(data, plan_of([[0], [0]]), False, 0)], renderer(), row_settings(), warm_up_rows=warm_up_rows
    )


def test_glyph_targets_of_the_warm_up() -> None:
    rows = glyph_rows("ab é 1")
    convert = processor().tokenizer.convert_tokens_to_ids
    expected = [convert("a"), convert("b"), convert(" "), NO_GLYPH, convert(" "), convert("1")]
    assert rows[0]["glyphs"].tolist() == expected
    assert "glyphs" not in rows[1], "the warm-up is over"


@pytest.mark.parametrize(("glyphs", "found"), [(None, "0 characters"), ("abc", "3 characters")])
def test_glyphs_that_do_not_fit_the_image_are_named(glyphs: str | None, found: str) -> None:
    dataset = datasets.Dataset.from_dict({"id": ["page6", "page7", "page8"], "glyphs": ["ab é 1", glyphs, glyphs]})
    lengths = SampleLengths([9] * 3, [6] * 3, [2] * 3, [True, True, False], {})
    with pytest.raises(DataError, match=rf"page7: glyphs: .*\({found}, 6 image tokens\)") as error:
        check_glyphs("train_data", dataset, lengths)
    assert len(error.value.problems) == 1, "a sample that is skipped anyway may have any glyphs"


def test_glyphs_that_are_missing_altogether_are_one_problem() -> None:
    lengths = SampleLengths([9], [6], [2], [True], {})
    with pytest.raises(DataError, match="curriculum_data: glyphs: missing"):
        check_glyphs("curriculum_data", datasets.Dataset.from_dict({"id": ["page7"]}), lengths)


def test_planning_decodes_no_image(glyph_crops: Path, tmp_path: Path) -> None:
    """Only their headers are read: a transform that needs all columns would run for every look at a task."""

    def fail(batch: dict[str, Any]) -> dict[str, Any]:
        raise AssertionError("an image was decoded")

    argv = joint_arguments(tmp_path, glyph_crops, tmp_path / "run", vision_warmup_steps=1, row_tokens=400)
    config = parse_joint_config(argv)
    dataset = load_ocr_dataset(config.data, split="train", seed=0, tokenizer=processor().tokenizer)
    stages = build_stages(config.training, config.data, lambda _: dataset.with_transform(fail), renderer())
    assert sum(len(stage.plan) for stage in stages) == config.training.max_steps
