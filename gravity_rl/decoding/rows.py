"""The rows that are being written, and the forwards that extend them.

Rows sit in slots: live ones in slots 0 … n - 1, what is behind them is idle. A round works on the first N slots, N ≥ n;
what it computes for idle ones is thrown away. So the shapes of a round depend on N alone, all state is updated in
place, and a device may replay a captured round. The last committed token of a row, its boundary token, is not in the
cache yet: every step feeds it first. Right after prefill it is the last token of the prompt.

Shapes: L slots, N slots of a round, M moved or new rows, D prompts, Q tokens of one forward, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from torch import Tensor
from transformers import GlmOcrForConditionalGeneration

from gravity_rl.decoding.attention import to_attention_mask
from gravity_rl.decoding.cache import RaggedCache


@dataclass
class Rows:
    """State of the first slots: all L, or the N of a round, which share memory with them.

    The M-RoPE position of a token behind the prompt is its cache place plus ``rope_offset_N``, on all three axes.
    """

    cache: RaggedCache
    boundary_N: Tensor  # last committed token
    rope_offset_N: Tensor
    written_N: Tensor  # length of the response so far
    row_ids_N: Tensor  # what the noise depends on
    index_N: Tensor  # place in the output
    live_N: Tensor  # bool

    @staticmethod
    def empty(cache: RaggedCache, idle_index: int) -> Rows:
        """L idle slots; what they write goes to the output place ``idle_index``."""
        zeros_L = cache.lengths_L.new_zeros
        slots = cache.num_slots
        return Rows(
            cache=cache,
            boundary_N=zeros_L(slots),
            rope_offset_N=zeros_L(slots),
            written_N=zeros_L(slots),
            row_ids_N=zeros_L(slots),
            index_N=zeros_L(slots).fill_(idle_index),
            live_N=zeros_L(slots).bool(),
        )

    def __len__(self) -> int:
        return len(self.boundary_N)

    @property
    def lengths_N(self) -> Tensor:
        """Tokens of each row that are in the cache."""
        return self.cache.lengths_L[: len(self)]

    def _tensors(self) -> list[Tensor]:
        return [getattr(self, field.name) for field in fields(self) if field.name != "cache"]

    def first(self, count: int) -> Rows:
        """A view of the first slots."""
        return Rows(self.cache, *(tensor[:count] for tensor in self._tensors()))

    def move(self, source_M: Tensor, target_M: Tensor) -> None:
        """Copy rows into other slots, their part of the cache included."""
        self.cache.move(source_M, target_M)
        for tensor in self._tensors():
            tensor[target_M] = tensor[source_M]

    def retire(self, slots_M: Tensor, idle_index: int) -> None:
        """Make slots idle."""
        # index_fill_: an assignment of a number by index waits for the device
        self.live_N.index_fill_(0, slots_M, False)
        self.index_N.index_fill_(0, slots_M, idle_index)
        for tensor in (self.written_N, self.cache.lengths_L):
            tensor.index_fill_(0, slots_M, 0)


def causal_forward(model: GlmOcrForConditionalGeneration, rows: Rows, ids_NQ: Tensor, start: int = 0) -> Tensor:
    """(N, Q, V) logits of tokens that see the cache, the ``start`` places behind it, and each other causally."""
    slots_NQ = rows.cache.open_window(len(rows), start, ids_NQ.shape[1])
    return _forward(model, rows, ids_NQ, slots_NQ, last_seen_NQ=slots_NQ)


def draft_forward(model: GlmOcrForConditionalGeneration, rows: Rows, ids_NQ: Tensor) -> Tensor:
    """(N, Q, V) logits of a boundary token that sees the cache and of masks that see the whole window as well."""
    slots_NQ = rows.cache.open_window(len(rows), 0, ids_NQ.shape[1])
    last_seen_NQ = slots_NQ[:, -1:].repeat(1, ids_NQ.shape[1])
    last_seen_NQ[:, 0] = slots_NQ[:, 0]
    return _forward(model, rows, ids_NQ, slots_NQ, last_seen_NQ)


def _forward(
    model: GlmOcrForConditionalGeneration, rows: Rows, ids_NQ: Tensor, slots_NQ: Tensor, last_seen_NQ: Tensor
) -> Tensor:
    positions_NQ = slots_NQ + rows.rope_offset_N[:, None]
    return model(
        input_ids=ids_NQ,
        attention_mask=to_attention_mask(model, rows.cache.seen_until(last_seen_NQ)),
        position_ids=positions_NQ.expand(3, -1, -1),
        cache=rows.cache,
        use_cache=True,
    ).logits
