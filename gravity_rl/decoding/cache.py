"""A preallocated key/value cache whose rows have different lengths, and the masks that go with it.

Row n holds the causal states of its first ``lengths_N[n]`` tokens without holes. A forward writes the states of its
tokens behind them; they only stay if the caller then advances ``lengths_N``. Otherwise they are out of sight of
every mask and overwritten by the next forward, so that rejected tokens and drafts cost no copy.

Shapes: N rows, H key/value heads, Q tokens of one forward, K visible slots, C slots in all, D head size.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache


class RaggedCache(Cache):
    """Keys and values of all layers, allocated on the first forward.

    Args:
        num_rows: N.
        capacity: C, slots of each row.
        device: where the lengths live; the states live where the model computes them.
    """

    def __init__(self, num_rows: int, capacity: int, device: torch.device):
        super().__init__(layers=[])
        self.capacity = capacity
        self.lengths_N = torch.zeros(num_rows, dtype=torch.long, device=device)
        #: the largest length, as far as the host knows: at least ``lengths_N.max()``, without asking the device
        self.longest = 0
        self.keys_NHCD: list[Tensor] = []
        self.values_NHCD: list[Tensor] = []
        self._slots_NQ = torch.zeros(num_rows, 0, dtype=torch.long, device=device)
        self._visible = 0

    def open_window(self, start: int, width: int) -> Tensor:
        """Say where the next forward writes: its token j goes to slot ``lengths_N + start + j``.

        Returns:
            (N, Q) slots, with Q = ``width``.
        """
        offsets_Q = torch.arange(start, start + width, device=self.lengths_N.device)
        self._slots_NQ = self.lengths_N[:, None] + offsets_Q
        self._visible = self.longest + start + width
        if self._visible > self.capacity:
            raise RuntimeError(f"the cache has {self.capacity} slots a row, and a window ends at {self._visible}")
        return self._slots_NQ

    def seen_until(self, last_seen_NQ: Tensor) -> Tensor:
        """(N, 1, Q, K) boolean mask in which each query sees all slots up to its own limit, included."""
        slots_K = torch.arange(self._visible, device=last_seen_NQ.device)
        return (slots_K <= last_seen_NQ[..., None])[:, None]

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Write (N, H, Q, D) states into the open window; the states of all visible slots, (N, H, K, D)."""
        if layer_idx == len(self.keys_NHCD):
            self.keys_NHCD.append(self._allocate(key_states))
            self.values_NHCD.append(self._allocate(value_states))
        keys_NHCD, values_NHCD = self.keys_NHCD[layer_idx], self.values_NHCD[layer_idx]
        index_NHQD = self._slots_NQ[:, None, :, None].expand_as(key_states)
        keys_NHCD.scatter_(2, index_NHQD, key_states)
        values_NHCD.scatter_(2, index_NHQD, value_states)
        return keys_NHCD[:, :, : self._visible], values_NHCD[:, :, : self._visible]

    def _allocate(self, states_NHQD: Tensor) -> Tensor:
        rows, heads, _, size = states_NHQD.shape
        # zeros: a masked slot has weight zero, which times a stray NaN would still be NaN
        return states_NHQD.new_zeros(rows, heads, self.capacity, size)

    def select(self, rows_M: Tensor) -> None:
        """Keep the rows ``rows_M`` (indices, in their order; a row may occur several times)."""
        self.lengths_N = self.lengths_N[rows_M]
        for states in (self.keys_NHCD, self.values_NHCD):
            for layer, layer_states in enumerate(states):
                states[layer] = layer_states[rows_M]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self.longest

    def get_max_length(self, layer_idx: int | None = None) -> int:
        return self.capacity

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        return self._visible, 0
