"""A packed row gives what stock forwards of its parts give, and no token learns of what it must not see.

Shapes: L tokens of a row, P and R prefix and response tokens of a sample, T = P + R, H hidden size, N vocabulary size.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F
from joint_helpers import (
    BLOCK,
    Alone,
    gradients,
    hidden_of,
    joint_model,
    largest_difference,
    mask_id,
    model_inputs,
    of_sample,
    row_of,
    stock_model,
    supervised_logits,
)
from torch import Tensor

from gravity_rl.joint.masks import CLEAN, CORRUPTED_1, CORRUPTED_2, MASK_KINDS, PREFIX, Layout

TOLERANCE = 1e-5
ALL = [0, 1, 2]
OTHER_ID = 60  # an ordinary character that no sample has


def blocks_of(row: dict[str, Tensor], sample: int, stream: int) -> range:
    return range(int(row["layout"][3, of_sample(row, sample, stream)].max()) + 1)


def largest(difference: Tensor) -> float:
    return float(difference.abs().max())


@pytest.mark.parametrize("mask_kind", MASK_KINDS)
def test_clean_stream_equals_a_plain_causal_forward(mask_kind: str) -> None:
    row = row_of(ALL)
    model = joint_model(mask_kind)
    with torch.no_grad():
        hidden_LH = hidden_of(model, row)
        for sample in ALL:
            plain_TH = Alone.of(sample).plain_hidden()
            packed_TH = torch.cat([hidden_LH[of_sample(row, sample, stream)] for stream in (PREFIX, CLEAN)])
            assert largest(packed_TH - plain_TH) < TOLERANCE
            assert largest(model.lm_head(packed_TH) - stock_model().lm_head(plain_TH)) < TOLERANCE


@pytest.mark.parametrize(
    ("schedule", "mask_kind"), [("uniform", "dense"), ("uniform", "sdpa"), ("uniform", "flex"), ("all", "sdpa")]
)
def test_every_corrupted_block_equals_a_forward_of_its_own(schedule: str, mask_kind: str) -> None:
    row = row_of(ALL, mask_schedule=schedule)
    model = joint_model(mask_kind)
    seen = 0
    with torch.no_grad():
        hidden_LH = hidden_of(model, row)
        for sample in ALL:
            alone = Alone.of(sample)
            for stream in (CORRUPTED_1, CORRUPTED_2) if schedule == "uniform" else (CORRUPTED_1,):
                for block in blocks_of(row, sample, stream):
                    index = of_sample(row, sample, stream, block)
                    start = block * BLOCK
                    assert len(index) == min(BLOCK, len(alone.response) - start)
                    block_KH = alone.block_hidden(start, row["input_ids"][0, index])
                    assert largest(hidden_LH[index] - block_KH) < TOLERANCE
                    assert largest(model.lm_head(hidden_LH[index]) - stock_model().lm_head(block_KH)) < TOLERANCE
                    seen += len(index)
    assert seen == int((row["layout"][1] > CLEAN).sum())


def naive_losses(row: dict[str, Tensor], samples: list[int]) -> tuple[Tensor, Tensor]:
    """The mean losses of a row from stock forwards alone: one for each clean stream and each corrupted block."""
    model, ar, diffusion = stock_model(), [], []
    for sample, number in enumerate(samples):
        alone = Alone.of(number)
        response, start = alone.response, alone.prefix.size(1)
        plain_TN = model.lm_head(alone.plain_hidden())
        losses_R = F.cross_entropy(plain_TN[start - 1 : -1], response, reduction="none")
        ar.append(losses_R[: len(response) - BLOCK + 1])
        for stream in (CORRUPTED_1, CORRUPTED_2):
            corrupted = row["input_ids"][0, of_sample(row, sample, stream)]
            if len(corrupted) and corrupted[0] == mask_id():
                diffusion.append(losses_R[:1])
            for first in range(0, len(corrupted), BLOCK):
                block = corrupted[first : first + BLOCK]
                logits_KN = model.lm_head(alone.block_hidden(first, block))
                for place, target in enumerate(range(first + 1, min(first + BLOCK + 1, len(response)))):
                    hidden_at = min(target, first + BLOCK - 1)  # the next block's first token: its last token's mask
                    if corrupted[hidden_at] == mask_id():
                        diffusion.append(F.cross_entropy(logits_KN[place : place + 1], response[target, None]))
    return torch.cat(ar).mean(), torch.stack([loss.squeeze() for loss in diffusion]).mean()


def test_loss_and_gradients_equal_those_of_separate_stock_forwards() -> None:
    row = row_of(ALL)
    model = joint_model(ar_loss_weight=2.0, diffusion_loss_weight=0.5)
    ar, diffusion = naive_losses(row, ALL)
    naive = (2.0 * ar + 0.5 * diffusion) / 2.5
    loss = model(**model_inputs(row))["loss"]
    assert largest((loss - naive).detach()) < TOLERANCE
    expected, found = gradients(stock_model(), naive), gradients(model, loss)
    assert largest_difference(found, expected) < TOLERANCE
    for part in ("visual.patch_embed", "visual.merger", "language_model.embed_tokens", "lm_head"):
        assert max(float(found[name].abs().max()) for name in found if part in name) > 1e-3, f"no gradient in {part}"


def test_packed_equals_unpacked() -> None:
    """The logits of every sample, and gradients when each sample's means are weighted by its targets."""
    row = row_of(ALL)
    ar_model, diffusion_model = joint_model(diffusion_loss_weight=0.0), joint_model(ar_loss_weight=0.0)
    singles = [row_of([number], draw=number) for number in ALL]
    for stream in (0, 1):
        alone = [supervised_logits(ar_model, single)[stream] for single in singles]
        assert largest(supervised_logits(ar_model, row)[stream] - torch.cat(alone)) < TOLERANCE
    for model, name in ((ar_model, "ar"), (diffusion_model, "diffusion")):
        whole = gradients(model, model(**model_inputs(row))["loss"])
        total = row[name].size(1)
        summed = {key: torch.zeros_like(value) for key, value in whole.items()}
        for single in singles:
            share = single[name].size(1) / total
            for key, value in gradients(model, model(**model_inputs(single))["loss"]).items():
                summed[key] += share * value
        assert largest_difference(whole, summed) < TOLERANCE


