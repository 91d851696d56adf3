"""The rows of a batch that are still being written, and the forward that extends them.

The last committed token of a row, its boundary token, is not in the cache yet: every step feeds it first. Right
after prefill it is the last token of the prompt.

Shapes: N live rows, Q tokens of one forward, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import GlmOcrForConditionalGeneration

from gravity_rl.decoding.cache import RaggedCache

#: Attention implementations that take an arbitrary 4D mask.
ATTENTIONS = ("sdpa", "eager")


@dataclass
class LiveRows:
    """State of N unfinished rows.

    The M-RoPE position of a token behind the prompt is its cache slot plus ``rope_offset_N``, on all three axes.
    """

    cache: RaggedCache
    boundary_N: Tensor  # last committed token
    rope_offset_N: Tensor
    written_N: Tensor  # length of the response so far
    row_ids_N: Tensor  # what the noise depends on
    index_N: Tensor  # place in the output

    def __len__(self) -> int:
        return len(self.boundary_N)

    def select(self, rows_M: Tensor) -> LiveRows:
        """The rows ``rows_M`` (indices, possibly repeated); the cache moves to the result."""
        self.cache.select(rows_M)
        return LiveRows(
            cache=self.cache,
            boundary_N=self.boundary_N[rows_M],
            rope_offset_N=self.rope_offset_N[rows_M],
            written_N=self.written_N[rows_M],
            row_ids_N=self.row_ids_N[rows_M],
            index_N=self.index_N[rows_M],
        )


def causal_forward(model: GlmOcrForConditionalGeneration, rows: LiveRows, ids_NQ: Tensor, start: int = 0) -> Tensor:
    """(N, Q, V) logits of tokens that see the cache, the ``start`` slots behind it, and each other causally."""
    slots_NQ = rows.cache.open_window(start, ids_NQ.shape[1])
    return _forward(model, rows, ids_NQ, slots_NQ, last_seen_NQ=slots_NQ)


def draft_forward(model: GlmOcrForConditionalGeneration, rows: LiveRows, ids_NQ: Tensor) -> Tensor:
    """(N, Q, V) logits of a boundary token that sees the cache and of masks that see the whole window as well."""
    slots_NQ = rows.cache.open_window(0, ids_NQ.shape[1])
    last_seen_NQ = slots_NQ[:, -1:].repeat(1, ids_NQ.shape[1])
    last_seen_NQ[:, 0] = slots_NQ[:, 0]
    return _forward(model, rows, ids_NQ, slots_NQ, last_seen_NQ)


def _forward(
    model: GlmOcrForConditionalGeneration, rows: LiveRows, ids_NQ: Tensor, slots_NQ: Tensor, last_seen_NQ: Tensor
) -> Tensor:
    positions_NQ = slots_NQ + rows.rope_offset_N[:, None]
    return model(
        input_ids=ids_NQ,
        attention_mask=to_attention_mask(model, rows.cache.seen_until(last_seen_NQ)),
        position_ids=positions_NQ.expand(3, -1, -1),
        cache=rows.cache,
        use_cache=True,
    ).logits


def check_attention(model: GlmOcrForConditionalGeneration) -> None:
    """Refuse attention implementations that do not take an arbitrary 4D mask.

    Raises:
        ValueError: the text tower uses neither sdpa nor eager attention.
    """
    implementation = model.config.text_config._attn_implementation
    if implementation not in ATTENTIONS:
        raise ValueError(
            f"attn_implementation {implementation!r} of the text tower does not take the masks of block decoding: "
            "load the model with 'sdpa' or 'eager'"
        )


def to_attention_mask(model: GlmOcrForConditionalGeneration, seen: Tensor) -> Tensor:
    """A boolean mask in the form that the model's attention takes: eager adds it to the scores."""
    if model.config.text_config._attn_implementation == "sdpa":
        return seen
    dtype = model.dtype
    return torch.zeros(seen.shape, dtype=dtype, device=seen.device).masked_fill(~seen, torch.finfo(dtype).min)
