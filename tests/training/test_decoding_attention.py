"""The faster attention, norms and positions of decoding against those of transformers."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import nullcontext

import pytest
import torch
from decoding_helpers import varied_policy
from torch import Tensor, nn
from transformers import DynamicCache
from transformers.models.glm_ocr.modeling_glm_ocr import GlmOcrRMSNorm, GlmOcrTextAttention, apply_rotary_pos_emb

from gravity_rl.decoding import attention
from gravity_rl.decoding.attention import fast_text_tower


def faster_modules(model: nn.Module) -> Iterator[nn.Module]:
    return (module for module in model.modules() if isinstance(module, GlmOcrRMSNorm | GlmOcrTextAttention))


def hidden_states(rows: int, width: int, faster: bool, dtype: torch.dtype, autocast: bool = False) -> Tensor:
    """Of the text tower, for tokens that see two cached ones, themselves and each other."""
    model = copy.deepcopy(varied_policy()[0]).to(dtype)
    tower = model.model.language_model
    generator = torch.Generator().manual_seed(rows * width)
    ids = torch.randint(3, 60, (rows, width + 2), generator=generator)
    visible = torch.ones(rows, 1, width, width + 2, dtype=torch.bool)
    visible[:, :, 0, 3:] = False
    context = fast_text_tower(model) if faster else nullcontext()
    lower = torch.autocast("cpu", torch.bfloat16) if autocast else nullcontext()
    with torch.no_grad(), lower:
        cache = DynamicCache()
        tower(input_ids=ids[:, :2], cache=cache, use_cache=True)
        with context:
            mask = attention.to_attention_mask(model, visible)
            positions = torch.arange(2, width + 2).expand(3, rows, -1)
            arguments = {"attention_mask": mask, "position_ids": positions, "cache": cache, "use_cache": True}
            return tower(input_ids=ids[:, 2:], **arguments).last_hidden_state


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("width", [1, 5, 70])  # beyond what batched products are used for
def test_same_states_in_fp32(rows: int, width: int) -> None:
    faster, plain = (hidden_states(rows, width, kind, torch.float32) for kind in (True, False))
    torch.testing.assert_close(faster, plain, atol=2e-5, rtol=1e-5)
    assert plain.std() > 0.1


@pytest.mark.parametrize("autocast", [False, True])
def test_same_states_in_bf16(autocast: bool) -> None:
    """Up to what attention rounds: norms and positions are those of transformers."""
    dtype = torch.float32 if autocast else torch.bfloat16
    faster, plain, exact = (
        hidden_states(3, 5, kind, of_weights, cast)
        for kind, of_weights, cast in ((True, dtype, autocast), (False, dtype, autocast), (False, torch.float32, False))
    )
    error, usual = ((states.float() - exact).abs().mean() for states in (faster, plain))
    assert 0 < error < 1.3 * usual


@pytest.mark.parametrize("size", [2.0, 40.0])  # scores beyond the range of fp16
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_attention_rounds_as_sdpa_does(dtype: torch.dtype, size: float) -> None:
    """From which the trainer's log-probabilities come."""
    generator = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(4, heads, 9, 64, generator=generator) for heads in (4, 2, 2))
    query, key, value = (size * query).to(dtype), (size * key).to(dtype), value.to(dtype)
    mask = torch.zeros(9, 9, dtype=dtype).masked_fill_(torch.ones(9, 9).triu(1).bool(), torch.finfo(dtype).min)
    output, _ = attention._attention(nn.Module(), query, key, value, mask.repeat(4, 1, 2, 1))
    keys, values = (states.repeat_interleave(2, 1) for states in (key, value))
    expected = nn.functional.scaled_dot_product_attention(query, keys, values, attn_mask=mask)
    assert (output.transpose(1, 2) - expected).abs().max() < 1e-5


def test_norms_and_positions_are_equal_to_the_last_bit() -> None:
    generator = torch.Generator().manual_seed(0)
    norm = GlmOcrRMSNorm(48, eps=1e-5)
    norm.weight.data.normal_(generator=generator)
    states = 3 * torch.randn(4, 7, 48, generator=generator)
    torch.testing.assert_close(attention._rms_norm(norm, states), norm(states), atol=1e-7, rtol=3e-7)
    for width in (16, 8):  # all of a head, or a part
        angles = torch.randn(4, 7, width // 2, generator=generator).repeat_interleave(2, -1)
        query, key = torch.randn(4, 7, 6, 16, generator=generator), torch.randn(4, 7, 2, 16, generator=generator)
        turns = torch.complex(angles.cos()[..., ::2], angles.sin()[..., ::2])[:, :, None]
        expected = apply_rotary_pos_emb(query.transpose(1, 2), key.transpose(1, 2), angles.cos(), angles.sin())
        for heads, turned in zip((query, key), expected, strict=True):
            for states in (heads, heads.mT.contiguous().mT, nn.functional.pad(heads, (0, 1))[..., :-1]):  # any layout
                torch.testing.assert_close(attention._turn(states, turns).transpose(1, 2), turned, atol=3e-7, rtol=3e-7)


@pytest.mark.parametrize("fails", [False, True])
def test_the_model_is_as_before_afterwards(fails: bool) -> None:
    model, _ = varied_policy()
    with pytest.raises(KeyError) if fails else nullcontext(), fast_text_tower(model):
        assert all("forward" in vars(module) for module in faster_modules(model.model.language_model))
        assert not any("forward" in vars(module) for module in faster_modules(model.model.visual))
        if fails:
            raise KeyError
    assert not any("forward" in vars(module) for module in faster_modules(model))
    assert model.config.text_config._attn_implementation == "sdpa"


def test_modules_of_other_types_or_with_a_forward_of_their_own_keep_it() -> None:
    class Scaled(GlmOcrRMSNorm):
        """Not what the checkpoint has."""

    model, _ = varied_policy()
    tower = model.model.language_model
    before, dispatched = tower.norm, tower.layers[0].self_attn
    own = dispatched.forward
    tower.norm = Scaled(before.weight.shape[0], before.variance_epsilon)
    dispatched.forward = own  # as libraries set it that move weights between devices
    try:
        with fast_text_tower(model):
            assert "forward" not in vars(tower.norm) and dispatched.forward is own
            assert "forward" in vars(tower.layers[0].input_layernorm)
        assert dispatched.forward is own
    finally:
        tower.norm = before
        del dispatched.forward
