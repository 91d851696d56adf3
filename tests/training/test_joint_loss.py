"""The joint loss of a row: how its parts are combined, where logits are computed, and what is refused.

Shapes: L tokens of a row, A clean and D masked targets, V merged image tokens, N vocabulary size.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from joint_helpers import (
    gradients,
    hidden_of,
    joint_model,
    largest_difference,
    model_inputs,
    row_of,
    stock_model,
    supervised_logits,
)
from torch import Tensor
from transformers import GlmOcrForConditionalGeneration

from gravity_rl.joint.modeling import SHARE_BUCKETS, JointGlmOcr
from gravity_rl.joint.rows import NO_GLYPH

ALL = [0, 1, 2]


def run(row: dict[str, Tensor], **settings: Any) -> dict[str, Tensor]:
    with torch.no_grad():
        return joint_model(**settings)(**model_inputs(row))


@pytest.mark.parametrize(("weight", "factor"), [(1.0, 1.0), (0.25, 2.0), (0.0, 1.0), (1.0, 0.0)])
def test_means_are_taken_separately_and_combined(weight: float, factor: float) -> None:
    row = row_of(ALL)
    with torch.no_grad():
        logits = supervised_logits(joint_model(), row)
    names = ("ar", "diffusion")
    sums = [F.cross_entropy(part, row[name][1], reduction="sum") for part, name in zip(logits, names, strict=True)]
    means = [float(total) / row[name].size(1) for total, name in zip(sums, names, strict=True)]
    assert row["ar"].size(1) != row["diffusion"].size(1)
    outputs = run(row, ar_loss_weight=weight, diffusion_loss_weight=factor)
    assert float(outputs["loss"]) == pytest.approx(
        (weight * means[0] + factor * means[1]) / (weight + factor), abs=1e-5
    )
    assert float(outputs["ar_loss"]) == pytest.approx(float(sums[0]), rel=1e-5)
    assert float(outputs["diffusion_loss"]) == pytest.approx(float(sums[1]), rel=1e-5)


def test_a_row_without_corrupted_streams_has_the_ar_loss_alone() -> None:
    row = row_of(ALL, corrupted=False)
    outputs = run(row, ar_loss_weight=0.5, diffusion_loss_weight=3.0)
    assert float(outputs["loss"]) == pytest.approx(float(outputs["ar_loss"]) / row["ar"].size(1), rel=1e-6)
    assert float(outputs["diffusion_loss"]) == 0


def test_accuracies_are_counted_by_the_share_of_masks() -> None:
    row = row_of(ALL)
    with torch.no_grad():
        ar_AN, diffusion_DN = supervised_logits(joint_model(), row)
    row["ar"][1, ::2] = ar_AN.argmax(-1)[::2]
    row["diffusion"][1, ::3] = diffusion_DN.argmax(-1)[::3]
    outputs = run(row)
    right = diffusion_DN.argmax(-1) == row["diffusion"][1]
    assert int(outputs["ar_correct"]) == int((ar_AN.argmax(-1) == row["ar"][1]).sum()) > 0
    edges = [(0, 0.25), (0.25, 0.5), (0.5, 0.75), (0.75, 1.0)]
    assert len(edges) == len(SHARE_BUCKETS)
    for bucket, (low, high) in enumerate(edges):
        inside = (row["shares"] > low) & (row["shares"] <= high)
        assert int(outputs["masked"][bucket]) == int(inside.sum())
        assert int(outputs["denoised"][bucket]) == int((inside & right).sum())
    assert int(outputs["denoised"].sum()) > 0


def test_logits_at_supervised_positions_only_and_each_image_once() -> None:
    row = row_of([0, 1, 2, 0])
    model = joint_model()
    heads, towers = [], []
    model.lm_head.register_forward_hook(lambda module, inputs, output: heads.append(tuple(output.shape)))
    model.model.visual.register_forward_hook(
        lambda module, args, kwargs, output: towers.append((args or tuple(kwargs.values()))[0].size(0)),
        with_kwargs=True,
    )
    model(**model_inputs(row))
    assert heads == [(row["ar"].size(1) + row["diffusion"].size(1), model.config.text_config.vocab_size)]
    assert heads[0][0] < row["input_ids"].size(1)
    assert towers == [int(row["image_grid_thw"].prod(-1).sum())]
    assert len(row["image_grid_thw"]) == 4


def test_gradient_checkpointing_gives_the_same_gradients() -> None:
    row = row_of(ALL)
    model = joint_model().train()
    plain = gradients(model, model(**model_inputs(row))["loss"])
    model.gradient_checkpointing_enable({"use_reentrant": False})
    calls = []
    model.model.language_model.layers[0].mlp.register_forward_hook(lambda *args: calls.append(1))
    loss = model(**model_inputs(row))["loss"]
    assert largest_difference(plain, gradients(model, loss)) < 1e-6
    assert len(calls) == 2, "the layer is computed again in the backward pass"


@pytest.mark.parametrize("mask_kind", ["dense", "sdpa"])
def test_bf16_autocast_is_close_to_fp32(mask_kind: str) -> None:
    row = row_of(ALL)
    model = joint_model(mask_kind)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = model(**model_inputs(row))["loss"]
    assert loss.dtype == torch.float32
    assert float(loss.detach()) == pytest.approx(float(run(row)["loss"]), rel=0.02)
    assert all(bool(gradient.isfinite().all()) for gradient in gradients(model, loss).values())


def test_glyph_loss_is_added_and_weighted() -> None:
    row = row_of([0])
    count = int(row["image_grid_thw"].prod(-1).sum()) // 4
    blank, letter = 50, 60
    glyphs = torch.tensor([blank, letter, NO_GLYPH] * count)[:count]
    model = joint_model(blank_id=blank, blank_weight=0.2)
    with torch.no_grad():
        image_VH = torch.cat(
            list(model.model.get_image_features(row["pixel_values"], row["image_grid_thw"]).pooler_output)
        )
        names_VN = (F.layer_norm(image_VH, image_VH.shape[-1:]) @ model.lm_head.weight.T).log_softmax(-1)
        outputs = model(**model_inputs(row), glyphs=glyphs)
    assert count == len(image_VH) == 6
    total = -0.2 * (names_VN[0, blank] + names_VN[3, blank]) - names_VN[1, letter] - names_VN[4, letter]
    assert float(outputs["glyph_loss"]) == pytest.approx(float(total) / 2.4, rel=1e-5)
    assert float(outputs["loss"]) == pytest.approx(float(run(row)["loss"] + outputs["glyph_loss"]), rel=1e-5)
    with torch.no_grad():
        nothing = model(**model_inputs(row), glyphs=torch.full((count,), NO_GLYPH))
    assert float(nothing["glyph_loss"]) == 0


def test_images_and_image_tokens_have_to_match() -> None:
    row = row_of([0, 1])
    one_image = row | {"pixel_values": row["pixel_values"][:24], "image_grid_thw": row["image_grid_thw"][:1]}
    with pytest.raises(ValueError, match="a row with 14 image tokens has images for 6"):
        run(one_image)
    no_image = row | {"pixel_values": torch.zeros(0, 384), "image_grid_thw": torch.zeros(0, 3, dtype=torch.long)}
    with pytest.raises(ValueError, match="a row with 14 image tokens has images for 0"):
        run(no_image)
    text_only = no_image | {"input_ids": row["input_ids"].masked_fill(row["input_ids"] == image_token(), 60)}
    with pytest.raises(ValueError, match="a row with 0 image tokens has images for 0"):
        run(text_only)


def image_token() -> int:
    return stock_model().config.image_token_id


def test_without_a_layout_it_is_the_stock_model(tmp_path: Path) -> None:
    row = row_of([0], corrupted=False)
    inputs = {name: row[name] for name in ("input_ids", "position_ids", "pixel_values", "image_grid_thw")}
    model = joint_model()
    with torch.no_grad():
        expected = stock_model()(**inputs).logits
        with model.decoding():
            assert model(**inputs).logits.equal(expected)
        assert hidden_of(model, row).isfinite().all(), "packed rows again after decoding"
    model.save_pretrained(tmp_path)
    loaded, info = GlmOcrForConditionalGeneration.from_pretrained(tmp_path, output_loading_info=True)
    assert type(loaded) is GlmOcrForConditionalGeneration is not JointGlmOcr
    assert loaded.config.architectures == ["GlmOcrForConditionalGeneration"]
    assert not info["missing_keys"]
    with torch.no_grad():
        assert loaded(**inputs).logits.equal(expected)
