"""Attention of the decoding forwards: a model loaded with sdpa runs it over whole groups of query heads.

Transformers' sdpa attention repeats keys and values for every query head as soon as there is a mask, in every forward
and layer. Here the query heads that share a key/value head become queries of that head instead: the same products, and
the cache is read where it lies. A model loaded with eager attention keeps it, which is the slow reference.

Shapes: N rows, H query heads, J key/value heads, G = H / J, Q queries, K visible places, D head size.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, GlmOcrForConditionalGeneration

#: Attention implementations that decoding works with: their masks may be arbitrary.
ATTENTIONS = ("sdpa", "eager")
_GROUPED = "gravity_grouped"
_switching = threading.Lock()


def check_attention(model: GlmOcrForConditionalGeneration) -> None:
    """Refuse attention implementations that do not take an arbitrary 4D mask.

    Raises:
        ValueError: the text tower uses neither sdpa nor eager attention.
        RuntimeError: another call is decoding with this model.
    """
    implementation = model.config.text_config._attn_implementation
    if implementation == _GROUPED:
        raise RuntimeError("the model is decoding already, in another thread or inside of a call: one call at a time")
    if implementation not in ATTENTIONS:
        raise ValueError(
            f"attn_implementation {implementation!r} of the text tower does not take the masks of block decoding: "
            "load the model with 'sdpa' or 'eager'"
        )


@contextmanager
def grouped_attention(model: GlmOcrForConditionalGeneration) -> Iterator[None]:
    """Grouped sdpa in the text tower, in place of sdpa, for as long as the context lasts; see ``check_attention``."""
    config = model.config.text_config
    with _switching:
        check_attention(model)
        before = config._attn_implementation
        if before == "sdpa":
            config._attn_implementation = _GROUPED
    try:
        yield
    finally:
        config._attn_implementation = before


def to_attention_mask(model: GlmOcrForConditionalGeneration, seen_N1QK: Tensor) -> Tensor:
    """What the model's attention adds to its scores; (N, 1, G·Q, K), the queries G times, for grouped attention.

    Sdpa would make the same of a boolean mask, in every layer.
    """
    config = model.config.text_config
    if config._attn_implementation == _GROUPED:
        seen_N1QK = seen_N1QK.repeat(1, 1, config.num_attention_heads // config.num_key_value_heads, 1)
    dtype = model.get_input_embeddings().weight.dtype  # of the text tower; the vision tower may have another one
    zeros_N1QK = torch.zeros(seen_N1QK.shape, dtype=dtype, device=seen_N1QK.device)
    return zeros_N1QK.masked_fill_(~seen_N1QK, torch.finfo(dtype).min)


def _attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attention as transformers calls it.

    Args:
        module: the layer.
        query: (N, H, Q, D).
        key: (N, J, K, D).
        value: (N, J, K, D).
        attention_mask: (N, 1, G·Q, K), added to the scores: the mask of the queries G times.
        scaling: of the scores.
        **kwargs: not used; there is no dropout in decoding.

    Returns:
        (N, Q, H, D), and no weights.
    """
    rows, heads, width, size = query.shape
    packed = query.reshape(rows, key.shape[1], -1, size)  # (N, J, G·Q, D): the heads of a group are neighbours
    dtype = value.dtype  # autocast leaves queries and keys in fp32, where sdpa casts
    output = nn.functional.scaled_dot_product_attention(
        packed.to(dtype), key.to(dtype), value, attn_mask=attention_mask.to(dtype), scale=scaling
    )
    return output.reshape(rows, heads, width, size).transpose(1, 2), None


AttentionInterface.register(_GROUPED, _attention)