def test_mask_kinds_give_the_same_loss_and_gradients() -> None:
    row = row_of(ALL, padded_tokens=200)
    results = {}
    for kind in ("dense", "sdpa"):
        model = joint_model(kind)
        loss = model(**model_inputs(row))["loss"]
        results[kind] = {"loss": loss.detach(), **gradients(model, loss)}
    assert largest_difference(results["dense"], results["sdpa"]) < TOLERANCE
    with torch.no_grad():  # FlexAttention has no gradients on a CPU
        flex = joint_model("flex")(**model_inputs(row))["loss"]
    assert largest(flex - results["dense"]["loss"]) < TOLERANCE


@pytest.mark.skipif(not torch.cuda.is_available(), reason="FlexAttention has gradients on a GPU only")
def test_flex_gradients_equal_dense_ones() -> None:
    row = {name: value.cuda() for name, value in model_inputs(row_of(ALL, padded_tokens=256)).items()}
    results = {}
    for kind in ("dense", "flex"):
        model = joint_model(kind).cuda()
        loss = model(**row)["loss"]
        results[kind] = {"loss": loss.detach(), **gradients(model, loss)}
    assert largest_difference(results["dense"], results["flex"]) < 1e-3  # TF32 products in the kernel


@pytest.mark.parametrize("mask_kind", ["dense", "sdpa"])
def test_padding_changes_nothing(mask_kind: str) -> None:
    row, padded = row_of(ALL), row_of(ALL, padded_tokens=256)
    assert row["input_ids"].size(1) < padded["input_ids"].size(1) == 256
    assert padded["forward_tokens"] == row["forward_tokens"] == row["input_ids"].size(1)
    model = joint_model(mask_kind)
    losses = [model(**model_inputs(each))["loss"] for each in (row, padded)]
    assert largest((losses[0] - losses[1]).detach()) < 1e-6
    assert largest_difference(*(gradients(model, loss) for loss in losses)) < TOLERANCE
    garbage = padded | {"input_ids": padded["input_ids"].clone()}
    garbage["input_ids"][0, row["input_ids"].size(1) :] = OTHER_ID
    with torch.no_grad():
        assert hidden_of(model, garbage)[: row["input_ids"].size(1)].equal(
            hidden_of(model, padded)[: row["input_ids"].size(1)]
        )


def with_token(row: dict[str, Tensor], index: Tensor, token: int = OTHER_ID) -> dict[str, Tensor]:
    """The row with other tokens at some places."""
    assert not bool((row["input_ids"][0, index] == token).any())
    return row | {"input_ids": row["input_ids"].index_fill(1, index, token)}


def clean_changes(row: dict[str, Tensor], sample: int) -> Iterator[tuple[int, dict[str, Tensor]]]:
    """The row with one clean token of a sample changed, for each; the corrupted streams stay."""
    for index in of_sample(row, sample, CLEAN):
        yield int(row["layout"][3, index]), with_token(row, index[None])


