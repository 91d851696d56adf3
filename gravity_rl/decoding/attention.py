"""Attention and norms of the decoding forwards: a model loaded with sdpa runs faster ones of the same values.

Transformers' sdpa attention repeats keys and values for every query head as soon as there is a mask, in every forward
and layer. Here the query heads that share a key/value head become queries of that head instead: the same products, and
the cache is read where it lies. In fp32, norms are torch's own and positions turn pairs of a head as complex numbers. A
model loaded with eager attention keeps all that transformers does, which is the slow reference.

Shapes: N rows, H query heads, J key/value heads, G = H / J, Q queries, K visible places, D head size, P pairs of a head
that are turned.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, GlmOcrForConditionalGeneration
from transformers.cache_utils import Cache
from transformers.models.glm_ocr.modeling_glm_ocr import GlmOcrRMSNorm, GlmOcrTextAttention, apply_rotary_pos_emb

#: Attention implementations that decoding works with: their masks may be arbitrary.
ATTENTIONS = ("sdpa", "eager")
_GROUPED = "gravity_grouped"
_SHORT = 64  # queries of a row for which matrix products of a batch in fp32 are faster on a CPU than its sdpa kernel
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
def fast_text_tower(model: GlmOcrForConditionalGeneration) -> Iterator[None]:
    """Grouped attention, faster norms and positions in a text tower with sdpa, for as long as the context lasts; see
    ``check_attention``."""
    config, faster = model.config.text_config, {}
    with _switching:
        check_attention(model)
        before = config._attn_implementation
        if before == "sdpa":
            config._attn_implementation = _GROUPED
            modules = [module for module in model.model.language_model.modules() if "forward" not in vars(module)]
            faster = {module: _FASTER[type(module)] for module in modules if type(module) in _FASTER}
    try:
        for module, forward in faster.items():
            module.forward = partial(forward, module)
        yield
    finally:
        for module in faster:
            vars(module).pop("forward", None)  # not there yet if interrupted above
        config._attn_implementation = before


def _rms_norm(module: GlmOcrRMSNorm, hidden_states: Tensor) -> Tensor:
    """Torch's own in fp32. In other types it rounds once where transformers, and so the trainer, rounds twice."""
    if hidden_states.dtype == module.weight.dtype == torch.float32:
        return nn.functional.rms_norm(hidden_states, module.weight.shape, module.weight, module.variance_epsilon)
    return GlmOcrRMSNorm.forward(module, hidden_states)


def _text_attention(
    module: GlmOcrTextAttention,
    hidden_states: Tensor,
    position_embeddings: tuple[Tensor, Tensor],
    attention_mask: Tensor,
    cache: Cache,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """The layer's attention with queries and keys turned by complex numbers, of which each pair of a head is one."""
    projections = (module.q_proj, module.k_proj, module.v_proj)
    by_head = (*hidden_states.shape[:2], -1, module.head_dim)
    query_NQHD, key_NQJD, value_NQJD = (projection(hidden_states).view(by_head) for projection in projections)
    cos, sin = position_embeddings  # (N, Q, 2·P), of each pair twice
    if query_NQHD.dtype == cos.dtype == torch.float32:
        turns_NQ1P = torch.complex(cos[..., ::2], sin[..., ::2])[:, :, None]
        query, key = (_turn(heads, turns_NQ1P).transpose(1, 2) for heads in (query_NQHD, key_NQJD))
    else:
        query, key = apply_rotary_pos_emb(query_NQHD.transpose(1, 2), key_NQJD.transpose(1, 2), cos, sin)
    keys, values = cache.update(key, value_NQJD.transpose(1, 2), module.layer_idx)
    output, _ = _attention(module, query, keys, values, attention_mask, module.scaling)
    return module.o_proj(output.flatten(2)), None


def _turn(heads_NQHD: Tensor, turns_NQ1P: Tensor) -> Tensor:
    """(N, Q, H, D) with the first P pairs of each head, as complex numbers, times the turns of their position."""
    width = 2 * turns_NQ1P.shape[-1]
    pairs = torch.view_as_complex(heads_NQHD[..., :width].contiguous().unflatten(-1, (-1, 2)))
    turned = torch.view_as_real(pairs * turns_NQ1P).flatten(-2)
    return turned if width == heads_NQHD.shape[-1] else torch.cat([turned, heads_NQHD[..., width:]], -1)


#: By the type that they take the place of.
_FASTER: dict[type[nn.Module], Callable[..., Any]] = {GlmOcrRMSNorm: _rms_norm, GlmOcrTextAttention: _text_attention}


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
    dtype = value.dtype  # autocast leaves queries and keys in fp32, where sdpa casts
    packed = query.reshape(rows, key.shape[1], -1, size).to(dtype)  # (N, J, G·Q, D): a group's heads are neighbours
    key, mask = key.to(dtype), attention_mask.to(dtype)
    if query.device.type == "cpu" and dtype == torch.float32 and rows > 1 and width <= _SHORT:
        scores = (packed @ key.mT).mul_(size**-0.5 if scaling is None else scaling).add_(mask)
        output = scores.softmax(-1) @ value
    else:
        output = nn.functional.scaled_dot_product_attention(packed, key, value, attn_mask=mask, scale=scaling)
    return output.reshape(rows, heads, width, size).transpose(1, 2), None


AttentionInterface.register(_GROUPED, _attention)
