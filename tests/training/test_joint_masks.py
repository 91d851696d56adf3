"""Who sees whom: the mask against a rule written out by hand, and the three forms of it against each other.

Shapes: L tokens of a row, H query heads, G key heads, D head size.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from gravity_rl.joint.corruption import corrupted_streams, draw_corruption
from gravity_rl.joint.masks import ATTENTION, CLEAN, MASK_KINDS, PREFIX, Layout, packed_mask, visible
from gravity_rl.joint.rows import PackedSample, assemble, pack_sample

MASK_ID = 7


def make_sample(
    prefix: int, length: int, block_size: int, schedule: str, random_phase: bool, seed: int
) -> PackedSample:
    """A sample whose tokens all differ: the prefix counts from 100, the response from 1000."""
    generator = torch.Generator().manual_seed(seed)
    corruption = draw_corruption(length, block_size, schedule, random_phase=random_phase, generator=generator)
    positions = torch.arange(prefix).expand(3, -1)
    response = torch.arange(1000, 1000 + length)
    streams = corrupted_streams(corruption)
    return pack_sample(torch.arange(100, 100 + prefix), positions, response, corruption, streams, length, MASK_ID)


SAMPLES = st.builds(
    make_sample,
    prefix=st.integers(1, 5),
    length=st.integers(1, 14),
    block_size=st.integers(1, 6),
    schedule=st.sampled_from(["uniform", "all"]),
    random_phase=st.booleans(),
    seed=st.integers(0, 2**32),
)


def full_mask(layout: Layout) -> Tensor:
    """(L, L) of the only definition."""
    index = torch.arange(len(layout.sample))
    return visible(layout, index[:, None], index[None, :])


def by_hand(layout: Layout) -> list[list[bool]]:
    """The published rule, token by token."""
    tokens = list(zip(*(part.tolist() for part in layout), strict=True))

    def may_see(query: tuple[int, ...], key: tuple[int, ...]) -> bool:
        (sample_q, stream_q, place_q, block_q), (sample_k, stream_k, place_k, block_k) = query, key
        if sample_q != sample_k:
            return False
        if stream_q == PREFIX:
            return stream_k == PREFIX and place_k <= place_q
        if stream_k == PREFIX:
            return True
        if stream_q == CLEAN:
            return stream_k == CLEAN and place_k <= place_q
        if stream_k == CLEAN:
            return block_k < block_q
        return stream_k == stream_q and block_k == block_q

    return [[may_see(query, key) for key in tokens] for query in tokens]


@settings(max_examples=40, deadline=None)
@given(samples=st.lists(SAMPLES, min_size=1, max_size=3), padding=st.integers(0, 5))
def test_visible_is_the_published_rule(samples: Sequence[PackedSample], padding: int) -> None:
    row = assemble(samples, sum(len(sample.ids) for sample in samples) + padding)
    layout = Layout(*row["layout"])
    assert full_mask(layout).tolist() == by_hand(layout)


@settings(max_examples=80, deadline=None)
@given(sample=SAMPLES)
def test_no_path_leads_from_a_target_to_what_predicts_it(sample: PackedSample) -> None:
    """Through any number of layers: whatever a predictor may see, and what that may see, never shows the target."""
    reachable = full_mask(Layout(*sample.layout)).float()
    for _ in range(len(sample.ids).bit_length()):
        reachable = (reachable @ reachable > 0).float()
    for predictor, target in [*sample.ar.T.tolist(), *sample.diffusion.T.tolist()]:
        shown = sample.ids[reachable[predictor].bool()]
        assert not bool((shown == target).any())


@settings(max_examples=60, deadline=None)
@given(sample=SAMPLES)
def test_a_drafting_window_sees_its_prefix_and_earlier_blocks(sample: PackedSample) -> None:
    """What a prediction of a corrupted stream is made from: prefix, all earlier blocks, the stream's own block."""
    layout = Layout(*sample.layout)
    mask = full_mask(layout)
    for predictor in sample.diffusion[0].tolist():
        if layout.stream[predictor] == PREFIX:
            continue
        seen = set(sample.ids[mask[predictor] & (layout.stream == CLEAN)].tolist())
        block = layout.block[predictor]
        earlier = (layout.stream == CLEAN) & (layout.block < block)
        assert seen == set(sample.ids[earlier].tolist())
        assert MASK_ID in sample.ids[mask[predictor] & (layout.stream == layout.stream[predictor])].tolist()


def packed_attention(kind: str, layout: Layout, parts: Sequence[Tensor]) -> Tensor:
    module = torch.nn.Module()
    module.num_key_value_groups = 2  # type: ignore[assignment]
    return packed_mask(kind, layout).attend(module, *parts, scaling=0.3)


@pytest.fixture(scope="module")
def long_layout() -> Layout:
    """Some 400 tokens, so that FlexAttention has several blocks of 128 and skips some."""
    samples = [make_sample(30, 40, 8, "uniform", True, 1), make_sample(50, 60, 8, "uniform", False, 2)]
    return Layout(*assemble(samples, 400)["layout"])


def test_the_three_forms_give_the_same_attention(long_layout: Layout) -> None:
    length = len(long_layout.sample)
    generator = torch.Generator().manual_seed(0)
    parts = [torch.randn(1, heads, length, 8, generator=generator) for heads in (4, 2, 2)]
    mask = torch.tensor(by_hand(long_layout))
    keys, values = (part.repeat_interleave(2, dim=1) for part in parts[1:])
    scores = (parts[0] @ keys.mT * 0.3).masked_fill(~mask, float("-inf"))
    expected = (scores.softmax(-1) @ values).transpose(1, 2)
    for kind in MASK_KINDS:
        assert torch.allclose(packed_attention(kind, long_layout, parts), expected, atol=1e-5), kind


def test_dense_and_sample_masks_give_the_same_gradients(long_layout: Layout) -> None:
    generator = torch.Generator().manual_seed(1)
    parts = [torch.randn(1, heads, len(long_layout.sample), 8, generator=generator) for heads in (4, 2, 2)]
    found = []
    for kind in ("dense", "sdpa"):
        leaves = [part.clone().requires_grad_() for part in parts]
        packed_attention(kind, long_layout, leaves).square().sum().backward()
        found.append([leaf.grad for leaf in leaves])
    for left, right in zip(*found, strict=True):
        assert torch.allclose(left, right, atol=1e-5)


def test_flex_skips_pairs_of_blocks_that_see_nothing(long_layout: Layout) -> None:
    mask = packed_mask("flex", long_layout).mask  # type: ignore[attr-defined]
    expected = torch.nn.functional.pad(full_mask(long_layout), (0, 512 - 400, 0, 512 - 400))
    blocks = expected.view(4, 128, 4, 128).any(dim=3).any(dim=1)
    assert mask.to_dense()[0, 0].bool().equal(blocks)
    assert not bool(blocks.all())


def test_dropout_is_refused(long_layout: Layout) -> None:
    from transformers import AttentionInterface

    parts = [torch.zeros(1, heads, len(long_layout.sample), 8) for heads in (4, 2, 2)]
    attention = AttentionInterface._global_mapping[ATTENTION]
    with pytest.raises(ValueError, match=r"dropout \(0\.1\)"):
        attention(torch.nn.Module(), *parts, packed_mask("dense", long_layout), scaling=1.0, dropout=0.1)
