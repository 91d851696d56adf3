"""Models, prompts and manufactured drafts for ``decoding_gpu.py``, which says what they are for.

Shapes: R rows, P prompt tokens, T positions of a response, N slots of a round, B drafts, W = B + 1, Q positions, V
vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from transformers import GlmOcrConfig, GlmOcrForConditionalGeneration

from gravity_rl.decoding import Decoded, noise, self_spec
from gravity_rl.decoding.rows import Rows

BLOCK = 32
FLAT = 1e-3  # factor of the head's weights
FORCED, CERTAIN = 1e5, 1e4  # logits of forced drafts, and noise of forced ends
GROUP = 28  # completions of a prompt


@dataclass(frozen=True)
class Size:
    """A model and its prompts; ``grid`` is height and width of the image in patches."""

    config: GlmOcrConfig
    grid: tuple[int, int]
    end_id: int
    mask_id: int
    batches: tuple[int, ...]
    max_new_tokens: int
    ragged_rows: int


def full_size() -> Size:
    """The published configuration of zai-org/GLM-OCR (the class has other defaults) and a crop of 784 x 980 pixels."""
    text = {
        "vocab_size": 59392,
        "hidden_size": 1536,
        "intermediate_size": 4608,
        "num_hidden_layers": 16,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "rope_parameters": rope([16, 24, 24]),
    }
    vision = {"hidden_size": 1024, "depth": 24, "num_heads": 16, "intermediate_size": 4096, "out_hidden_size": 1536}
    return Size(GlmOcrConfig(text_config=text, vision_config=vision), (56, 70), 59246, 59282, (1, 8, 42, 64), 512, 42)


def tiny_size() -> Size:
    text = {
        "vocab_size": 320,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 16,
        "rope_parameters": rope([2, 3, 3]),
    }
    vision = {"hidden_size": 32, "depth": 1, "num_heads": 2, "intermediate_size": 64, "out_hidden_size": 32}
    names = ("image_token_id", "video_token_id", "image_start_token_id", "image_end_token_id", "video_start_token_id",
             "video_end_token_id")  # fmt: skip
    ids = {name: 300 + place for place, name in enumerate(names)}
    return Size(GlmOcrConfig(text_config=text, vision_config=vision, **ids), (4, 6), 310, 311, (1, 3), 24, 3)


def rope(sections: list[int]) -> dict[str, Any]:
    return {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": sections, "partial_rotary_factor": 1.0}


def build_model(size: Size, device: torch.device, dtype: torch.dtype) -> GlmOcrForConditionalGeneration:
    torch.manual_seed(0)
    with device:
        model = GlmOcrForConditionalGeneration._from_config(size.config, dtype=dtype).eval()
    with torch.no_grad():
        model.lm_head.weight.mul_(FLAT)
    return model


def make_inputs(size: Size, rows: int, device: torch.device) -> dict[str, Tensor]:
    """Prompts of one image and a few tokens around it; ``GROUP`` rows each have the same one."""
    config, vision = size.config, size.config.vision_config
    height, width = size.grid
    image_tokens = height * width // vision.spatial_merge_size**2
    start, image, end = config.image_start_token_id, config.image_token_id, config.image_end_token_id
    ids_P = torch.tensor([1, 2, 3, start, *[image] * image_tokens, end, *range(4, 16)])
    generator = torch.Generator().manual_seed(0)
    patch_values = vision.in_channels * vision.temporal_patch_size * vision.patch_size**2
    prompts = -(-rows // GROUP)
    images = torch.randn(prompts, height * width, patch_values, generator=generator)
    prompt_of_R = torch.arange(rows) // GROUP
    inputs = {
        "input_ids": ids_P.repeat(rows, 1),
        "attention_mask": torch.ones(rows, len(ids_P), dtype=torch.long),
        "mm_token_type_ids": (ids_P == image).long().repeat(rows, 1),
        "pixel_values": images[prompt_of_R].flatten(0, 1),
        "image_grid_thw": torch.tensor([[1, height, width]] * rows),
    }
    return {name: value.to(device) for name, value in inputs.items()}


# --- forced ends and forced drafts ---


def probability_for(accepted: float, window: int = BLOCK) -> float:
    """p with p + p² + … + p^window = accepted."""
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if sum(middle**k for k in range(1, window + 1)) < accepted else (low, middle)
    return high


@contextmanager
def forced_ends(lengths_R: Tensor, end_id: int) -> Iterator[None]:
    """Row r writes ``lengths_R[r]`` tokens, if the limit allows, the last of them the end token."""
    drawn = noise.gumbel_noise

    def with_ends(seed: int, row_ids_N: Tensor, positions_NQ: Tensor, vocab_size: int) -> Tensor:
        noise_NQV = drawn(seed, row_ids_N, positions_NQ, vocab_size)
        is_last_NQ = positions_NQ == lengths_R[row_ids_N][:, None] - 1
        noise_NQV[..., end_id] = torch.where(is_last_NQ, CERTAIN, -CERTAIN)
        return noise_NQV

    with patch.object(noise, "gumbel_noise", with_ends):
        yield


@contextmanager
def forced_drafts(plain: Decoded, probability: float, vocab_size: int) -> Iterator[None]:
    """Draft forwards propose the tokens of ``plain``, each with this probability and another token otherwise."""
    real = self_spec.draft_logits
    rows, longest = len(plain.sequences), max(map(len, plain.sequences))
    device = plain.sequences[0].device
    targets_RT = torch.zeros(rows + 1, longest, dtype=torch.long)  # one row more for idle slots
    for row, ids in enumerate(plain.sequences):
        targets_RT[row, : len(ids)] = ids.cpu()
    is_wrong_RT = torch.rand(targets_RT.shape, generator=torch.Generator().manual_seed(1)) >= probability
    targets_RT = ((targets_RT + is_wrong_RT) % vocab_size).to(device)

    def forced(model: GlmOcrForConditionalGeneration, live: Rows, block_size: int, mask_id: int) -> Tensor:
        logits_NWV = real(model, live, block_size, mask_id)
        places_NB = live.written_N[:, None] + torch.arange(1, block_size + 1, device=device)
        targets_NB = targets_RT[live.index_N[:, None], places_NB.clamp(max=longest - 1)]
        logits_NWV[:, 1:].scatter_(2, targets_NB[..., None], FORCED)
        return logits_NWV

    with patch.object(self_spec, "draft_logits", forced):
        yield


def ragged_lengths(rows: int, mean: int, longest: int) -> list[int]:
    """Log-normal lengths with a long tail, as those of OCR crops are; sigma is 1."""
    drawn_R = torch.randn(rows, generator=torch.Generator().manual_seed(2))
    lengths_R = (drawn_R + math.log(mean) - 0.5).exp().round().long().clamp(2, longest)
    return lengths_R.tolist()