@pytest.mark.parametrize("mask_kind", ["dense", "sdpa"])
def test_no_clean_token_at_or_after_a_block_reaches_it(mask_kind: str) -> None:
    row = row_of([1, 0])
    model = joint_model(mask_kind)
    with torch.no_grad():
        before = hidden_of(model, row)
        for changed_block, changed in clean_changes(row, 1):
            difference_L = (hidden_of(model, changed) - before).abs().amax(1)
            for stream in (CORRUPTED_1, CORRUPTED_2):
                for block in blocks_of(row, 1, stream):
                    in_block = difference_L[of_sample(row, 1, stream, block)]
                    if block <= changed_block:
                        assert float(in_block.max()) == 0, f"block {block} sees a clean token of {changed_block}"
                    else:
                        assert float(in_block.min()) > 1e-5, f"block {block} does not see block {changed_block}"


def test_the_corrupted_streams_do_not_see_each_other() -> None:
    row = row_of([0])
    model = joint_model()
    with torch.no_grad():
        before = hidden_of(model, row)
        for stream in (CORRUPTED_1, CORRUPTED_2):
            for block in blocks_of(row, 0, stream):
                own = of_sample(row, 0, stream, block)
                changed_L = (hidden_of(model, with_token(row, own[:1])) - before).abs().amax(1) > 0
                assert changed_L.nonzero().flatten().equal(own), "a block is bidirectional, and seen by itself only"


@pytest.mark.parametrize("mask_kind", ["dense", "sdpa"])
def test_no_sample_of_a_row_reaches_another(mask_kind: str) -> None:
    row = row_of(ALL)
    model = joint_model(mask_kind)
    layout = Layout(*row["layout"])
    patches = row["image_grid_thw"].prod(-1).tolist()
    with torch.no_grad():
        before = hidden_of(model, row)
        for sample in ALL:
            ordinary = (layout.sample == sample) & (row["input_ids"][0] != model.config.image_token_id)
            ids = row["input_ids"].masked_fill(ordinary, OTHER_ID)
            pixels = [part.clone() for part in row["pixel_values"].split(patches)]
            pixels[sample] = pixels[sample].flip(0)
            changed = hidden_of(model, row | {"input_ids": ids, "pixel_values": torch.cat(pixels)})
            difference_L = (changed - before).abs().amax(1)
            assert float(difference_L[layout.sample != sample].max()) < 1e-6
            assert float(difference_L[layout.sample == sample].max()) > 1e-2


@pytest.mark.parametrize("settings", [{}, {"mask_schedule": "all"}, {"random_phase": True, "seed": 2}])
def test_a_target_never_influences_what_predicts_it(settings: dict[str, object]) -> None:
    """Change a response token wherever the row shows it: the logits that predict it stay."""
    row = row_of([1, 0], supervise_every_eos=True, **settings)
    model = joint_model()
    layout = Layout(*row["layout"])
    clean = of_sample(row, 1, CLEAN)
    ar, diffusion = (row[name][0][layout.sample[row[name][0]] == 1] for name in ("ar", "diffusion"))
    assert len(ar) == len(diffusion) == len(clean)
    with torch.no_grad():
        before = hidden_of(model, row)
        for position in range(len(clean)):
            shown = (layout.sample == 1) & (layout.stream >= CLEAN) & (layout.position == position)
            index = (shown & (row["input_ids"][0] != mask_id())).nonzero().flatten()
            after = hidden_of(model, with_token(row, index))
            in_prefix = layout.stream[diffusion] == PREFIX
            (denoiser,) = diffusion[
                in_prefix if position == 0 else ~in_prefix & (layout.position[diffusion] == position - 1)
            ]
            for predictor in (ar[position], denoiser):
                assert after[predictor].equal(before[predictor])
            assert not after[clean].equal(before[clean])


def test_prefix_is_shared_and_not_corrupted() -> None:
    """The streams change nothing in the prefix, which is computed once."""
    whole = row_of([0])
    only_ar = row_of([0], corrupted=False)
    prefix = of_sample(whole, 0, PREFIX)
    assert whole["input_ids"][0, prefix].equal(only_ar["input_ids"][0, prefix])
    assert int((whole["layout"][1] == PREFIX).sum()) == len(prefix) == Alone.of(0).prefix.size(1)
    with torch.no_grad():
        hidden = [hidden_of(joint_model(), row)[: len(prefix)] for row in (whole, only_ar)]
    assert largest(hidden[0] - hidden[1]) < 1e-6
