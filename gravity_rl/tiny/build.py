"""Builds an untrained tiny GLM-OCR model with its tokenizer and processor, offline.

Everything is made locally: a character-level tokenizer over the corpus of :mod:`gravity_rl.synth` (HTML tags and
LaTeX commands are single tokens), the PIL image processor of GLM-4.6V (no torchvision), and a
``GlmOcrForConditionalGeneration`` whose chat template is the published one for a single turn.
"""

from __future__ import annotations

import math
import string
from dataclasses import dataclass

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models
from transformers import (
    Glm46VImageProcessorPil,
    GlmOcrConfig,
    GlmOcrForConditionalGeneration,
    PreTrainedTokenizerFast,
)

from gravity_rl.processor import GlmOcrImageProcessor
from gravity_rl.synth.formula import COMMANDS

EOS, PAD, MASK, UNK = "<|endoftext|>", "<|pad|>", "<|mask|>", "<|unk|>"
SPECIAL_TOKENS = [
    EOS, PAD, MASK, UNK, "[gMASK]", "<sop>", "<|user|>", "<|assistant|>", "<|system|>",
    "<|begin_of_image|>", "<|end_of_image|>", "<|image|>",
    "<|begin_of_video|>", "<|end_of_video|>", "<|video|>",
]  # fmt: skip
HTML_TOKENS = ["<table>", "</table>", "<thead>", "</thead>", "<tbody>", "</tbody>", "<tr>", "</tr>", "<td", "<th",
               "<td>", "</td>", "<th>", "</th>", ' colspan="', ' rowspan="', '">', "<br>", "\n"]  # fmt: skip
PROMPT_TOKENS = ["Text Recognition:", "Table Recognition:", "Formula Recognition:"]
CHARACTERS = string.ascii_letters + string.digits + string.punctuation + " "

CHAT_TEMPLATE = (
    "[gMASK]<sop>"
    "{%- for message in messages %}"
    "{%- if message.role == 'user' %}<|user|>"
    "{%- elif message.role == 'system' %}<|system|>"
    "{%- elif message.role == 'assistant' %}<|assistant|>{{ '\n' }}{%- endif %}"
    "{%- if message.content is string %}{{ message.content }}"
    "{%- else %}{%- for part in message.content %}"
    "{%- if part.type == 'image' %}<|begin_of_image|><|image|><|end_of_image|>"
    "{%- elif part.type == 'text' %}{{ part.text }}{%- endif %}"
    "{%- endfor %}{%- endif %}"
    "{%- if message.role == 'assistant' %}<|endoftext|>{% endif %}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}<|assistant|>{{ '\n' }}{%- endif %}"
)


@dataclass(frozen=True)
class TinyShape:
    """Sizes of a tiny GLM-OCR; the defaults are those of the shipped checkpoint.

    ``patch_size * merge_size`` is the side of the square that becomes one image token, in pixels.
    """

    hidden_size: int = 128
    intermediate_size: int = 384
    num_layers: int = 4
    num_heads: int = 4
    num_kv_heads: int = 2
    vision_hidden_size: int = 96
    vision_intermediate_size: int = 320
    vision_depth: int = 2
    vision_heads: int = 4
    patch_size: int = 8
    merge_size: int = 2
    max_positions: int = 16384
    max_pixels: int = 1 << 20


def build_tokenizer() -> PreTrainedTokenizerFast:
    """Character-level tokenizer; tags, LaTeX commands and the prompts are single tokens."""
    added = HTML_TOKENS + PROMPT_TOKENS + sorted(COMMANDS)
    vocab: dict[str, int] = {}
    for token in [*SPECIAL_TOKENS, *added, *CHARACTERS]:
        vocab.setdefault(token, len(vocab))
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[], unk_token=UNK, fuse_unk=False))
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in SPECIAL_TOKENS])
    tokenizer.add_tokens([AddedToken(t, special=False, normalized=False) for t in added])
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=EOS, pad_token=PAD, mask_token=MASK, unk_token=UNK,
        padding_side="left", clean_up_tokenization_spaces=False,
        model_input_names=["input_ids", "attention_mask"],
    )  # fmt: skip


def build_processor(shape: TinyShape) -> GlmOcrImageProcessor:
    """Processor with the tiny tokenizer and the PIL image processor."""
    token_area = (shape.patch_size * shape.merge_size) ** 2
    temporal = 2  # the processor's pixel budget counts each pixel once per temporal slot
    image_processor = Glm46VImageProcessorPil(
        patch_size=shape.patch_size,
        merge_size=shape.merge_size,
        temporal_patch_size=temporal,
        size={"shortest_edge": token_area * temporal, "longest_edge": shape.max_pixels * temporal},
        image_mean=[0.5] * 3,
        image_std=[0.5] * 3,
    )
    return GlmOcrImageProcessor(image_processor, build_tokenizer(), chat_template=CHAT_TEMPLATE)


def build_config(shape: TinyShape, tokenizer: PreTrainedTokenizerFast) -> GlmOcrConfig:
    """Model configuration; the three M-RoPE sections must sum to half the head size."""
    head_dim = shape.hidden_size // shape.num_heads
    temporal = head_dim // 8
    height = (head_dim // 2 - temporal) // 2
    width = head_dim // 2 - temporal - height
    ids = tokenizer.convert_tokens_to_ids
    return GlmOcrConfig(
        text_config=dict(
            vocab_size=math.ceil(len(tokenizer) / 8) * 8,
            hidden_size=shape.hidden_size,
            intermediate_size=shape.intermediate_size,
            num_hidden_layers=shape.num_layers,
            num_attention_heads=shape.num_heads,
            num_key_value_heads=shape.num_kv_heads,
            head_dim=head_dim,
            max_position_embeddings=shape.max_positions,
            pad_token_id=tokenizer.pad_token_id,
            eos_token_id=tokenizer.eos_token_id,
            rope_parameters=dict(
                rope_type="default",
                rope_theta=10000.0,
                mrope_section=[temporal, height, width],
                partial_rotary_factor=1.0,
            ),
        ),
        vision_config=dict(
            depth=shape.vision_depth,
            hidden_size=shape.vision_hidden_size,
            num_heads=shape.vision_heads,
            intermediate_size=shape.vision_intermediate_size,
            out_hidden_size=shape.hidden_size,
            patch_size=shape.patch_size,
            temporal_patch_size=2,
            spatial_merge_size=shape.merge_size,
            image_size=512,
        ),
        image_token_id=ids("<|image|>"),
        video_token_id=ids("<|video|>"),
        image_start_token_id=ids("<|begin_of_image|>"),
        image_end_token_id=ids("<|end_of_image|>"),
        video_start_token_id=ids("<|begin_of_video|>"),
        video_end_token_id=ids("<|end_of_video|>"),
    )


def build_tiny(
    shape: TinyShape | None = None, seed: int = 0
) -> tuple[GlmOcrForConditionalGeneration, GlmOcrImageProcessor]:
    """An untrained fp32 model and its processor; the same seed gives the same weights."""
    shape = shape or TinyShape()
    processor = build_processor(shape)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = GlmOcrForConditionalGeneration(build_config(shape, processor.tokenizer))
    model.generation_config.eos_token_id = processor.tokenizer.eos_token_id
    model.generation_config.pad_token_id = processor.tokenizer.pad_token_id
    return model, processor
