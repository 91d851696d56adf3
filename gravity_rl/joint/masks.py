"""Which token of a packed row may see which: one pure function, and the forms in which attention takes it.

A row holds several samples, each laid out as ``[prefix | clean | corrupted 1 | corrupted 2]``. :func:`visible` is the
only definition of the mask (paper section 2). :class:`DenseMask` evaluates it over the whole row and is the reference,
:class:`SampleMasks` attends within each sample by itself (the fast path of a CPU), :class:`FlexMask` hands the function
to FlexAttention (the fast path of a GPU). All three give the same attention.

Shapes: L tokens of the row, S samples, H query heads, G key heads, D head size.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward

PREFIX, CLEAN, CORRUPTED_1, CORRUPTED_2 = range(4)
ATTENTION = "gravity_packed"
MASK_KINDS = ("dense", "sdpa", "flex")


class Layout(NamedTuple):
    """Where each token of a row belongs; all int64 of shape (L,).

    Attributes:
        sample: number of the sample in its row; padding has a number of its own.
        stream: PREFIX, CLEAN, CORRUPTED_1 or CORRUPTED_2.
        position: index in the prefix or in the response.
        block: number of the block of a response token; 0 in the prefix.
    """

    sample: Tensor
    stream: Tensor
    position: Tensor
    block: Tensor


def visible(layout: Layout, query: Tensor, key: Tensor) -> Tensor:
    """Whether tokens ``query`` of a row may attend to tokens ``key`` of it.

    The prefix is causal. The clean stream sees the prefix and is causal in itself. A corrupted token sees the prefix,
    the earlier blocks of the clean stream, and its own block of its own stream in both directions. Nothing else, and
    never another sample.

    Args:
        layout: the row's layout.
        query, key: token indices of the row, of shapes that broadcast.

    Returns:
        Booleans of the broadcast shape.
    """
    stream_q, stream_k = layout.stream[query], layout.stream[key]
    is_earlier = layout.position[key] <= layout.position[query]
    prefix = (stream_k == PREFIX) & ((stream_q != PREFIX) | is_earlier)
    clean = (stream_k == CLEAN) & (stream_q == CLEAN) & is_earlier
    earlier_blocks = (stream_k == CLEAN) & (stream_q > CLEAN) & (layout.block[key] < layout.block[query])
    own_block = (stream_k > CLEAN) & (stream_k == stream_q) & (layout.block[key] == layout.block[query])
    same_sample = layout.sample[query] == layout.sample[key]
    return same_sample & (prefix | clean | earlier_blocks | own_block)


class PackedMask(Protocol):
    """What the text tower's attention is given in place of a mask tensor."""

    def attend(self, module: torch.nn.Module, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        """Attention output (1, L, H, D) of query (1, H, L, D), key and value (1, G, L, D)."""
        ...


@dataclass(frozen=True)
class DenseMask:
    """The reference: one boolean mask over all pairs of tokens."""

    mask: Tensor  # (1, 1, L, L)

    @classmethod
    def of(cls, layout: Layout) -> DenseMask:
        index = torch.arange(len(layout.sample), device=layout.sample.device)
        return cls(visible(layout, index[:, None], index[None, :])[None, None])

    def attend(self, module: torch.nn.Module, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        return sdpa_attention_forward(module, query, key, value, self.mask, scaling=scaling, is_causal=False)[0]


@dataclass(frozen=True)
class SampleMasks:
    """A mask for each sample, whose tokens are neighbours: the cost is that of the samples, not of the row."""

    lengths: list[int]
    masks: list[Tensor]  # (1, 1, length, length) of each sample

    @classmethod
    def of(cls, layout: Layout) -> SampleMasks:
        lengths = torch.unique_consecutive(layout.sample, return_counts=True)[1].tolist()
        masks = []
        for index in torch.arange(len(layout.sample), device=layout.sample.device).split(lengths):
            masks.append(visible(layout, index[:, None], index[None, :])[None, None])
        return cls(lengths, masks)

    def attend(self, module: torch.nn.Module, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        parts = zip(*(tensor.split(self.lengths, dim=2) for tensor in (query, key, value)), self.masks, strict=True)
        return torch.cat(
            [sdpa_attention_forward(module, *part, scaling=scaling, is_causal=False)[0] for part in parts], dim=1
        )


@dataclass(frozen=True)
class FlexMask:
    """FlexAttention, which skips blocks of 128 x 128 pairs without a visible one; compiled on a GPU."""

    mask: BlockMask

    @classmethod
    def of(cls, layout: Layout) -> FlexMask:
        length, device = len(layout.sample), layout.sample.device

        def mask_mod(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
            return visible(layout, query, key)

        return cls(create_block_mask(mask_mod, None, None, length, length, device=device))

    def attend(self, module: torch.nn.Module, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        attention = _compiled_flex() if query.device.type == "cuda" else flex_attention
        output = attention(query, key, value, block_mask=self.mask, scale=scaling, enable_gqa=True)
        return output.transpose(1, 2)


_KINDS: dict[str, Callable[[Layout], PackedMask]] = {
    "dense": DenseMask.of,
    "sdpa": SampleMasks.of,
    "flex": FlexMask.of,
}


def packed_mask(kind: str, layout: Layout) -> PackedMask:
    """The mask of a row in the form ``kind``, one of ``MASK_KINDS``."""
    return _KINDS[kind](layout)


@cache
def _compiled_flex() -> Callable[..., Tensor]:
    return torch.compile(flex_attention, dynamic=False)


def _attention(
    module: torch.nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: PackedMask, scaling: float,
    dropout: float = 0.0, **kwargs: object,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """Attention function of the text tower over a packed row."""
    if dropout:
        raise ValueError(f"attention dropout ({dropout}) is not supported over packed rows")
    return attention_mask.attend(module, query, key, value, scaling), None


# GLM-OCR refuses FlexAttention by its own name; a function registered under another is accepted.
AttentionInterface.register(ATTENTION, _attention)
